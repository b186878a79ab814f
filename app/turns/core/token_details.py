"""Collects what the events of a step do not carry, for the detail that the event log stores with them.

A step may have no events, because its text is held back. Its data then wait for the next step with events, so the
details of a turn are complete: their tokens are all generated tokens, in order.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat

from msgspec import structs

from antiphon.app.turn_types.step_detail import PromptDetail, ScoredToken, TokenDetail, TokenDetailRequest, token_text
from antiphon.app.turns.core.inputs import AdmittedInput, FinishedInput, ScoredTokensInput, TokenInput, TokensInput
from antiphon.engine.protocol import TokenLogprob
from antiphon.events.items import Logprob, TopLogprob
from antiphon.harmony.format import ModelFormat
from antiphon.harmony.rendered_prompt import RenderedPrompt
from antiphon.harmony.tools import UnofferedCall


class DetailCollector:
    """Collects the data of one turn's steps."""

    def __init__(self, form: ModelFormat, prompt: RenderedPrompt, request: TokenDetailRequest) -> None:
        self._format, self._prompt, self._request = form, prompt, request
        self._tokens: tuple[int, ...] = ()
        self._logprobs: list[ScoredToken] = []
        self._prompt_detail: PromptDetail | None = None
        self._stop_id: int | None = None
        self._input_tokens = self._cached_tokens = 0
        self._num_dropped = 0
        self._has_tokens_only = True  # since the last detail, as in most steps
        self._unoffered: tuple[UnofferedCall, ...] = ()

    def add_admission(self, step: AdmittedInput) -> None:
        """Adds the admission of the first round's job."""
        self._has_tokens_only = False
        self._input_tokens, self._cached_tokens = step.prompt_tokens or self._prompt.num_tokens, step.cached_tokens
        if self._request.prompt and self._request.prompt_logprobs is None:
            self._prompt_detail = PromptDetail(tokens=self._prompt.tokens, text=self._prompt.text)

    def add_tokens(self, step: TokenInput, offsets: Sequence[int] = ()) -> None:
        """Adds tokens. `offsets`: offset of each token in the output's text, if it is nothing but text."""
        self._tokens += step.tokens
        if type(step) is TokensInput:
            return
        self._has_tokens_only = False
        if isinstance(step, FinishedInput) and step.stop_id is not None:
            self._stop_id = step.stop_id
        if self._request.logprobs and isinstance(step, ScoredTokensInput):
            known: Iterable[int] = offsets or repeat(0)
            self._logprobs += map(self._score_token, step.logprobs, known)

    def add_unoffered(self, calls: Sequence[UnofferedCall], num_earlier: int) -> None:
        """Adds calls of tools that were not offered, in a round before which `num_earlier` tokens were generated."""
        self._has_tokens_only = False
        self._unoffered += tuple(
            structs.replace(each, first_token=num_earlier + each.first_token, end_token=num_earlier + each.end_token)
            for each in calls
        )

    def add_prompt_logprobs(self, step: ScoredTokensInput) -> None:
        """Adds the log-probabilities of the prompt, if this step has them."""
        if not step.prompt_logprobs or self._request.prompt_logprobs is None:
            return
        prompt = self._prompt
        offsets = prompt.offsets or (0,) * len(prompt.tokens)
        scored = tuple(
            ScoredToken(token, self._token_text(token), None, offset)
            if entry is None
            else self._score_token(entry, offset)
            for token, entry, offset in zip(prompt.tokens, step.prompt_logprobs, offsets, strict=True)
        )
        self._prompt_detail = PromptDetail(tokens=prompt.tokens, text=prompt.text, logprobs=scored)
        self._has_tokens_only = False

    def take_detail(
        self, stop_string: str | None, dropped_text: str, at_us: int = 0, inputs: bytes = b""
    ) -> TokenDetail:
        """Returns the data since the last call. `dropped_text`: all white space that no event has carried so far."""
        if self._has_tokens_only and stop_string is None and len(dropped_text) == self._num_dropped:
            detail = TokenDetail(tokens=self._tokens, at_us=at_us, inputs=inputs)
            self._tokens = ()
            return detail
        detail = TokenDetail(
            tokens=self._tokens,
            stop_string=stop_string,
            stop_id=self._stop_id,
            input_tokens=self._input_tokens,
            cached_tokens=self._cached_tokens,
            dropped_text=dropped_text[self._num_dropped :],
            logprobs=tuple(self._logprobs),
            prompt=self._prompt_detail,
            at_us=at_us,
            unoffered=self._unoffered,
            inputs=inputs,
        )
        self._unoffered = ()
        self._tokens, self._prompt_detail, self._num_dropped = (), None, len(dropped_text)
        self._input_tokens = self._cached_tokens = 0
        self._logprobs.clear()
        self._has_tokens_only = self._stop_id is None
        return detail

    def _score_token(self, entry: TokenLogprob, offset: int) -> ScoredToken:
        top = tuple((token, self._token_text(token), min(logprob, 0.0)) for token, logprob in entry.top)
        return ScoredToken(entry.id, self._token_text(entry.id), min(entry.logprob, 0.0), offset, top)

    def _token_text(self, token: int) -> str:
        return token_text(self._format.decode_token(token)[1])


def decode_logprob(form: ModelFormat, entry: TokenLogprob) -> Logprob:
    """Returns a token's log-probability with its text and bytes, as events carry it."""
    text, data = form.decode_token(entry.id)
    top = []
    for top_id, logprob in entry.top:
        top_text, top_data = form.decode_token(top_id)
        top.append(TopLogprob(token=top_text, bytes=tuple(top_data), logprob=min(logprob, 0.0)))
    return Logprob(token=text, bytes=tuple(data), logprob=min(entry.logprob, 0.0), top_logprobs=tuple(top))
