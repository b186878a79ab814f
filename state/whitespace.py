"""Cutting text into leading white space, body and trailing white space, log-probabilities and all."""

from msgspec import Struct

from antiphon.events.items import Logprob
from antiphon.state.segments import Scored


class Piece(Struct, frozen=True, gc=False):
    """Part of a segment's text with the log-probabilities of the tokens that begin in it."""

    text: str
    logprobs: tuple[Logprob, ...] = ()

    def __add__(self, other: object) -> "Piece":
        if not isinstance(other, Piece):
            return NotImplemented
        if self is EMPTY:
            return other
        return Piece(self.text + other.text, self.logprobs + other.logprobs)


EMPTY = Piece("")


def split(text: str, scored: tuple[Scored, ...] = (), *, joined: bool = False) -> list[tuple[Piece, bool]]:
    """The non-empty pieces of `text` in order, each with whether it is blank (`str.isspace`): at most three.

    `joined`: a leading blank is part of the body, where there is one. A log-probability goes with the piece in which
    its token's first character stands, undivided.
    """
    body = text.rstrip() if joined else text.strip()
    if len(body) == len(text) and body:
        return [(Piece(text, tuple(s.logprob for s in scored) if scored else ()), False)]
    body_at = 0 if joined and body else len(text) - len(text.lstrip())
    if body_at == len(text):
        bounds = [(0, len(text), True)]
    else:
        tail_at = body_at + len(body)
        bounds = [(0, body_at, True), (body_at, tail_at, False), (tail_at, len(text), True)]
    return [
        (Piece(text[start:end], _within(scored, start, end) if scored else ()), blank)
        for start, end, blank in bounds
        if start < end
    ]


def _within(scored: tuple[Scored, ...], start: int, end: int) -> tuple[Logprob, ...]:
    return tuple(s.logprob for s in scored if start <= s.at < end)
