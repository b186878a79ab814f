"""Stop strings: matched on what is said to the user, never on reasoning, arguments or anything else.

A tail that could be the beginning of a stop string is held back until it is known; nothing more is. Log-probabilities
stay with their text. This module knows neither the machine nor the engine.
"""

from collections.abc import Sequence

from antiphon.state.segments import PlacedLogprob, Say, Segment


class StopStringFilter:
    """Watches one turn's segments. `matched` is the stop string that was found, once it was."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = Say("")
        self.matched: str | None = None

    def filter_segment(self, segment: Segment) -> list[Segment]:
        """What may be said now. After a match: the text before it, and from then on nothing."""
        if not self._stops:
            return [segment]
        if self.matched is not None:
            return []
        if not isinstance(segment, Say):
            return [*self.release_held(), segment]
        if self._held.text and segment.phase != self._held.phase:
            return [*self.release_held(), *self.filter_segment(segment)]
        return self._find_match(_join_text(self._held, segment))

    def release_held(self) -> list[Segment]:
        """What was held back turned out to be text."""
        held, self._held = self._held, Say("")
        return [held] if held.text and self.matched is None else []

    def _find_match(self, said: Say) -> list[Segment]:
        # The one that is complete first wins, since text that comes piece by piece cannot know of a longer one.
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := said.text.find(stop)) >= 0]
        if found:
            _, at, self.matched = min(found)
        else:
            at = len(said.text) - self._hold_back(said.text)
        self._held = _text_after(said, at)
        return [head] if (head := _text_before(said, at)).text else []

    def _hold_back(self, text: str) -> int:
        """The length of the longest tail of `text` that begins a stop string."""
        longest = min(len(text), max(map(len, self._stops)) - 1)
        return next((n for n in range(longest, 0, -1) if any(stop.startswith(text[-n:]) for stop in self._stops)), 0)


def _join_text(first: Say, second: Say) -> Say:
    if not first.text:
        return second
    moved = tuple(PlacedLogprob(scored.offset + len(first.text), scored.logprob) for scored in second.logprobs)
    return Say(first.text + second.text, second.phase, first.logprobs + moved)


def _text_before(said: Say, at: int) -> Say:
    return Say(said.text[:at], said.phase, tuple(scored for scored in said.logprobs if scored.offset < at))


def _text_after(said: Say, at: int) -> Say:
    rest = tuple(PlacedLogprob(scored.offset - at, scored.logprob) for scored in said.logprobs if scored.offset >= at)
    return Say(said.text[at:], said.phase, rest)
