"""Playback of a scripted reply for one job: its chunks, with the pause before each.

Pure functions: no clock, no randomness, no queue. Output ends where a real engine would end it (stop tokens,
`max_tokens`, the context). Log-probabilities are invented, always the same for the same token at the same position.
"""

import math
from collections.abc import Callable, Iterator

from antiphon.engine.protocol import Chunk, EngineInfo, Fault, FinishReason, Job, TokenLogprob
from antiphon.engine.scripted.script import ScriptedReply, ScriptStep

EncodeText = Callable[[str], list[int]]
RecordedLogprobs = tuple[tuple[float, tuple[tuple[int, float], ...]], ...]
Piece = tuple[tuple[int, ...], FinishReason | None, RecordedLogprobs]
"""Tokens of a chunk, why the reply ends with it, and the recorded log-probabilities of its tokens."""


def play_reply(
    reply: ScriptedReply,
    job: Job,
    info: EngineInfo,
    encode: EncodeText,
    delay: float = 0.0,
    pause_scale: float = 1.0,
) -> Iterator[tuple[float, Chunk]]:
    """Yields the reply as (seconds to wait before it, chunk) pairs; only the last chunk has `finish` set.

    `delay` is added before each chunk of tokens, and pauses are multiplied by `pause_scale`. A stall is an infinite
    wait. A job with `generated` tokens gets the rest of the reply; steps before it are left out.
    """
    cursor = _ReplyCursor(job, info)
    wait, skipped = 0.0, len(job.generated or ())
    for entry in reply.output:
        if isinstance(entry, ScriptStep) and entry.pause is not None:
            wait += 0.0 if skipped else entry.pause * pause_scale
            continue
        if isinstance(entry, ScriptStep) and (entry.stall or entry.fault is not None):
            if skipped:
                continue
            fault = Fault(entry.code, entry.fault or "the script stalls", entry.retryable)
            yield (math.inf if entry.stall else wait), Chunk(finish="error", fault=fault)
            return
        for ids, finish, logprobs in _split_entry(entry, reply.tokens_per_chunk, encode):
            if skipped and skipped >= len(ids) and finish is None:
                skipped -= len(ids)
                continue
            chunk = cursor.next_chunk(ids[skipped:], finish, logprobs[skipped:])
            skipped = 0
            yield wait + delay, chunk
            wait = 0.0
            if chunk.finish:
                return
    yield wait + delay, cursor.final_chunk(reply)


def begins_with(reply: ScriptedReply, tokens: tuple[int, ...], encode: EncodeText) -> bool:
    """Tells whether these tokens are the beginning of what the reply generates."""
    position = 0
    for entry in reply.output:
        for ids, _, _ in _split_entry(entry, 0, encode):
            compared = tokens[position : position + len(ids)]
            if ids[: len(compared)] != compared:
                return False
            position += len(ids)
    return position >= len(tokens)


def invented_logprob(token: int, position: int, top: int, vocab_size: int) -> TokenLogprob:
    """Returns an invented log-probability for `token` at `position`; the token is always the most likely one.

    The chosen token gets -0.125 to -1.0; each following id (id + 1, id + 2, …) gets 3 less than the one before it.
    """
    chosen = -0.125 * (1 + position % 8)
    ranked = tuple(((token + rank) % vocab_size, chosen - 3.0 * rank) for rank in range(min(top, vocab_size)))
    return TokenLogprob(token, chosen, ranked)


def _split_entry(entry: str | ScriptStep, tokens_per_chunk: int, encode: EncodeText) -> Iterator[Piece]:
    """Yields the chunks of an entry; the last one has its `finish`."""
    ids, finish, logprobs = (
        (entry.ids or (), entry.finish, entry.logprobs)
        if isinstance(entry, ScriptStep)
        else (tuple(encode(entry)), None, ())
    )
    size = tokens_per_chunk or max(len(ids), 1)
    last = max(len(ids) - size, 0)
    for start in range(0, max(len(ids), finish is not None), size):
        yield ids[start : start + size], finish if start >= last else None, logprobs[start : start + size]


class _ReplyCursor:
    """Counts generated tokens and ends the reply at the first stop token or at the token limit."""

    def __init__(self, job: Job, info: EngineInfo) -> None:
        sampling = job.sampling
        context_left = info.max_model_len - len(job.tokens)
        self._info = info
        self._top_logprobs = sampling.top_logprobs
        self._stops = set(sampling.stop_ids) | (set() if sampling.ignore_eos else set(info.eos_ids))
        self._limit = context_left if sampling.max_tokens is None else min(sampling.max_tokens, context_left)
        self._num_generated = len(job.generated or ())
        self._recorded_logprobs: RecordedLogprobs = ()
        self._prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
        if job.prompt_logprobs is not None and not job.generated:
            rows = self._invent_logprobs(job.tokens, job.prompt_logprobs)
            self._prompt_logprobs = (None, *rows[1:])

    def next_chunk(self, ids: tuple[int, ...], finish: FinishReason | None, logprobs: RecordedLogprobs) -> Chunk:
        """Returns a chunk of these tokens, cut after the first stop token or at the token limit."""
        self._recorded_logprobs = logprobs
        tokens = ids[: max(self._limit - self._num_generated, 0)]
        if not self._stops.isdisjoint(tokens):
            last = next(index for index, token in enumerate(tokens) if token in self._stops)
            return self._build_chunk(tokens[: last + 1], "stop", tokens[last])
        limit_reached = self._num_generated + len(tokens) >= self._limit
        return self._build_chunk(tokens, finish or ("length" if limit_reached else None))

    def final_chunk(self, reply: ScriptedReply) -> Chunk:
        """Returns the last chunk of a reply that was not cut, with its stop token if there is one."""
        self._recorded_logprobs = ()
        if reply.finish == "length":
            return self._build_chunk((), "length")
        stop = reply.stop_id if reply.stop_id is not None else next(iter(self._info.eos_ids), None)
        return self._build_chunk((), "stop") if stop is None else self._build_chunk((stop,), "stop", stop)

    def _build_chunk(self, tokens: tuple[int, ...], finish: FinishReason | None, stop_id: int | None = None) -> Chunk:
        logprobs = () if self._top_logprobs is None else self._list_logprobs(tokens, self._top_logprobs)
        prompt, self._prompt_logprobs = self._prompt_logprobs, ()
        self._num_generated += len(tokens)
        return Chunk(tokens=tokens, logprobs=logprobs, finish=finish, stop_id=stop_id, prompt_logprobs=prompt)

    def _list_logprobs(self, tokens: tuple[int, ...], top: int) -> tuple[TokenLogprob, ...]:
        """Returns the recorded log-probabilities, or invented ones if none were recorded."""
        if not self._recorded_logprobs:
            return self._invent_logprobs(tokens, top)
        pairs = zip(tokens, self._recorded_logprobs, strict=False)
        return tuple(TokenLogprob(token, logprob, ranked[:top]) for token, (logprob, ranked) in pairs)

    def _invent_logprobs(self, tokens: tuple[int, ...], top: int) -> tuple[TokenLogprob, ...]:
        start = self._num_generated
        return tuple(
            invented_logprob(token, index, top, self._info.vocab_size) for index, token in enumerate(tokens, start)
        )
