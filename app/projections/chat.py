"""Logs as chat completions: a fold over events and nothing else. Several choices are several logs."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from antiphon.app.errors import ApiError
from antiphon.app.event_log import EventLog, LogEntry
from antiphon.app.projections.chat_fold import ChatAccumulator, ChatFold
from antiphon.app.projections.chat_schema import (
    ChatChunk,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatUsage,
    ChunkChoice,
    chat_usage,
)
from antiphon.app.projections.obfuscation import add_obfuscation
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.events import sse
from antiphon.events.items import Logprob
from antiphon.events.response import ResponseError

_encode_json = msgspec.json.Encoder().encode


class ChatStream:
    """Chunks, framed. The role of every choice comes first, in order; usage, where asked for, last."""

    start = 0

    def __init__(self, logs: Sequence[EventLog], spec: TurnSpec) -> None:
        self.logs = logs
        self._folds = [ChatFold() for _ in logs]
        self._chunker = _ChunkBuilder(logs[0], spec)
        self._failed: ApiError | None = None

    @property
    def finished(self) -> bool:
        """Whether a choice has failed: that ends the others, too."""
        return self._failed is not None

    def initial(self) -> bytes:
        """The roles."""
        role = ChatDelta(role="assistant", content="")
        return b"".join(self._chunker.delta_frame(index, role) for index in range(len(self.logs)))

    def encode(self, index: int, frames: list[LogEntry]) -> bytes:
        """One choice's events; the finish reason behind the last."""
        fold = self._folds[index]
        said = self._chunker.encode_choice(index, fold, frames)
        self._failed = self._failed or _failure_of(fold)
        return b"".join(said)

    def final(self) -> bytes:
        """Usage, or the error that ended the stream, and the end mark."""
        told = sse.frame_data(self._failed.encoded_body) if self._failed else self._chunker.usage_frame(self._folds)
        return told + sse.DONE_FRAME


async def final_completion(logs: Sequence[EventLog], spec: TurnSpec) -> bytes:
    """The whole reply. Raises `ApiError` where a choice failed: a chat completion has no word for that."""
    folds, choices = [], []
    for index, log in enumerate(logs):
        fold, total = ChatFold(), ChatAccumulator()
        async for frames in log.follow_entries():
            for frame in frames:
                if said := fold.feed_event(frame.event):
                    total.add_delta(*said)
        if (failed := _failure_of(fold)) is not None:
            raise failed
        folds.append(fold)
        choices.append(total.build_choice(index, fold.finish_reason, logprobs=spec.logprobs))
    head = logs[0].base_response
    reply = ChatCompletion(
        id=_chat_id(logs[0]),
        created=int(head.created_at),
        model=head.model,
        choices=tuple(choices),
        usage=_total_usage(folds),
    )
    return _encode_json(reply)


class _ChunkBuilder:
    """Wraps deltas in chunks that all carry the same id, time and model."""

    def __init__(self, log: EventLog, spec: TurnSpec) -> None:
        self._id, self._head, self._spec = _chat_id(log), log.base_response, spec

    def encode_choice(self, index: int, fold: ChatFold, frames: list[LogEntry]) -> list[bytes]:
        """The frames of one choice's events, the finish reason behind the last."""
        out = []
        for frame in frames:
            if said := fold.feed_event(frame.event):
                out.append(self.delta_frame(index, *said))
            elif fold.terminal and _failure_of(fold) is None:
                choice = ChunkChoice(index=index, delta=ChatDelta(), finish_reason=fold.finish_reason)
                out.append(self._encode_chunk((choice,)))
        return out

    def delta_frame(self, index: int, delta: ChatDelta, logprobs: tuple[Logprob, ...] = ()) -> bytes:
        """One delta."""
        scored = ChatLogprobs(content=logprobs) if logprobs else None
        return self._encode_chunk((ChunkChoice(index=index, delta=delta, logprobs=scored),))

    def usage_frame(self, folds: list[ChatFold]) -> bytes:
        """The last chunk, without choices; nothing where it was not asked for."""
        if not self._spec.include_usage:
            return b""
        chunk = ChatChunk(
            id=self._id,
            created=int(self._head.created_at),
            model=self._head.model,
            choices=(),
            usage=_total_usage(folds),
        )
        return sse.frame_data(_encode_json(chunk))

    def _encode_chunk(self, choices: tuple[ChunkChoice, ...]) -> bytes:
        chunk = ChatChunk(
            id=self._id,
            created=int(self._head.created_at),
            model=self._head.model,
            choices=choices,
            usage=None if self._spec.include_usage else UNSET,
        )
        data = _encode_json(chunk)
        return sse.frame_data(add_obfuscation(data) if self._spec.obfuscate else data)


def _total_usage(folds: Sequence[ChatFold]) -> ChatUsage | None:
    return chat_usage([fold.terminal.usage for fold in folds if fold.terminal and fold.terminal.usage])


def _failure_of(fold: ChatFold) -> ApiError | None:
    response = fold.terminal
    if response is None or response.status != "failed":
        return None
    error = response.error or ResponseError(code="server_error", message="The response failed.")
    return ApiError(500, error.code, error.message)


def _chat_id(log: EventLog) -> str:
    return "chatcmpl-" + log.id.partition("_")[2]
