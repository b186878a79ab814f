"""How a scripted reply is performed for one job: chunks, with the silence before each.

Pure: no clock, no randomness, no queue. It cuts where a real engine would (stop tokens, ``max_tokens``, the context)
and invents log-probabilities that are always the same for the same token at the same place.
"""

import math
from collections.abc import Callable, Iterator

from antiphon.engine.protocol import Chunk, EngineInfo, Fault, Finish, Job, TokenLogprob
from antiphon.engine.scripted.script import Piece, Reply

Encode = Callable[[str], list[int]]


def perform(
    reply: Reply, job: Job, info: EngineInfo, encode: Encode, delay: float = 0.0
) -> Iterator[tuple[float, Chunk]]:
    """The reply as (seconds of silence before it, chunk) pairs; only the last has ``finish`` set.

    ``delay`` is added before each chunk of tokens. A stall is an infinite silence.
    """
    meter = _Meter(job, info)
    wait = 0.0
    for piece in reply.speak:
        if isinstance(piece, Piece) and piece.pause is not None:
            wait += piece.pause
            continue
        if isinstance(piece, Piece) and (piece.stall or piece.fault is not None):
            fault = Fault(piece.code, piece.fault or "the script stalls", piece.retryable)
            yield (math.inf if piece.stall else wait), Chunk(finish="error", fault=fault)
            return
        for ids in _groups(piece, reply.step, encode):
            chunk = meter.take(ids)
            yield wait + delay, chunk
            wait = 0.0
            if chunk.finish:
                return
    yield wait + delay, meter.last(reply)


def invented_logprob(token: int, place: int, top: int, vocab: int) -> TokenLogprob:
    """A log-probability made up for ``token`` as the ``place``-th of its row: it is always the likeliest.

    The chosen token has -0.125 to -1.0; each of its neighbours (id + 1, id + 2, …) 3 less than the one before.
    """
    chosen = -0.125 * (1 + place % 8)
    ranked = tuple(((token + rank) % vocab, chosen - 3.0 * rank) for rank in range(min(top, vocab)))
    return TokenLogprob(token, chosen, ranked)


def _groups(piece: str | Piece, step: int, encode: Encode) -> Iterator[tuple[int, ...]]:
    ids = (piece.ids or ()) if isinstance(piece, Piece) else tuple(encode(piece))
    size = step or max(len(ids), 1)
    return (ids[start : start + size] for start in range(0, len(ids), size))


class _Meter:
    """Counts what was said and cuts at the first stop token or at the limit."""

    def __init__(self, job: Job, info: EngineInfo) -> None:
        sampling = job.sampling
        room = info.context - len(job.tokens)
        self._info = info
        self._top = sampling.top_logprobs
        self._stops = set(sampling.stop_ids) | (set() if sampling.ignore_eos else set(info.eos_ids))
        self._limit = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
        self._said = 0
        self._prompt: tuple[TokenLogprob | None, ...] = ()
        if job.prompt_logprobs is not None:
            rows = self._invent(job.tokens, job.prompt_logprobs)
            self._prompt = (None, *rows[1:])

    def take(self, ids: tuple[int, ...]) -> Chunk:
        """A chunk of these tokens, or of as many of them as are allowed."""
        taken = ids[: max(self._limit - self._said, 0)]
        if not self._stops.isdisjoint(taken):
            last = next(place for place, token in enumerate(taken) if token in self._stops)
            return self._chunk(taken[: last + 1], "stop", taken[last])
        full = self._said + len(taken) >= self._limit
        return self._chunk(taken, "length" if full else None)

    def last(self, reply: Reply) -> Chunk:
        """The chunk that ends a reply which was not cut: its stop token, if there is one."""
        if reply.finish == "length":
            return self._chunk((), "length")
        stop = reply.stop_id if reply.stop_id is not None else next(iter(self._info.eos_ids), None)
        return self._chunk((), "stop") if stop is None else self._chunk((stop,), "stop", stop)

    def _chunk(self, tokens: tuple[int, ...], finish: Finish | None, stop_id: int | None = None) -> Chunk:
        logprobs = () if self._top is None else self._invent(tokens, self._top)
        prompt, self._prompt = self._prompt, ()
        self._said += len(tokens)
        return Chunk(tokens=tokens, logprobs=logprobs, finish=finish, stop_id=stop_id, prompt_logprobs=prompt)

    def _invent(self, tokens: tuple[int, ...], top: int) -> tuple[TokenLogprob, ...]:
        start = self._said
        return tuple(invented_logprob(token, place, top, self._info.vocab) for place, token in enumerate(tokens, start))
