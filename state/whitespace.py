"""Cutting text into leading white space, body and trailing white space, log-probabilities and all."""

from msgspec import Struct

from antiphon.events.items import Logprob
from antiphon.state.segments import PlacedLogprob


class TextPiece(Struct, frozen=True, gc=False):
    """Part of a segment's text with the log-probabilities of the tokens that begin in it."""

    text: str
    logprobs: tuple[Logprob, ...] = ()

    def __add__(self, other: object) -> "TextPiece":
        if not isinstance(other, TextPiece):
            return NotImplemented
        if self is EMPTY_PIECE:
            return other
        return TextPiece(self.text + other.text, self.logprobs + other.logprobs)


EMPTY_PIECE = TextPiece("")


def split_whitespace(
    text: str, logprobs: tuple[PlacedLogprob, ...] = (), *, keep_leading: bool = False
) -> list[tuple[TextPiece, bool]]:
    """The non-empty pieces of `text` in order, each with whether it is blank (`str.isspace`): at most three.

    `joined`: a leading blank is part of the body, where there is one. A log-probability goes with the piece in which
    its token's first character stands, undivided.
    """
    body = text.rstrip() if keep_leading else text.strip()
    if len(body) == len(text) and body:
        return [(TextPiece(text, tuple(s.logprob for s in logprobs) if logprobs else ()), False)]
    body_at = 0 if keep_leading and body else len(text) - len(text.lstrip())
    if body_at == len(text):
        bounds = [(0, len(text), True)]
    else:
        tail_at = body_at + len(body)
        bounds = [(0, body_at, True), (body_at, tail_at, False), (tail_at, len(text), True)]
    return [
        (TextPiece(text[start:end], _logprobs_between(logprobs, start, end) if logprobs else ()), blank)
        for start, end, blank in bounds
        if start < end
    ]


def _logprobs_between(logprobs: tuple[PlacedLogprob, ...], start: int, end: int) -> tuple[Logprob, ...]:
    return tuple(s.logprob for s in logprobs if start <= s.offset < end)
