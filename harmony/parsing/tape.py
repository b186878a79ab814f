"""The text of one answer, read like a tape: looked at ahead of time, taken or skipped, each character once.

Whoever reads is a generator: it yields where it has to wait for more text, and so is written as if all of it were
there. Every decision waits until the text that is there settles it, which is why it cannot matter how the text was cut.
The tape matches markers and holds back half of one; it does not know what any of them means.
"""

import re
from bisect import bisect_left
from collections.abc import Generator, Iterable, Sequence
from functools import lru_cache
from typing import TypeVar

from antiphon.events.items import Logprob
from antiphon.harmony.tokens.detokenizer import CONTROLS, Alphabet
from antiphon.state.segments import PlacedLogprob

T = TypeVar("T")
Wait = Generator[None, None, T]
Mark = tuple[int, int, int, int]
_BLANKS = re.compile(r"\s*")


class Malformed(Exception):  # noqa: N818 - it is not an error: models write such text
    """The text is not what was expected here."""


class TooLong(Malformed):
    """It was waited for long enough."""


class Stops:
    """Literal texts to look for; where two begin at one place, the longer wins. `controls`: and any control token."""

    def __init__(self, literals: Iterable[str], *, controls: bool = False) -> None:
        self.controls = controls
        self.literals = sorted(dict.fromkeys(literals), key=len, reverse=True)
        self.longest = len(self.literals[0]) if self.literals else 0
        control = [f"[{CONTROLS}]"] if controls else []
        self.whole = re.compile("|".join([*map(re.escape, self.literals), *control]) or r"(?!)")
        heads = "".join(map(re.escape, sorted({literal[0] for literal in self.literals})))
        self.begun = re.compile(f"[{heads}{CONTROLS if controls else ''}]" if heads or controls else r"(?!)")
        halves = (_halves(literal) for literal in self.literals if len(literal) > 1)
        self.half = re.compile(f"(?:{'|'.join(halves) or '(?!)'})\\Z")


@lru_cache(maxsize=1024)
def stops_at(*literals: str, controls: bool = False) -> Stops:
    """These, made once: it is the same few texts that are looked for in every answer and in every value of a call."""
    return Stops(literals, controls=controls)


def _halves(literal: str) -> str:
    """A pattern for every proper beginning of a text."""
    pattern = ""
    for letter in reversed(literal[1:-1]):
        pattern = f"(?:{re.escape(letter)}{pattern})?"
    return re.escape(literal[0]) + pattern


