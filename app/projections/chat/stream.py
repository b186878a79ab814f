"""Projection of event logs to chat completions: a fold over events, nothing else. Each choice has its own log."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.app.base.errors import ApiError
from antiphon.app.base.event_log import EventLog, LogEntry, PromptDetail
from antiphon.app.projections.best_of import rank_choices
from antiphon.app.projections.chat.choice import ChoiceFold
from antiphon.app.projections.chat.fold import ChatAccumulator
from antiphon.app.projections.chat.schema import (
    ChatChunk,
    ChatCompletion,
    ChatUsage,
    ChunkChoice,
    chat_usage,
)
from antiphon.app.projections.obfuscation import add_obfuscation
from antiphon.app.projections.prompt_logprobs import list_prompt_logprobs
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.events import sse
from antiphon.events.response import ResponseError, Usage

_encode_json = msgspec.json.Encoder().encode


class ChatStream:
    """Encoder of a chunk stream. The role of each choice is sent first, in order; the usage, if requested, last."""

    start = 0

    def __init__(self, logs: Sequence[EventLog], spec: TurnSpec) -> None:
        self.logs = logs
        self._folds = [ChoiceFold(index, spec) for index in range(len(logs))]
        self._chunker = _ChunkBuilder(logs[0], spec)
        self._failed: ApiError | None = None

    @property
    def finished(self) -> bool:
        """True if a choice has failed, which ends the others, too."""
        return self._failed is not None

    def initial(self) -> bytes:
        """Returns the chunks with the roles, and with the text that is repeated."""
        return b"".join(self._chunker.encode_part(part) for fold in self._folds for part in fold.begin())

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
    folds: list[ChoiceFold] = []
    accumulators: list[ChatAccumulator] = []
    for index, log in enumerate(logs):
        fold, accumulator = ChoiceFold(index, spec), ChatAccumulator()
        for part in fold.begin():
            accumulator.add_part(part)
        async for entries in log.follow_entries():
            for entry in entries:
                for part in fold.feed_entry(entry):
                    accumulator.add_part(part)
        if (error := _failure_of(fold)) is not None:
            raise error
        folds.append(fold)
        accumulators.append(accumulator)
    options, base_response, prompt = spec.chat, logs[0].base_response, folds[0].prompt
    chosen = rank_choices([fold.mean_logprob for fold in folds], options.num_returned or len(folds))
    choices = [
        accumulators[number].build_choice(index, logprobs=spec.logprobs, token_ids=options.token_ids)
        for index, number in enumerate(chosen)
    ]
    return ChatCompletion(
        id=chat_id(logs[0].id, options.request_id),
        created=int(base_response.created_at),
        model=base_response.model,
        choices=tuple(choices),
        usage=_total_usage(folds),
        prompt_token_ids=prompt.tokens if prompt is not None and options.token_ids else UNSET,
        prompt_logprobs=UNSET if prompt is None else list_prompt_logprobs(prompt, options.prompt_logprobs),
    )


class _ChunkBuilder:
    """Wraps deltas in chunks that all carry the same id, time and model."""

    def __init__(self, log: EventLog, spec: TurnSpec) -> None:
        self._id = chat_id(log.id, spec.chat.request_id)
        self._created, self._model, self._spec = int(log.base_response.created_at), log.base_response.model, spec
        self._shows_prompt = spec.chat.token_ids
        self._num_prompt = 0
        self._num_generated: dict[int, int] = {}

    def encode_choice(self, index: int, fold: ChoiceFold, entries: list[LogEntry]) -> list[bytes]:
        """Returns the frames of one choice's events; the finish reason follows the last event."""
        encoded = []
        for entry in entries:
            self._count_tokens(index, entry)
            encoded += [self.encode_part(part, fold.prompt) for part in fold.feed_entry(entry)]
        return encoded

    def _count_tokens(self, index: int, entry: LogEntry) -> None:
        """Counts the tokens of a step, so that every chunk can report the usage so far."""
        detail = entry.detail
        if self._spec.continuous_usage and detail is not None:
            self._num_prompt = max(self._num_prompt, detail.input_tokens)
            self._num_generated[index] = self._num_generated.get(index, 0) + len(detail.tokens)

    def encode_part(self, part: ChunkChoice, prompt: PromptDetail | None = None) -> bytes:
        """Returns the frame of one part. The first one with a prompt has its token ids, if they were requested."""
        token_ids: tuple[int, ...] | UnsetType = UNSET
        if self._shows_prompt and prompt is not None:
            token_ids, self._shows_prompt = prompt.tokens, False
        chunk = ChatChunk(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=(part,),
            usage=self._running_usage() if self._spec.include_usage else UNSET,
            prompt_token_ids=token_ids,
        )
        data = _encode_json(chunk)
        return sse.frame_data(add_obfuscation(data) if self._spec.obfuscate else data)

    def usage_frame(self, folds: list[ChoiceFold]) -> bytes:
        """Returns the last chunk, which has no choices; empty if the usage was not requested."""
        if not self._spec.include_usage:
            return b""
        chunk = ChatChunk(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=(),
            usage=_total_usage(folds),
        )
        return sse.frame_data(_encode_json(chunk))

    def _running_usage(self) -> ChatUsage | None:
        """Returns the usage so far if each chunk reports it; otherwise null."""
        if not self._spec.continuous_usage:
            return None
        generated = sum(self._num_generated.values())
        counts = Usage(
            input_tokens=self._num_prompt, output_tokens=generated, total_tokens=self._num_prompt + generated
        )
        return chat_usage([counts])


def _total_usage(folds: Sequence[ChoiceFold]) -> ChatUsage | None:
    return chat_usage([fold.terminal.usage for fold in folds if fold.terminal and fold.terminal.usage])


def _failure_of(fold: ChoiceFold) -> ApiError | None:
    response = fold.terminal
    if response is None or response.status != "failed":
        return None
    error = response.error or ResponseError(code="server_error", message="The response failed.")
    return ApiError(500, error.code, error.message)


def chat_id(log_id: str, request_id: str = "") -> str:
    """Returns the id that a chat completion has for clients. Its log, or the log of its first choice, has `log_id`.

    `request_id`: the client's own id of the request, or empty.
    """
    return "chatcmpl-" + (request_id or log_id.partition("_")[2])
