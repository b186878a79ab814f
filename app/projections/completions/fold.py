"""Fold of one response's events into the parts of a text completion's choice. Pure: it uses no log and no socket.

The text is what the events show, followed by the white space that they dropped; log-probabilities, token ids, the stop
and the prompt come from the details. A complete choice is the sum of its parts, so a streamed reply and a complete one
cannot differ.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain

from msgspec import UNSET, UnsetType

from antiphon.app.projections.completions.schema import (
    CompletionChoice,
    CompletionCounts,
    CompletionFinish,
    CompletionLogprobs,
)
from antiphon.app.projections.prompt_logprobs import list_prompt_logprobs
from antiphon.app.turn_types.reply_form import CompletionForm
from antiphon.app.turn_types.step_detail import PromptDetail, ScoredToken, TokenDetail
from antiphon.events import stream as ev
from antiphon.events.base import Event
from antiphon.events.response import Response


class CompletionFold:
    """Fold of choice number `index`. `terminal` is the response once it has ended."""

    def __init__(self, index: int, options: CompletionForm) -> None:
        self.terminal: Response | None = None
        self.counts = CompletionCounts()
        self._index, self._options = index, options
        self._text: list[str] = []  # text of the step that is being read; its last event has the detail
        self._length = self._echo_length = 0
        self._waiting: deque[ScoredToken] = deque()
        self._sum_logprobs, self._num_logprobs = 0.0, 0

    @property
    def mean_logprob(self) -> float:
        """Mean log-probability of the tokens."""
        return self._sum_logprobs / self._num_logprobs if self._num_logprobs else 0.0

    def feed_event(self, event: Event, detail: TokenDetail | None) -> CompletionChoice | None:
        """Returns the part of the choice that ends with this event; None if there is none."""
        match event:
            case ev.TextDelta(delta=text):
                self._text.append(text)
            case ev.Completed() | ev.Incomplete() | ev.Failed():
                self.terminal = event.response
        if detail is None:
            return None
        self._count(detail)
        part = self._build_part(detail)
        is_empty = not part.text and part.logprobs is None and not part.token_ids and part.prompt_token_ids is UNSET
        return None if is_empty and self.terminal is None else part

    def _count(self, detail: TokenDetail) -> None:
        counts = self.counts
        self.counts = CompletionCounts(
            input_tokens=counts.input_tokens or detail.input_tokens,
            cached_tokens=counts.cached_tokens or detail.cached_tokens,
            output_tokens=counts.output_tokens + len(detail.tokens),
        )
        self._sum_logprobs += sum(token.logprob or 0.0 for token in detail.logprobs)
        self._num_logprobs += len(detail.logprobs)

    def _build_part(self, detail: TokenDetail) -> CompletionChoice:
        options, prompt = self._options, detail.prompt
        text = "".join((*self._text, detail.dropped_text))
        self._text.clear()
        if self.terminal is not None and options.include_stop and detail.stop_string is not None:
            text += detail.stop_string
        self._length += len(text)
        shown = list(self._echo_tokens(prompt))
        if prompt is not None and options.echo:
            text, self._echo_length = prompt.text + text, len(prompt.text)
        shown += self._take_tokens(detail.logprobs)
        return CompletionChoice(
            index=self._index,
            text=text,
            logprobs=build_logprobs(shown, options) if shown else None,
            finish_reason=self._finish_reason() if self.terminal is not None else None,
            stop_reason=self._stop_reason(detail) if self.terminal is not None else None,
            token_ids=detail.tokens if options.token_ids else UNSET,
            prompt_token_ids=prompt.tokens if prompt is not None and options.token_ids else UNSET,
            prompt_logprobs=UNSET if prompt is None else list_prompt_logprobs(prompt, options.prompt_logprobs),
        )

    def _echo_tokens(self, prompt: PromptDetail | None) -> Iterable[ScoredToken]:
        """Returns the tokens of the prompt, if the text begins with it."""
        is_scored = self._options.echo and self._options.logprobs is not None
        return prompt.logprobs if prompt is not None and is_scored else ()

    def _take_tokens(self, scored: Sequence[ScoredToken]) -> list[ScoredToken]:
        """Returns the tokens whose text has been returned: it may be held back; at the end, all that remain.

        The text of a token may have been cut off by a stop string. Its offset is then the text's end.
        """
        waiting, length = self._waiting, self._length
        if self._options.logprobs is None:
            return []
        waiting.extend(scored)
        result = []
        while waiting and (self.terminal is not None or waiting[0].offset < length):
            token = waiting.popleft()
            offset = min(token.offset, length) + self._echo_length
            result.append(ScoredToken(token.id, token.text, token.logprob, offset, token.top))
        return result

    def _finish_reason(self) -> CompletionFinish:
        response = self.terminal
        if response is not None and response.incomplete_details and response.incomplete_details.reason:
            return "content_filter" if response.incomplete_details.reason == "content_filter" else "length"
        cut = self._options.prompt_only or (response is not None and response.status == "cancelled")
        return "length" if cut else "stop"

    def _stop_reason(self, detail: TokenDetail) -> int | str | None:
        if detail.stop_string is not None:
            return detail.stop_string
        return detail.stop_id if detail.stop_id in self._options.stop_ids else None


def build_logprobs(tokens: Iterable[ScoredToken], options: CompletionForm) -> CompletionLogprobs:
    """Returns the columns of these tokens."""
    tokens = tuple(tokens)
    top = tuple(None if token.logprob is None else _top_logprobs(token, options) for token in tokens)
    return CompletionLogprobs(
        tokens=tuple(_name_token(token.id, token.text, options) for token in tokens),
        token_logprobs=tuple(token.logprob for token in tokens),
        top_logprobs=top,
        text_offset=tuple(token.offset for token in tokens),
    )


def _top_logprobs(token: ScoredToken, options: CompletionForm) -> dict[str, float]:
    """Returns the most likely tokens and the chosen one. Of tokens with the same text, the most likely counts."""
    result: dict[str, float] = {}
    for token_id, text, logprob in token.top[: options.logprobs]:
        result.setdefault(_name_token(token_id, text, options), logprob)
    if token.logprob is not None:
        result.setdefault(_name_token(token.id, token.text, options), token.logprob)
    return result


def _name_token(token_id: int, text: str, options: CompletionForm) -> str:
    return f"token_id:{token_id}" if options.tokens_as_ids else text


def join_parts(parts: Sequence[CompletionChoice], index: int, *, logprobs: bool) -> CompletionChoice:
    """Returns the sum of a choice's parts. `logprobs` is true if the client requested them."""
    columns = [part.logprobs for part in parts if part.logprobs is not None]
    return CompletionChoice(
        index=index,
        text="".join(part.text for part in parts),
        logprobs=_join_columns(columns) if logprobs else None,
        finish_reason=parts[-1].finish_reason,
        stop_reason=parts[-1].stop_reason,
        token_ids=_join_ids([part.token_ids for part in parts]),
        prompt_token_ids=_join_ids([part.prompt_token_ids for part in parts]),
        prompt_logprobs=next((part.prompt_logprobs for part in parts if part.prompt_logprobs is not UNSET), UNSET),
    )


def _join_columns(columns: Sequence[CompletionLogprobs]) -> CompletionLogprobs:
    return CompletionLogprobs(
        tokens=tuple(chain.from_iterable(each.tokens for each in columns)),
        token_logprobs=tuple(chain.from_iterable(each.token_logprobs for each in columns)),
        top_logprobs=tuple(chain.from_iterable(each.top_logprobs for each in columns)),
        text_offset=tuple(chain.from_iterable(each.text_offset for each in columns)),
    )


def _join_ids(ids: Sequence[tuple[int, ...] | UnsetType]) -> tuple[int, ...] | UnsetType:
    lists = [each for each in ids if each is not UNSET]
    return tuple(chain.from_iterable(lists)) if lists else UNSET
