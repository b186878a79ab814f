"""How a scripted reply is performed for one job: chunks, with the silence before each.

Pure: no clock, no randomness, no queue. It cuts where a real engine would (stop tokens, ``max_tokens``, the context)
and invents log-probabilities that are always the same for the same token at the same place.
"""

import math
from collections.abc import Callable, Iterator

from antiphon.engine.protocol import Chunk, EngineInfo, Fault, FinishReason, Job, TokenLogprob
from antiphon.engine.scripted.script import ScriptedReply, ScriptStep

EncodeText = Callable[[str], list[int]]


def play_reply(
    reply: ScriptedReply, job: Job, info: EngineInfo, encode: EncodeText, delay: float = 0.0
) -> Iterator[tuple[float, Chunk]]:
    """The reply as (seconds of silence before it, chunk) pairs; only the last has ``finish`` set.

    ``delay`` is added before each chunk of tokens. A stall is an infinite silence.
    """
    meter = _ReplyCursor(job, info)
    wait = 0.0
    for piece in reply.output:
        if isinstance(piece, ScriptStep) and piece.pause is not None:
            wait += piece.pause
            continue
        if isinstance(piece, ScriptStep) and (piece.stall or piece.fault is not None):
            fault = Fault(piece.code, piece.fault or "the script stalls", piece.retryable)
            yield (math.inf if piece.stall else wait), Chunk(finish="error", fault=fault)
            return
        for ids in _split_tokens(piece, reply.tokens_per_chunk, encode):
            chunk = meter.next_chunk(ids)
            yield wait + delay, chunk
            wait = 0.0
            if chunk.finish:
                return
    yield wait + delay, meter.final_chunk(reply)


def invented_logprob(token: int, position: int, top: int, vocab: int) -> TokenLogprob:
    """A log-probability made up for ``token`` as the ``place``-th of its row: it is always the likeliest.

    The chosen token has -0.125 to -1.0; each of its neighbours (id + 1, id + 2, …) 3 less than the one before.
    """
    chosen = -0.125 * (1 + position % 8)
    ranked = tuple(((token + rank) % vocab, chosen - 3.0 * rank) for rank in range(min(top, vocab)))
    return TokenLogprob(token, chosen, ranked)


def _split_tokens(piece: str | ScriptStep, step: int, encode: EncodeText) -> Iterator[tuple[int, ...]]:
    ids = (piece.ids or ()) if isinstance(piece, ScriptStep) else tuple(encode(piece))
    size = step or max(len(ids), 1)
    return (ids[start : start + size] for start in range(0, len(ids), size))


class _ReplyCursor:
    """Counts what was said and cuts at the first stop token or at the limit."""

    def __init__(self, job: Job, info: EngineInfo) -> None:
        sampling = job.sampling
        room = info.max_model_len - len(job.tokens)
        self._info = info
        self._top_logprobs = sampling.top_logprobs
        self._stops = set(sampling.stop_ids) | (set() if sampling.ignore_eos else set(info.eos_ids))
        self._limit = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
        self._num_generated = 0
        self._prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
        if job.prompt_logprobs is not None:
            rows = self._invent_logprobs(job.tokens, job.prompt_logprobs)
            self._prompt_logprobs = (None, *rows[1:])

    def next_chunk(self, ids: tuple[int, ...]) -> Chunk:
        """A chunk of these tokens, or of as many of them as are allowed."""
        taken = ids[: max(self._limit - self._num_generated, 0)]
        if not self._stops.isdisjoint(taken):
            last = next(place for place, token in enumerate(taken) if token in self._stops)
            return self._build_chunk(taken[: last + 1], "stop", taken[last])
        full = self._num_generated + len(taken) >= self._limit
        return self._build_chunk(taken, "length" if full else None)

    def final_chunk(self, reply: ScriptedReply) -> Chunk:
        """The chunk that ends a reply which was not cut: its stop token, if there is one."""
        if reply.finish == "length":
            return self._build_chunk((), "length")
        stop = reply.stop_id if reply.stop_id is not None else next(iter(self._info.eos_ids), None)
        return self._build_chunk((), "stop") if stop is None else self._build_chunk((stop,), "stop", stop)

    def _build_chunk(self, tokens: tuple[int, ...], finish: FinishReason | None, stop_id: int | None = None) -> Chunk:
        logprobs = () if self._top_logprobs is None else self._invent_logprobs(tokens, self._top_logprobs)
        prompt, self._prompt_logprobs = self._prompt_logprobs, ()
        self._num_generated += len(tokens)
        return Chunk(tokens=tokens, logprobs=logprobs, finish=finish, stop_id=stop_id, prompt_logprobs=prompt)

    def _invent_logprobs(self, tokens: tuple[int, ...], top: int) -> tuple[TokenLogprob, ...]:
        start = self._num_generated
        return tuple(
            invented_logprob(token, place, top, self._info.vocab_size) for place, token in enumerate(tokens, start)
        )
