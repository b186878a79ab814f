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
from antiphon.harmony.tokens.detokenizer import CONTROL_RANGE, MarkerAlphabet
from antiphon.state.segments import PlacedLogprob

ParsedT = TypeVar("ParsedT")
Parser = Generator[None, None, ParsedT]
TapeMark = tuple[int, int, int, int]
_WHITESPACE = re.compile(r"\s*")


class MalformedText(Exception):  # noqa: N818 - it is not an error: models write such text
    """The text is not what was expected here."""


class HoldBackExceeded(MalformedText):
    """It was waited for long enough."""


class Literals:
    """Literal texts to look for; where two begin at one place, the longer wins. `controls`: and any control token."""

    def __init__(self, literals: Iterable[str], *, controls: bool = False) -> None:
        self.controls = controls
        self.literals = sorted(dict.fromkeys(literals), key=len, reverse=True)
        self.longest = len(self.literals[0]) if self.literals else 0
        control = [f"[{CONTROL_RANGE}]"] if controls else []
        self.whole = re.compile("|".join([*map(re.escape, self.literals), *control]) or r"(?!)")
        heads = "".join(map(re.escape, sorted({literal[0] for literal in self.literals})))
        self.begun = re.compile(f"[{heads}{CONTROL_RANGE if controls else ''}]" if heads or controls else r"(?!)")
        halves = (_prefix_pattern(literal) for literal in self.literals if len(literal) > 1)
        self.half = re.compile(f"(?:{'|'.join(halves) or '(?!)'})\\Z")


@lru_cache(maxsize=1024)
def literals(*literals: str, controls: bool = False) -> Literals:
    """These, made once: it is the same few texts that are looked for in every answer and in every value of a call."""
    return Literals(literals, controls=controls)


def _prefix_pattern(literal: str) -> str:
    """A pattern for every proper beginning of a text."""
    pattern = ""
    for letter in reversed(literal[1:-1]):
        pattern = f"(?:{re.escape(letter)}{pattern})?"
    return re.escape(literal[0]) + pattern


