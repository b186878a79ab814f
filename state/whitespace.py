"""Splits text, with its log-probabilities, into leading white space, body and trailing white space."""

from msgspec import Struct

from antiphon.events.items import Logprob
from antiphon.state.segments import PlacedLogprob


class TextPiece(Struct, frozen=True, gc=False):
    """A part of a segment's text, with the log-probabilities of the tokens that begin in it."""

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
    """Returns the non-empty pieces of `text` in order, at most three, each with a flag for blanks (`str.isspace`).

    For example, `"  Hi "` becomes `"  "` (blank), `"Hi"` and `" "` (blank). `keep_leading` leaves leading white space
    in the body if there is a body. A log-probability belongs to the piece that holds its token's first character, and
    is not divided.
    """
    body = text.rstrip() if keep_leading else text.strip()
    if len(body) == len(text) and body:
        return [(TextPiece(text, tuple(placed.logprob for placed in logprobs) if logprobs else ()), False)]
    body_start = 0 if keep_leading and body else len(text) - len(text.lstrip())
    if body_start == len(text):
        bounds = [(0, len(text), True)]
    else:
        body_end = body_start + len(body)
        bounds = [(0, body_start, True), (body_start, body_end, False), (body_end, len(text), True)]
    return [
        (TextPiece(text[start:end], _logprobs_between(logprobs, start, end) if logprobs else ()), blank)
        for start, end, blank in bounds
        if start < end
    ]


def _logprobs_between(logprobs: tuple[PlacedLogprob, ...], start: int, end: int) -> tuple[Logprob, ...]:
    return tuple(placed.logprob for placed in logprobs if start <= placed.offset < end)
