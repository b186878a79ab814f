"""Projection of event logs to chat completions: a fold over events, nothing else. Each choice has its own log."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.app.errors import from_response
from antiphon.app.http.stream_writer import StreamEncoder
from antiphon.app.projections.best_of import rank_choices
from antiphon.app.projections.chat.choice import ChoiceFold
from antiphon.app.projections.chat.fold import join_parts
from antiphon.app.projections.chat.schema import (
    ChatChunk,
    ChatCompletion,
    ChatUsage,
    ChunkChoice,
    chat_usage,
)
from antiphon.app.projections.obfuscation import add_obfuscation
from antiphon.app.projections.prompt_logprobs import list_prompt_logprobs
from antiphon.app.turn_types.event_log import EventLog, LogEntry, repeat_if_diverged
from antiphon.app.turn_types.reply_form import ChatForm
from antiphon.app.turn_types.step_detail import PromptDetail
from antiphon.events import sse
from antiphon.events.response import Usage

_encode_json = msgspec.json.Encoder().encode


class ChatStream(StreamEncoder):
    """Encoder of a chunk stream. The role of each choice is sent first, in order; the usage, if requested, last."""

    def __init__(self, logs: Sequence[EventLog], form: ChatForm) -> None:
        self.logs, self._form = logs, form
        base_response = logs[0].base_response
        self._id, self._model = chat_id(logs[0].id, form.options.request_id), base_response.model
        self._created = int(base_response.created_at)
        self._folds = [ChoiceFold(index, form) for index in range(len(logs))]
        self._shows_prompt = form.options.token_ids
        self._num_prompt = self._num_generated = 0

    def initial(self) -> bytes:
        """Returns the chunks with the roles, and with the text that is repeated."""
        return b"".join(self._encode_part(part) for fold in self._folds for part in fold.begin())

    def encode(self, index: int, entries: list[LogEntry]) -> bytes:
        """Returns the chunks of one choice's events; the finish reason follows the last event."""
        fold, frames = self._folds[index], []
        for entry in entries:
            if self._form.continuous_usage and entry.detail is not None:
                self._num_prompt = max(self._num_prompt, entry.detail.input_tokens)
                self._num_generated += len(entry.detail.tokens)
            frames += [self._encode_part(part, fold.prompt) for part in fold.feed_entry(entry)]
        self.failure = self.failure or from_response(fold.terminal)
        return b"".join(frames)

    def final(self) -> bytes:
        """Returns the usage, or the error that ended the stream, followed by `[DONE]`."""
        last_frame = b""
        if self.failure is not None:
            last_frame = sse.frame_data(self.failure.encoded_body)
        elif self._form.include_usage:
            last_frame = sse.frame_data(self._encode_chunk((), _total_usage(self._folds)))
        return last_frame + sse.DONE_FRAME

    def _encode_part(self, part: ChunkChoice, prompt: PromptDetail | None = None) -> bytes:
        """Returns the frame of one part. The first one with a prompt has its token ids, if they were requested."""
        token_ids: tuple[int, ...] | UnsetType = UNSET
        if self._shows_prompt and prompt is not None:
            token_ids, self._shows_prompt = prompt.tokens, False
        data = self._encode_chunk((part,), self._running_usage() if self._form.include_usage else UNSET, token_ids)
        return sse.frame_data(add_obfuscation(data) if self._form.obfuscate else data)

    def _encode_chunk(
        self,
        choices: tuple[ChunkChoice, ...],
        usage: ChatUsage | None | UnsetType,
        token_ids: tuple[int, ...] | UnsetType = UNSET,
    ) -> bytes:
        """Returns the JSON of a chunk, with the id, the time and the model that all chunks have."""
        chunk = ChatChunk(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=usage,
            prompt_token_ids=token_ids,
        )
        return _encode_json(chunk)

    def _running_usage(self) -> ChatUsage | None:
        """Returns the usage so far if each chunk reports it; otherwise null."""
        if not self._form.continuous_usage:
            return None
        num_prompt, num_generated = self._num_prompt, self._num_generated
        counts = Usage(input_tokens=num_prompt, output_tokens=num_generated, total_tokens=num_prompt + num_generated)
        return chat_usage([counts])


async def final_completion(logs: Sequence[EventLog], form: ChatForm) -> bytes:
    """Returns the complete reply, encoded. Raises `ApiError` if a choice failed."""
    return _encode_json(await repeat_if_diverged(lambda: fold_completion(logs, form)))


async def fold_completion(logs: Sequence[EventLog], form: ChatForm) -> ChatCompletion:
    """Returns the complete reply. Raises `ApiError` if a choice failed: a chat completion cannot express that."""
    folds: list[ChoiceFold] = []
    parts: list[list[ChunkChoice]] = []
    for index, log in enumerate(logs):
        fold = ChoiceFold(index, form)
        parts.append(fold.begin())
        async for entries in log.follow_entries():
            for entry in entries:
                parts[-1] += fold.feed_entry(entry)
        if (error := from_response(fold.terminal)) is not None:
            raise error
        folds.append(fold)
    options, base_response, prompt = form.options, logs[0].base_response, folds[0].prompt
    chosen = rank_choices([fold.mean_logprob for fold in folds], options.num_returned or len(folds))
    choices = [
        join_parts(parts[number], index, logprobs=form.logprobs, token_ids=options.token_ids)
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


def _total_usage(folds: Sequence[ChoiceFold]) -> ChatUsage | None:
    return chat_usage([fold.terminal.usage for fold in folds if fold.terminal and fold.terminal.usage])


def chat_id(log_id: str, request_id: str = "") -> str:
    """Returns the id that a chat completion has for clients. Its log, or the log of its first choice, has `log_id`.

    `request_id`: the client's own id of the request, or empty.
    """
    return "chatcmpl-" + (request_id or log_id.partition("_")[2])
