"""Logs as chat completions: a fold over events and nothing else. Several choices are several logs."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence

import msgspec
from msgspec import UNSET

from app.errors import ApiError
from app.log import Frame, Log
from app.projections.chat_fold import ChatFold, ChatSum
from app.projections.chat_wire import (
    ChatChunk,
    ChatCompletion,
    ChatLogprobs,
    ChatUsage,
    ChunkChoice,
    Delta,
    chat_usage,
)
from app.projections.responses import PING_AFTER
from app.requests.spec import TurnSpec
from events import sse
from events.items import Logprob
from events.response import ResponseError

_encode = msgspec.json.Encoder().encode


async def stream(logs: Sequence[Log], spec: TurnSpec) -> AsyncGenerator[bytes, None]:
    """Chunks, framed. The role of every choice comes first, in order; usage, where asked for, last."""
    folds = [ChatFold() for _ in logs]
    chunker = _Chunker(logs[0], spec)
    yield b"".join(chunker.frame(index, Delta(role="assistant", content="")) for index in range(len(logs)))
    async with contextlib.aclosing(_merged(logs)) as merged:
        async for index, frames in merged:
            told = chunker.told(index, folds[index], frames)
            if told or not frames:  # events that chat has no word for are no silence
                yield b"".join(told) or sse.PING
            if (failed := _failure(folds[index])) is not None:
                yield sse.data_frame(failed.body()) + sse.DONE
                return
    yield chunker.usage(folds) + sse.DONE


async def final(logs: Sequence[Log], spec: TurnSpec) -> bytes:
    """The whole reply. Raises `ApiError` where a choice failed: a chat completion has no word for that."""
    folds, choices = [], []
    for index, log in enumerate(logs):
        fold, total = ChatFold(), ChatSum()
        async for frames in log.follow():
            for frame in frames:
                if said := fold.feed(frame.event):
                    total.add(*said)
        if (failed := _failure(fold)) is not None:
            raise failed
        folds.append(fold)
        choices.append(total.choice(index, fold.finish_reason, logprobs=spec.logprobs))
    head = logs[0].head
    reply = ChatCompletion(
        id=_chat_id(logs[0]),
        created=int(head.created_at),
        model=head.model,
        choices=tuple(choices),
        usage=_usage(folds),
    )
    return _encode(reply)


class _Chunker:
    """Wraps deltas in chunks that all carry the same id, time and model."""

    def __init__(self, log: Log, spec: TurnSpec) -> None:
        self._id, self._head, self._spec = _chat_id(log), log.head, spec

    def told(self, index: int, fold: ChatFold, frames: list[Frame]) -> list[bytes]:
        """The frames of one choice's events, the finish reason behind the last."""
        out = []
        for frame in frames:
            if said := fold.feed(frame.event):
                out.append(self.frame(index, *said))
            elif fold.terminal and _failure(fold) is None:
                choice = ChunkChoice(index=index, delta=Delta(), finish_reason=fold.finish_reason)
                out.append(self._chunk((choice,)))
        return out

    def frame(self, index: int, delta: Delta, logprobs: tuple[Logprob, ...] = ()) -> bytes:
        """One delta."""
        scored = ChatLogprobs(content=logprobs) if logprobs else None
        return self._chunk((ChunkChoice(index=index, delta=delta, logprobs=scored),))

    def usage(self, folds: list[ChatFold]) -> bytes:
        """The last chunk, without choices; nothing where it was not asked for."""
        if not self._spec.include_usage:
            return b""
        chunk = ChatChunk(
            id=self._id,
            created=int(self._head.created_at),
            model=self._head.model,
            choices=(),
            usage=_usage(folds),
        )
        return sse.data_frame(_encode(chunk))

    def _chunk(self, choices: tuple[ChunkChoice, ...]) -> bytes:
        chunk = ChatChunk(
            id=self._id,
            created=int(self._head.created_at),
            model=self._head.model,
            choices=choices,
            usage=None if self._spec.include_usage else UNSET,
        )
        return sse.data_frame(_encode(chunk))


async def _merged(logs: Sequence[Log]) -> AsyncGenerator[tuple[int, list[Frame]], None]:
    """The frames of all logs as they come. One log needs no machinery."""
    if len(logs) == 1:
        async for frames in logs[0].follow(idle=PING_AFTER):
            yield 0, frames
        return
    news: asyncio.Queue[tuple[int, list[Frame]] | None] = asyncio.Queue()

    async def pump(index: int, log: Log) -> None:
        async for frames in log.follow(idle=PING_AFTER):
            news.put_nowait((index, frames))
        news.put_nowait(None)

    tasks = [asyncio.create_task(pump(index, log)) for index, log in enumerate(logs)]
    try:
        for _ in logs:
            while (told := await news.get()) is not None:
                yield told
    finally:
        for task in tasks:
            task.cancel()


def _usage(folds: Sequence[ChatFold]) -> ChatUsage | None:
    return chat_usage([fold.terminal.usage for fold in folds if fold.terminal and fold.terminal.usage])


def _failure(fold: ChatFold) -> ApiError | None:
    response = fold.terminal
    if response is None or response.status != "failed":
        return None
    error = response.error or ResponseError(code="server_error", message="The response failed.")
    return ApiError(500, error.code, error.message)


def _chat_id(log: Log) -> str:
    return "chatcmpl-" + log.id.partition("_")[2]
