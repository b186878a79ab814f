"""Logs as chat completions: a fold over events and nothing else. Several choices are several logs."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from antiphon.app.errors import ApiError
from antiphon.app.event_log import Frame, Log
from antiphon.app.projections.chat_fold import ChatFold, ChatSum
from antiphon.app.projections.chat_schema import (
    ChatChunk,
    ChatCompletion,
    ChatLogprobs,
    ChatUsage,
    ChunkChoice,
    Delta,
    chat_usage,
)
from antiphon.app.projections.obfuscation import padded
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.events import sse
from antiphon.events.items import Logprob
from antiphon.events.response import ResponseError

_encode = msgspec.json.Encoder().encode


class ChatStream:
    """Chunks, framed. The role of every choice comes first, in order; usage, where asked for, last."""

    start = 0

    def __init__(self, logs: Sequence[Log], spec: TurnSpec) -> None:
        self.logs = logs
        self._folds = [ChatFold() for _ in logs]
        self._chunker = _Chunker(logs[0], spec)
        self._failed: ApiError | None = None

    @property
    def over(self) -> bool:
        """Whether a choice has failed: that ends the others, too."""
        return self._failed is not None

    def head(self) -> bytes:
        """The roles."""
        role = Delta(role="assistant", content="")
        return b"".join(self._chunker.frame(index, role) for index in range(len(self.logs)))

    def told(self, index: int, frames: list[Frame]) -> bytes:
        """One choice's events; the finish reason behind the last."""
        fold = self._folds[index]
        said = self._chunker.told(index, fold, frames)
        self._failed = self._failed or _failure(fold)
        return b"".join(said)

    def end(self) -> bytes:
        """Usage, or the error that ended the stream, and the end mark."""
        told = sse.frame_data(self._failed.body) if self._failed else self._chunker.usage(self._folds)
        return told + sse.DONE_FRAME


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
        return sse.frame_data(_encode(chunk))

    def _chunk(self, choices: tuple[ChunkChoice, ...]) -> bytes:
        chunk = ChatChunk(
            id=self._id,
            created=int(self._head.created_at),
            model=self._head.model,
            choices=choices,
            usage=None if self._spec.include_usage else UNSET,
        )
        data = _encode(chunk)
        return sse.frame_data(padded(data) if self._spec.obfuscate else data)


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
