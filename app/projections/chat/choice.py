"""Fold of one choice's log, entry by entry, into the parts of its chunks. Pure: it uses no socket.

Deltas come from events. Token ids, the stop and the names of scored tokens come from the details, of which each step
has one, with its last event. If the request asks for them, the deltas of a step wait for its detail.
"""

from collections import deque

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.app.projections.chat.fold import ChatFold
from antiphon.app.projections.chat.schema import ChatDelta, ChatLogprobs, ChunkChoice
from antiphon.app.turn_types.event_log import LogEntry
from antiphon.app.turn_types.reply_form import ChatForm
from antiphon.app.turn_types.step_detail import PromptDetail, ScoredToken, TokenDetail, token_text
from antiphon.events.items import Logprob
from antiphon.events.response import Response

_Addition = tuple[ChatDelta, tuple[Logprob, ...]]


class ChoiceFold:
    """Fold of choice number `index`."""

    def __init__(self, index: int, form: ChatForm) -> None:
        self.prompt: PromptDetail | None = None
        self._index, self._options = index, form.options
        self._fold = ChatFold(
            as_function_call=form.as_function_call,
            reasoning_field=form.reasoning_field,
            num_echoed=len(form.options.echo_text),
        )
        self._waits = form.options.token_ids or form.options.tokens_as_ids
        self._waiting: list[_Addition] = []
        self._token_ids: tuple[int, ...] = ()
        self._scored: deque[ScoredToken] = deque()
        self._sum_logprobs, self._num_logprobs = 0.0, 0

    @property
    def terminal(self) -> Response | None:
        """The response once it has ended."""
        return self._fold.terminal

    @property
    def mean_logprob(self) -> float:
        """Mean log-probability of the tokens."""
        return self._sum_logprobs / self._num_logprobs if self._num_logprobs else 0.0

    def begin(self) -> list[ChunkChoice]:
        """Returns the parts before the first event: the role, and the text that is repeated."""
        parts = [ChunkChoice(index=self._index, delta=ChatDelta(role="assistant", content=""))]
        if self._options.echo_text:
            parts.append(ChunkChoice(index=self._index, delta=ChatDelta(content=self._options.echo_text)))
        return parts

    def feed_entry(self, entry: LogEntry) -> list[ChunkChoice]:
        """Returns the parts that end with this entry. The last part of a choice that has not failed has its ending."""
        addition, detail = self._fold.feed_event(entry.event), entry.detail
        if detail is not None:
            self._add_detail(detail)
        if not self._waits:
            if addition is not None:
                return [self._build_part(addition)]
            return self._end(detail) if self._fold.terminal is not None else []
        if addition is not None:
            self._waiting.append(addition)
        if detail is None and self._fold.terminal is None:
            return []
        parts = [self._build_part(waiting) for waiting in self._waiting]
        self._waiting.clear()
        if self._fold.terminal is not None:
            parts += self._end(detail)
        return self._with_token_ids(parts)

    def _add_detail(self, detail: TokenDetail) -> None:
        if detail.prompt is not None:
            self.prompt = detail.prompt
        if self._waits:
            self._token_ids += detail.tokens
            self._scored.extend(detail.logprobs)
        self._sum_logprobs += sum(token.logprob or 0.0 for token in detail.logprobs)
        self._num_logprobs += len(detail.logprobs)

    def _build_part(self, addition: _Addition) -> ChunkChoice:
        delta, logprobs = addition
        if not logprobs:
            return ChunkChoice(index=self._index, delta=delta)
        if self._options.tokens_as_ids:
            logprobs = tuple(map(self._name_by_id, logprobs))
        return ChunkChoice(index=self._index, delta=delta, logprobs=ChatLogprobs(content=logprobs))

    def _name_by_id(self, entry: Logprob) -> Logprob:
        """Returns the entry with ids in place of texts. Its token is the next one of the details that equals it."""
        text = token_text(bytes(entry.bytes))
        while self._scored:
            token = self._scored.popleft()
            if token.logprob == entry.logprob and token.text == text:
                pairs = zip(entry.top_logprobs, token.top, strict=True)
                top = tuple(msgspec.structs.replace(each, token=f"token_id:{scored[0]}") for each, scored in pairs)
                return msgspec.structs.replace(entry, token=f"token_id:{token.id}", top_logprobs=top)
        return entry

    def _end(self, detail: TokenDetail | None) -> list[ChunkChoice]:
        """Returns the last parts; none if the choice has failed, which a chat completion cannot express."""
        response = self._fold.terminal
        if response is None or response.status == "failed":
            return []
        stop_string = detail.stop_string if detail is not None else None
        ending = ChunkChoice(
            index=self._index,
            delta=ChatDelta(),
            finish_reason=self._fold.finish_reason,
            stop_reason=stop_string if stop_string is not None else self._stop_id(detail),
        )
        if not (self._options.include_stop and stop_string):
            return [ending]
        return [ChunkChoice(index=self._index, delta=ChatDelta(content=stop_string)), ending]

    def _stop_id(self, detail: TokenDetail | None) -> int | None:
        return detail.stop_id if detail is not None and detail.stop_id in self._options.stop_ids else None

    def _with_token_ids(self, parts: list[ChunkChoice]) -> list[ChunkChoice]:
        """Returns the parts, the last of which has the ids of all tokens since the last one that had some."""
        token_ids: tuple[int, ...] | UnsetType = self._token_ids if self._options.token_ids else UNSET
        if not parts or not token_ids:
            return parts
        self._token_ids = ()
        return [*parts[:-1], msgspec.structs.replace(parts[-1], token_ids=token_ids)]
