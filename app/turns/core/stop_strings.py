"""Stop strings: matched in message text only, never in reasoning, arguments or other segments.

Only a tail that could be the start of a stop string is held back, until the next text decides. With the stop string
"END", the text "abcEN" releases "abc" and holds "EN"; then "D" ends the turn, and "X" releases "ENX".
Blanks at the start of a message are held until other text follows, since blanks before a call or an end are not output:
a stop string in them ends nothing. Log-probabilities stay with their text. This module knows neither the machine nor
the engine.
"""

from collections.abc import Sequence

from antiphon.state.segments import PlacedLogprob, Say, Segment


class StopStringFilter:
    """Filters the segments of one turn. `matched` is the stop string that was found, or None.

    `verbatim`: every blank is output, so a stop string may be in those at the start, too.
    """

    def __init__(self, stops: Sequence[str], *, verbatim: bool = False) -> None:
        self.stops = tuple(stop for stop in stops if stop)
        self._held = Say("")
        self._verbatim = verbatim
        self._has_text = verbatim
        """True once the current message has text in which a stop string counts."""
        self.matched: str | None = None

    def filter_segment(self, segment: Segment) -> list[Segment]:
        """Returns the segments that can be emitted now. On a match, that is the text before it; afterwards, nothing."""
        if not self.stops:
            return [segment]
        if self.matched is not None:
            return []
        if not isinstance(segment, Say):
            return [*self.release_held(), segment]
        if self._held.text and segment.phase != self._held.phase:
            return [*self.release_held(), *self.filter_segment(segment)]
        text = _join_text(self._held, segment)
        self._has_text = self._has_text or bool(text.text.strip())
        if not self._has_text:
            self._held = text
            return []
        return self._find_match(text)

    def release_held(self) -> list[Segment]:
        """Returns the held text, which turned out not to start a stop string. After a match, returns nothing."""
        held, self._held, self._has_text = self._held, Say(""), self._verbatim
        return [held] if held.text and self.matched is None else []

    def _find_match(self, text: Say) -> list[Segment]:
        # The stop string that is complete first wins: in streamed text, a longer one cannot be foreseen.
        matches = [(start + len(stop), start, stop) for stop in self.stops if (start := text.text.find(stop)) >= 0]
        if matches:
            _, end, self.matched = min(matches)
        else:
            end = len(text.text) - self._hold_back(text.text)
        self._held = _text_after(text, end)
        return [released] if (released := _text_before(text, end)).text else []

    def _hold_back(self, text: str) -> int:
        """Returns the length of the longest tail of `text` that begins a stop string."""
        longest = min(len(text), max(map(len, self.stops)) - 1)
        return next((n for n in range(longest, 0, -1) if any(stop.startswith(text[-n:]) for stop in self.stops)), 0)


def _join_text(first: Say, second: Say) -> Say:
    if not first.text:
        return second
    shifted = tuple(PlacedLogprob(scored.offset + len(first.text), scored.logprob) for scored in second.logprobs)
    return Say(first.text + second.text, second.phase, first.logprobs + shifted)


def _text_before(text: Say, at: int) -> Say:
    return Say(text.text[:at], text.phase, tuple(scored for scored in text.logprobs if scored.offset < at))


def _text_after(text: Say, at: int) -> Say:
    logprobs = tuple(
        PlacedLogprob(scored.offset - at, scored.logprob) for scored in text.logprobs if scored.offset >= at
    )
    return Say(text.text[at:], text.phase, logprobs)