class Tape:
    """See the module. `shown` + `spent` = `read` once all is read: the ledger of the characters the model wrote."""

    def __init__(self, alphabet: MarkerAlphabet) -> None:
        self.alphabet = alphabet
        self.text = ""
        self.index = 0
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
            self._base += self.index
            self.text = self.text[self.index :]
            del self._starts[: self._token]
            if self._scored:
                del self._logprobs[: self._token]
            self.index = self._token = 0
        self.text += text
        self.read += len(self.alphabet.original_text(text))
        if logprobs and not self._scored:
            self._scored = True
            self._logprobs = [None] * len(self._starts)
        if self._scored:
            self._logprobs += logprobs or [None] * len(starts)
        self._starts += starts

    def mark(self, limit: int = 0) -> TapeMark:
        """Remember this place; until `release`, the text from here on is kept, and may be skipped up to a limit."""
        self._pinned = True
        self._limit = self.index + limit if limit else 0
        return self.position()

    def position(self) -> TapeMark:
        """Where the tape is, while another mark keeps the text."""
        return self.index, self._token, self.shown, self.spent

    def rewind(self, mark: TapeMark) -> None:
        """Go back, as if nothing had been read since."""
        self.index, self._token, self.shown, self.spent = mark

    def release(self) -> None:
        """No mark is needed any more."""
        self._pinned = False
        self._limit = 0

    # Looking: these do not move.

    def wait_more(self) -> Parser[bool]:
        """Wait for at least one character; False at the end."""
        while self.index == len(self.text):
            if self.ended:
                return False
            yield
        return True

    def wait_count(self, count: int) -> Parser[bool]:
        """Wait for that many characters; False if the text ends before."""
        while len(self.text) - self.index < count:
            if self.ended:
                return False
            yield
        return True

    def peek(self, count: int = 1) -> str:
        """The next characters, as far as they are there."""
        return self.text[self.index : self.index + count]

    def peek_original(self, count: int) -> str:
        """The next characters as the model wrote them."""
        return self.alphabet.original_text(self.peek(count))

    def count_clear(self, stops: Literals) -> int:
        """How many characters from here on certainly belong to none of the texts looked for."""
        # Beyond the limit nobody goes, so nobody has to look there.
        end = min(len(self.text), self._limit + stops.longest) if self._limit else len(self.text)
        if stops.begun.search(self.text, self.index, end) is None:  # as with most tokens
            return end - self.index
        found = stops.whole.search(self.text, self.index, end)
        if found is None and end < len(self.text):
            return end - self.index
        if found is None and not self.ended:
            found = stops.half.search(self.text, max(self.index, len(self.text) - stops.longest + 1))
        elif found is not None and not self.ended and found.start() > self.index:
            # A longer text may have begun earlier and still be half there.
            half = stops.half.search(self.text, max(self.index, len(self.text) - stops.longest + 1))
            found = half if half is not None and half.start() < found.start() else found
        return (len(self.text) if found is None else found.start()) - self.index

    def match_literal(self, stops: Literals) -> Parser[str | None]:
        """Which of the texts looked for stands here."""
        for literal in stops.literals:
            if (yield from self.stands_here(literal)):
                return literal
        return self.peek() if stops.controls and self.at_control_token() else None

    def stands_here(self, literal: str, *, cut: bool = False) -> Parser[bool]:
        """Whether this text stands here; waits while it may. `cut`: or its beginning, and the answer ends in it."""
        while True:
            here = self.text[self.index : self.index + len(literal)]
            if len(here) == len(literal) or not literal.startswith(here):
                return here == literal
            if self.ended:
                return cut and here != ""
            yield

    # Moving: each character is either taken, as payload, or skipped.

    def take(self, count: int) -> str:
        """Take payload: the text as the model wrote it."""
        text = self.alphabet.original_text(self.text[self.index : self.index + count])
        self.shown += len(text)
        self._advance(count)
        return text

    def take_with_logprobs(self, count: int) -> tuple[str, tuple[PlacedLogprob, ...]]:
        """Take payload together with the log-probabilities of the tokens that begin in it."""
        if not self._scored:
            return self.take(count), ()
        base, last, first, offset = self._base, self.index, self._token, 0
        text = self.take(count)
        entries = []
        for token in range(first, self._token):
            logprob, place = self._logprobs[token], self._starts[token] - base
            offset += len(self.alphabet.original_text(self.text[last:place]))
            last = place
            if logprob is not None and not CONTROL_RANGE[0] <= self.text[place] <= CONTROL_RANGE[-1]:
                entries.append(PlacedLogprob(offset, logprob))
        return text, tuple(entries)

    def skip(self, count: int) -> None:
        """Pass over characters that are frame, or that are said in other words. Raises `Malformed` beyond the limit."""
        if 0 < self._limit < self.index + count:
            raise HoldBackExceeded
        self.spent += len(self.alphabet.original_text(self.text[self.index : self.index + count]))
        self._advance(count)

    def count_tokens(self, count: int) -> int:
        """How many tokens begin in the next characters."""
        return bisect_left(self._starts, self._base + self.index + count, self._token) - self._token

    def _advance(self, count: int) -> None:
        self.index += count
        self._token = bisect_left(self._starts, self._base + self.index, self._token)

    # Skipping what is expected.

    def skip_literal(self, literal: str, *, cut: bool = False) -> Parser[bool]:
        """Skip this text if it stands here; `cut`: also its beginning, if the answer ends in it."""
        if not (yield from self.stands_here(literal, cut=cut)):
            return False
        self.skip(min(len(literal), len(self.text) - self.index))
        return True

    def at_control_token(self) -> bool:
        """Whether a control token stands here."""
        return CONTROL_RANGE[0] <= self.peek() <= CONTROL_RANGE[-1]

    def expect(self, literal: str) -> Parser[None]:
        """Skip this text. Raises `Malformed` if it is not here."""
        if not (yield from self.skip_literal(literal)):
            raise MalformedText(literal)

    def skip_whitespace(self) -> Parser[None]:
        """Skip white space."""
        while (yield from self.wait_more()):
            found = _WHITESPACE.match(self.text, self.index)
            self.skip(found.end() - self.index if found else 0)
            if self.index < len(self.text):
                return

    def skip_until(self, stops: Literals, longest: int = 256) -> Parser[str]:
        """Skip and return the text up to one of these, which is not skipped. Raises `Malformed`."""
        text = ""
        while (yield from self.wait_more()):
            if count := self.count_clear(stops):
                count = min(count, longest + 1 - len(text))
                text += self.peek(count)
                self.skip(count)
            elif (yield from self.match_literal(stops)) is not None:
                return text
            if len(text) > longest:
                break
        raise MalformedText(text)

    def skip_word(self, end: str, longest: int = 128) -> Parser[str]:
        """Skip and return the text up to an end on the same line, and skip the end. Raises `Malformed`."""
        while True:
            ahead = self.text[self.index : self.index + longest + len(end)]
            stop = ahead.find(end)
            line = ahead if stop < 0 else ahead[:stop]
            over = len(ahead) >= longest + len(end)
            if "\n" in line or not line.isprintable() or (stop < 0 and (over or self.ended)):
                raise MalformedText(line)
            if stop >= 0:
                self.skip(stop + len(end))
                return line
            yield
