"""Encodes the logs of a request as a text completion: as a stream of chunks, or in one piece.

The logs are those of the first prompt's choices, then those of the second prompt's, and so on.
"""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.app.errors import from_response
from antiphon.app.http.stream_writer import StreamEncoder
from antiphon.app.projections.best_of import rank_choices
from antiphon.app.projections.chat.schema import ChatUsage
from antiphon.app.projections.completions.fold import CompletionFold, join_parts
from antiphon.app.projections.completions.schema import CompletionChoice, TextCompletion, completion_usage
from antiphon.app.projections.obfuscation import add_obfuscation
from antiphon.app.turn_types.event_log import EventLog, LogEntry
from antiphon.app.turn_types.reply_form import CompletionForm
from antiphon.events import sse

_encode_json = msgspec.json.Encoder().encode


class CompletionStream(StreamEncoder):
    """Encoder of a chunk stream. The last frames are the usage, if requested, or an error, and `[DONE]`."""

    def __init__(self, logs: Sequence[EventLog], options: CompletionForm) -> None:
        self.logs = logs
        self._options = options
        self._folds = [CompletionFold(index, options) for index in range(len(logs))]

    def encode(self, index: int, entries: list[LogEntry]) -> bytes:
        """Returns the chunks of one choice's events; the last of them has the finish reason."""
        fold, frames = self._folds[index], []
        for entry in entries:
            part = fold.feed_event(entry.event, entry.detail)
            self.failure = self.failure or from_response(fold.terminal)
            if part is not None and self.failure is None:
                frames.append(self._encode_chunk((part,), self._usage_so_far()))
        return b"".join(frames)

    def final(self) -> bytes:
        """Returns the usage, or the error that ended the stream, followed by `[DONE]`."""
        if self.failure is not None:
            return sse.frame_data(self.failure.encoded_body) + sse.DONE_FRAME
        usage = self._encode_chunk((), self._total_usage()) if self._options.include_usage else b""
        return usage + sse.DONE_FRAME

    def _usage_so_far(self) -> ChatUsage | None | UnsetType:
        if self._options.continuous_usage:
            return self._total_usage()
        return None if self._options.include_usage else UNSET

    def _total_usage(self) -> ChatUsage:
        return completion_usage([fold.counts for fold in self._folds], self._options.best_of)

    def _encode_chunk(self, choices: tuple[CompletionChoice, ...], usage: ChatUsage | None | UnsetType) -> bytes:
        data = _encode_json(_build_reply(self.logs[0], self._options, choices, usage))
        return sse.frame_data(add_obfuscation(data) if self._options.obfuscate and choices else data)


async def final_text_completion(logs: Sequence[EventLog], options: CompletionForm) -> bytes:
    """Returns the complete reply. Raises `ApiError` if a choice failed: a completion cannot express that."""
    folds = [CompletionFold(index, options) for index in range(len(logs))]
    parts: list[list[CompletionChoice]] = []
    for fold, log in zip(folds, logs, strict=True):
        parts.append([])
        async for entries in log.follow_entries():
            for entry in entries:
                if (part := fold.feed_event(entry.event, entry.detail)) is not None:
                    parts[-1].append(part)
        if (error := from_response(fold.terminal)) is not None:
            raise error
    chosen = [
        number for first in range(0, len(logs), options.best_of) for number in _choose_best(folds, first, options)
    ]
    has_logprobs = options.logprobs is not None
    choices = [join_parts(parts[number], index, logprobs=has_logprobs) for index, number in enumerate(chosen)]
    usage = completion_usage([fold.counts for fold in folds], options.best_of)
    return _encode_json(_build_reply(logs[0], options, tuple(choices), usage))


def _choose_best(folds: Sequence[CompletionFold], first: int, options: CompletionForm) -> Sequence[int]:
    """Returns the numbers of one prompt's choices to return; the most likely one first if there are more."""
    mean_logprobs = [fold.mean_logprob for fold in folds[first : first + options.best_of]]
    return [first + number for number in rank_choices(mean_logprobs, options.n)]


def _build_reply(
    log: EventLog,
    options: CompletionForm,
    choices: tuple[CompletionChoice, ...],
    usage: ChatUsage | None | UnsetType,
) -> TextCompletion:
    return TextCompletion(
        id=f"cmpl-{options.request_id or log.id.partition('_')[2]}",
        created=int(log.base_response.created_at),
        model=log.base_response.model,
        choices=choices,
        usage=usage,
    )
