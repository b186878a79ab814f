"""Messages of the engine service, from the details of event logs: token ids and log-probabilities."""

from collections.abc import Iterable, Sequence
from typing import Any

from antiphon.app.errors import from_response
from antiphon.app.grpc.descriptors import message_class
from antiphon.app.turn_types.event_log import LogEntry
from antiphon.app.turn_types.step_detail import ScoredToken
from antiphon.events.response import Response
from antiphon.events.stream import Completed, Failed, Incomplete

TERMINAL_EVENTS = (Completed, Incomplete, Failed)


def engine_message(name: str, **fields: Any) -> Any:
    """Returns a message of the engine service."""
    return message_class(name)(**fields)


class ChoiceReply:
    """Reads the log of one choice. `num_top` and `prompt_top`: candidates to report; None: no log-probabilities."""

    def __init__(self, index: int, *, num_top: int | None, prompt_top: int | None, stop_ids: frozenset[int]) -> None:
        self._index, self._num_top, self._prompt_top, self._stop_ids = index, num_top, prompt_top, stop_ids
        self._tokens: list[int] = []
        self._logprobs: list[ScoredToken] = []
        self._prompt: Sequence[ScoredToken] | None = None
        self._counts = {"prompt_tokens": 0, "cached_tokens": 0}
        self._stop: dict[str, Any] = {}
        self._terminal: Response | None = None

    @property
    def has_ended(self) -> bool:
        """True once the terminal event was read."""
        return self._terminal is not None

    def add_entries(self, entries: Iterable[LogEntry]) -> None:
        """Reads the next entries of the log."""
        for entry in entries:
            detail = entry.detail
            if detail is not None:
                self._tokens += detail.tokens
                self._logprobs += detail.logprobs
                self._counts["prompt_tokens"] = max(self._counts["prompt_tokens"], detail.input_tokens)
                self._counts["cached_tokens"] = max(self._counts["cached_tokens"], detail.cached_tokens)
                if detail.prompt is not None and detail.prompt.logprobs:
                    self._prompt = detail.prompt.logprobs
                if detail.stop_string is not None:
                    self._stop = {"matched_stop_str": detail.stop_string}
                elif detail.stop_id in self._stop_ids:
                    self._stop = {"matched_token_id": detail.stop_id}
            if isinstance(entry.event, TERMINAL_EVENTS):
                self._terminal = entry.event.response
                self._add_usage(entry.event.response)

    def build_chunk(self) -> Any | None:
        """Returns a message with the tokens read since the last one; None without tokens."""
        if not self._tokens:
            return None
        chunk = engine_message("GenerateStreamChunk", token_ids=self._tokens, **self._shared_fields())
        if not self.has_ended:  # the last message repeats them
            self._tokens, self._logprobs, self._prompt = [], [], None
        return engine_message("GenerateResponse", chunk=chunk)

    def build_complete(self) -> Any:
        """Returns the message that ends the choice. Raises `ApiError` if its turn failed."""
        response = self._terminal
        if (error := from_response(response)) is not None:
            raise error
        fields = self._shared_fields() | self._stop
        complete = engine_message(
            "GenerateComplete", output_ids=self._tokens, finish_reason=_finish_reason(response), **fields
        )
        return engine_message("GenerateResponse", complete=complete)

    def _add_usage(self, response: Response) -> None:
        if response.usage is not None:
            self._counts["prompt_tokens"] = response.usage.input_tokens
            self._counts["cached_tokens"] = response.usage.input_tokens_details.cached_tokens

    def _shared_fields(self) -> dict[str, Any]:
        fields = {"index": self._index, "completion_tokens": len(self._tokens), **self._counts}
        if self._num_top is not None and self._logprobs:
            fields["output_logprobs"] = _output_logprobs(self._logprobs, self._num_top)
        if self._prompt_top is not None and self._prompt is not None:
            fields["input_logprobs"] = _input_logprobs(self._prompt, self._prompt_top)
        return fields


def _finish_reason(response: Response | None) -> str:
    if response is None or response.status == "cancelled":
        return "abort"
    return "length" if response.status == "incomplete" else "stop"


def _output_logprobs(tokens: Sequence[ScoredToken], num_top: int) -> Any:
    return engine_message(
        "OutputLogProbs",
        token_logprobs=[token.logprob or 0.0 for token in tokens],
        token_ids=[token.id for token in tokens],
        top_logprobs=_top_logprobs(tokens, num_top) if num_top else [],
    )


def _input_logprobs(tokens: Sequence[ScoredToken], num_top: int) -> Any:
    values = [
        engine_message("InputTokenLogProb", **({} if token.logprob is None else {"value": token.logprob}))
        for token in tokens
    ]
    return engine_message(
        "InputLogProbs",
        token_logprobs=values,
        token_ids=[token.id for token in tokens],
        top_logprobs=_top_logprobs(tokens, num_top) if num_top else [],
    )


def _top_logprobs(tokens: Sequence[ScoredToken], num_top: int) -> list[Any]:
    return [
        engine_message(
            "TopLogProbs",
            values=[logprob for _, _, logprob in token.top[:num_top]],
            token_ids=[token_id for token_id, _, _ in token.top[:num_top]],
        )
        for token in tokens
    ]