class Tape:
    """See the module. `shown` + `spent` = `read` once all is read: the ledger of the characters the model wrote."""

    def __init__(self, alphabet: Alphabet) -> None:
        self.alphabet = alphabet
        self.text = ""
        self.pos = 0
        self.ended = False
        self.natural = False
        self.read = self.shown = self.spent = 0
        self._base = 0  # the place in the stream of text[0]
        self._starts: list[int] = []  # the place in the stream at which each token begins
        self._logprobs: list[Logprob | None] = []  # one for each of these, once `_scored`
        self._scored = False  # whether any log-probability came: most turns have none
        self._token = 0  # the first token that begins at or after pos
        self._pinned = False
        self._limit = 0  # no mark may be left further behind than this place; 0: no limit

    def feed(self, text: str, starts: Sequence[int] = (), logprobs: Sequence[Logprob | None] = ()) -> None:
        """More text has come."""
        if not self._pinned:
            self._base += self.pos
            self.text = self.text[self.pos :]
            del self._starts[: self._token]
            if self._scored:
                del self._logprobs[: self._token]
            self.pos = self._token = 0
        self.text += text
        self.read += len(self.alphabet.written(text))
        if logprobs and not self._scored:
            self._scored = True
            self._logprobs = [None] * len(self._starts)
        if self._scored:
            self._logprobs += logprobs or [None] * len(starts)
        self._starts += starts

    def mark(self, limit: int = 0) -> Mark:
        """Remember this place; until `release`, the text from here on is kept, and may be skipped up to a limit."""
        self._pinned = True
        self._limit = self.pos + limit if limit else 0
        return self.place()

    def place(self) -> Mark:
        """Where the tape is, while another mark keeps the text."""
        return self.pos, self._token, self.shown, self.spent

    def rewind(self, mark: Mark) -> None:
        """Go back, as if nothing had been read since."""
        self.pos, self._token, self.shown, self.spent = mark

    def release(self) -> None:
        """No mark is needed any more."""
        self._pinned = False
        self._limit = 0

    # Looking: these do not move.

    def more(self) -> Wait[bool]:
        """Wait for at least one character; False at the end."""
        while self.pos == len(self.text):
            if self.ended:
                return False
            yield
        return True

    def have(self, count: int) -> Wait[bool]:
        """Wait for that many characters; False if the text ends before."""
        while len(self.text) - self.pos < count:
            if self.ended:
                return False
            yield
        return True

    def peek(self, count: int = 1) -> str:
        """The next characters, as far as they are there."""
        return self.text[self.pos : self.pos + count]

    def ahead(self, count: int) -> str:
        """The next characters as the model wrote them."""
        return self.alphabet.written(self.peek(count))

    def clear(self, stops: Stops) -> int:
        """How many characters from here on certainly belong to none of the texts looked for."""
        # Beyond the limit nobody goes, so nobody has to look there.
        end = min(len(self.text), self._limit + stops.longest) if self._limit else len(self.text)
        if stops.begun.search(self.text, self.pos, end) is None:  # as with most tokens
            return end - self.pos
        found = stops.whole.search(self.text, self.pos, end)
        if found is None and end < len(self.text):
            return end - self.pos
        if found is None and not self.ended:
            found = stops.half.search(self.text, max(self.pos, len(self.text) - stops.longest + 1))
        elif found is not None and not self.ended and found.start() > self.pos:
            # A longer text may have begun earlier and still be half there.
            half = stops.half.search(self.text, max(self.pos, len(self.text) - stops.longest + 1))
            found = half if half is not None and half.start() < found.start() else found
        return (len(self.text) if found is None else found.start()) - self.pos

    def at(self, stops: Stops) -> Wait[str | None]:
        """Which of the texts looked for stands here."""
        for literal in stops.literals:
            if (yield from self.sees(literal)):
                return literal
        return self.peek() if stops.controls and self.controlled() else None

    def sees(self, literal: str, *, cut: bool = False) -> Wait[bool]:
        """Whether this text stands here; waits while it may. `cut`: or its beginning, and the answer ends in it."""
        while True:
            here = self.text[self.pos : self.pos + len(literal)]
            if len(here) == len(literal) or not literal.startswith(here):
                return here == literal
            if self.ended:
                return cut and here != ""
            yield

    # Moving: each character is either taken, as payload, or skipped.

    def take(self, count: int) -> str:
        """Take payload: the text as the model wrote it."""
        text = self.alphabet.written(self.text[self.pos : self.pos + count])
        self.shown += len(text)
        self._advance(count)
        return text

    def scored(self, count: int) -> tuple[str, tuple[PlacedLogprob, ...]]:
        """Take payload together with the log-probabilities of the tokens that begin in it."""
        if not self._scored:
            return self.take(count), ()
        base, last, first, offset = self._base, self.pos, self._token, 0
        text = self.take(count)
        entries = []
        for token in range(first, self._token):
            logprob, place = self._logprobs[token], self._starts[token] - base
            offset += len(self.alphabet.written(self.text[last:place]))
            last = place
            if logprob is not None and not CONTROLS[0] <= self.text[place] <= CONTROLS[-1]:
                entries.append(PlacedLogprob(offset, logprob))
        return text, tuple(entries)

    def skip(self, count: int) -> None:
        """Pass over characters that are frame, or that are said in other words. Raises `Malformed` beyond the limit."""
        if 0 < self._limit < self.pos + count:
            raise TooLong
        self.spent += len(self.alphabet.written(self.text[self.pos : self.pos + count]))
        self._advance(count)

    def tokens_in(self, count: int) -> int:
        """How many tokens begin in the next characters."""
        return bisect_left(self._starts, self._base + self.pos + count, self._token) - self._token

    def _advance(self, count: int) -> None:
        self.pos += count
        self._token = bisect_left(self._starts, self._base + self.pos, self._token)

    # Skipping what is expected.

    def literal(self, literal: str, *, cut: bool = False) -> Wait[bool]:
        """Skip this text if it stands here; `cut`: also its beginning, if the answer ends in it."""
        if not (yield from self.sees(literal, cut=cut)):
            return False
        self.skip(min(len(literal), len(self.text) - self.pos))
        return True

    def controlled(self) -> bool:
        """Whether a control token stands here."""
        return CONTROLS[0] <= self.peek() <= CONTROLS[-1]

    def expect(self, literal: str) -> Wait[None]:
        """Skip this text. Raises `Malformed` if it is not here."""
        if not (yield from self.literal(literal)):
            raise Malformed(literal)

    def blanks(self) -> Wait[None]:
        """Skip white space."""
        while (yield from self.more()):
            found = _BLANKS.match(self.text, self.pos)
            self.skip(found.end() - self.pos if found else 0)
            if self.pos < len(self.text):
                return

    def until(self, stops: Stops, longest: int = 256) -> Wait[str]:
        """Skip and return the text up to one of these, which is not skipped. Raises `Malformed`."""
        text = ""
        while (yield from self.more()):
            if count := self.clear(stops):
                count = min(count, longest + 1 - len(text))
                text += self.peek(count)
                self.skip(count)
            elif (yield from self.at(stops)) is not None:
                return text
            if len(text) > longest:
                break
        raise Malformed(text)

    def word(self, end: str, longest: int = 128) -> Wait[str]:
        """Skip and return the text up to an end on the same line, and skip the end. Raises `Malformed`."""
        while True:
            ahead = self.text[self.pos : self.pos + longest + len(end)]
            stop = ahead.find(end)
            line = ahead if stop < 0 else ahead[:stop]
            over = len(ahead) >= longest + len(end)
            if "\n" in line or not line.isprintable() or (stop < 0 and (over or self.ended)):
                raise Malformed(line)
            if stop >= 0:
                self.skip(stop + len(end))
                return line
            yield
