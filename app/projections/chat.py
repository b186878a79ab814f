"""Projection of event logs to chat completions: a fold over events, nothing else. Each choice has its own log."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

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
from antiphon.events.response import ResponseError, Usage

_encode_json = msgspec.json.Encoder().encode


class ChatStream:
    """Encoder of a chunk stream. The role of each choice is sent first, in order; the usage, if requested, last."""

    start = 0

    def __init__(self, logs: Sequence[EventLog], spec: TurnSpec) -> None:
        self.logs = logs
        self._folds = [_create_fold(spec) for _ in logs]
        self._chunker = _ChunkBuilder(logs[0], spec)
        self._failed: ApiError | None = None

    @property
    def finished(self) -> bool:
        """True if a choice has failed, which ends the others, too."""
        return self._failed is not None

    def initial(self) -> bytes:
        """Returns the chunks with the roles."""
        role = ChatDelta(role="assistant", content="")
        return b"".join(self._chunker.delta_frame(index, role) for index in range(len(self.logs)))

    def encode(self, index: int, entries: list[LogEntry]) -> bytes:
        """Returns the chunks of one choice's events; the finish reason follows the last event."""
        fold = self._folds[index]
        encoded = self._chunker.encode_choice(index, fold, entries)
        self._failed = self._failed or _failure_of(fold)
        return b"".join(encoded)

    def final(self) -> bytes:
        """Returns the usage, or the error that ended the stream, followed by `[DONE]`."""
        last_frame = (
            sse.frame_data(self._failed.encoded_body) if self._failed else self._chunker.usage_frame(self._folds)
        )
        return last_frame + sse.DONE_FRAME


async def final_completion(logs: Sequence[EventLog], spec: TurnSpec) -> bytes:
    """Returns the complete reply, encoded. Raises `ApiError` if a choice failed."""
    return _encode_json(await fold_completion(logs, spec))


async def fold_completion(logs: Sequence[EventLog], spec: TurnSpec) -> ChatCompletion:
    """Returns the complete reply. Raises `ApiError` if a choice failed: a chat completion cannot express that."""
    folds, choices = [], []
    for index, log in enumerate(logs):
        fold, accumulator = _create_fold(spec), ChatAccumulator()
        async for entries in log.follow_entries():
            for entry in entries:
                if addition := fold.feed_event(entry.event):
                    accumulator.add_delta(*addition)
        if (error := _failure_of(fold)) is not None:
            raise error
        folds.append(fold)
        choices.append(accumulator.build_choice(index, fold.finish_reason, logprobs=spec.logprobs))
    base_response = logs[0].base_response
    return ChatCompletion(
        id=chat_id(logs[0].id),
        created=int(base_response.created_at),
        model=base_response.model,
        choices=tuple(choices),
        usage=_total_usage(folds),
    )


class _ChunkBuilder:
    """Wraps deltas in chunks that all carry the same id, time and model."""

    def __init__(self, log: EventLog, spec: TurnSpec) -> None:
        self._id, self._base_response, self._spec = chat_id(log.id), log.base_response, spec
        self._num_prompt = 0
        self._num_generated: dict[int, int] = {}

    def encode_choice(self, index: int, fold: ChatFold, entries: list[LogEntry]) -> list[bytes]:
        """Returns the frames of one choice's events; the finish reason follows the last event."""
        encoded = []
        for entry in entries:
            self._count_tokens(index, entry)
            if addition := fold.feed_event(entry.event):
                encoded.append(self.delta_frame(index, *addition))
            elif fold.terminal and _failure_of(fold) is None:
                choice = ChunkChoice(index=index, delta=ChatDelta(), finish_reason=fold.finish_reason)
                encoded.append(self._encode_chunk((choice,)))
        return encoded

    def _count_tokens(self, index: int, entry: LogEntry) -> None:
        """Counts the tokens of a step, so that every chunk can report the usage so far."""
        detail = entry.detail
        if self._spec.continuous_usage and detail is not None:
            self._num_prompt = max(self._num_prompt, detail.input_tokens)
            self._num_generated[index] = self._num_generated.get(index, 0) + len(detail.tokens)

    def delta_frame(self, index: int, delta: ChatDelta, logprobs: tuple[Logprob, ...] = ()) -> bytes:
        """Returns the frame of one delta."""
        chat_logprobs = ChatLogprobs(content=logprobs) if logprobs else None
        return self._encode_chunk((ChunkChoice(index=index, delta=delta, logprobs=chat_logprobs),))

    def usage_frame(self, folds: list[ChatFold]) -> bytes:
        """Returns the last chunk, which has no choices; empty if the usage was not requested."""
        if not self._spec.include_usage:
            return b""
        chunk = ChatChunk(
            id=self._id,
            created=int(self._base_response.created_at),
            model=self._base_response.model,
            choices=(),
            usage=_total_usage(folds),
        )
        return sse.frame_data(_encode_json(chunk))

    def _running_usage(self) -> ChatUsage | None | UnsetType:
        """Returns the usage so far if each chunk reports it; otherwise null, or nothing without `include_usage`."""
        if not self._spec.include_usage:
            return UNSET
        if not self._spec.continuous_usage:
            return None
        generated = sum(self._num_generated.values())
        counts = Usage(
            input_tokens=self._num_prompt, output_tokens=generated, total_tokens=self._num_prompt + generated
        )
        return chat_usage([counts])

    def _encode_chunk(self, choices: tuple[ChunkChoice, ...]) -> bytes:
        chunk = ChatChunk(
            id=self._id,
            created=int(self._base_response.created_at),
            model=self._base_response.model,
            choices=choices,
            usage=self._running_usage(),
        )
        data = _encode_json(chunk)
        return sse.frame_data(add_obfuscation(data) if self._spec.obfuscate else data)


def _create_fold(spec: TurnSpec) -> ChatFold:
    return ChatFold(as_function_call=spec.as_function_call, reasoning_field=spec.reasoning_field)


def _total_usage(folds: Sequence[ChatFold]) -> ChatUsage | None:
    return chat_usage([fold.terminal.usage for fold in folds if fold.terminal and fold.terminal.usage])


def _failure_of(fold: ChatFold) -> ApiError | None:
    response = fold.terminal
    if response is None or response.status != "failed":
        return None
    error = response.error or ResponseError(code="server_error", message="The response failed.")
    return ApiError(500, error.code, error.message)


def chat_id(log_id: str) -> str:
    """Returns the id that a chat completion has for clients. Its log, or the log of its first choice, has `log_id`."""
    return "chatcmpl-" + log_id.partition("_")[2]
