"""Text of one answer as a tape: parsers look ahead freely, then take or skip each character once.

A parser is a generator: it yields where it has to wait for more text, and is otherwise written as if all text were
there. It waits until the text at hand determines each decision, so the result does not depend on how the text was
split. The tape matches markers and holds back a possible one; it does not know what a marker means.
"""

import re
from bisect import bisect_left, bisect_right
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
    """Raised when the text is not what the parser expected."""


class HoldBackExceeded(MalformedText):
    """Raised when more text is skipped after a mark than its limit allows."""


class Literals:
    """Literal texts to search for. `controls`: matches any control token too.

    If two literals begin at the same index, the longer one matches.
    """

    def __init__(self, literals: Iterable[str], *, controls: bool = False) -> None:
        self.controls = controls
        self.literals = sorted(dict.fromkeys(literals), key=len, reverse=True)
        self.longest = len(self.literals[0]) if self.literals else 0
        control_pattern = [f"[{CONTROL_RANGE}]"] if controls else []
        self.complete_pattern = re.compile("|".join([*map(re.escape, self.literals), *control_pattern]) or r"(?!)")
        first_chars = "".join(map(re.escape, sorted({literal[0] for literal in self.literals})))
        self.first_char_pattern = re.compile(
            f"[{first_chars}{CONTROL_RANGE if controls else ''}]" if first_chars or controls else r"(?!)"
        )
        partials = (_prefix_pattern(literal) for literal in self.literals if len(literal) > 1)
        self.partial_pattern = re.compile(f"(?:{'|'.join(partials) or '(?!)'})\\Z")


@lru_cache(maxsize=1024)
def literals(*literals: str, controls: bool = False) -> Literals:
    """Returns a cached `Literals`: the same few texts are searched in every answer and in every value of a call."""
    return Literals(literals, controls=controls)


def _prefix_pattern(literal: str) -> str:
    """Returns a pattern of every proper prefix of `literal`. For "abcd" it is `a(?:b(?:c)?)?`."""
    pattern = ""
    for char in reversed(literal[1:-1]):
        pattern = f"(?:{re.escape(char)}{pattern})?"
    return re.escape(literal[0]) + pattern


class Tape:
    """Text of one answer, and a position in it.

    `num_taken` counts the characters taken, `num_skipped` those skipped, `read` all that the model generated. This is a
    ledger: at the end, `num_taken` + `num_skipped` = `read`.
    """

    def __init__(self, alphabet: MarkerAlphabet) -> None:
        self.alphabet = alphabet
        self.text = ""
        self.index = 0
        self.ended = False
        self.ended_naturally = False
        self.read = self.num_taken = self.num_skipped = 0
        self._base = 0  # position of text[0] in the stream
        self._starts: list[int] = []  # position in the stream at which each token begins
        self._logprobs: list[Logprob | None] = []  # one for each of `_starts`, once `_scored`
        self._scored = False  # True after the first log-probability: most turns have none
        self._token = 0  # first token that begins at or after `index`
        self._num_discarded = 0  # tokens whose text was discarded
        self._pinned = False
        self._limit = 0  # index up to which text may be skipped after a mark; 0: no limit

    def feed(self, text: str, starts: Sequence[int] = (), logprobs: Sequence[Logprob | None] = ()) -> None:
        """Appends text. `starts`: position in the stream of each of its tokens.

        Text before the position is discarded, unless a mark keeps it.
        """
        if not self._pinned:
            self._base += self.index
            self.text = self.text[self.index :]
            del self._starts[: self._token]
            self._num_discarded += self._token
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
        """Returns the position and keeps the text from here on until `release`.

        `limit`: number of characters that may be skipped from here before `HoldBackExceeded` is raised; 0 for no
        limit.
        """
        self._pinned = True
        self._limit = self.index + limit if limit else 0
        return self.position()

    def position(self) -> TapeMark:
        """Returns the position, for a `rewind` while another mark keeps the text."""
        return self.index, self._token, self.num_taken, self.num_skipped

    def rewind(self, mark: TapeMark) -> None:
        """Moves back to a mark and restores the ledger, as if nothing had been read since.

        Example: `mark` is taken at index 0 of `<tool_call> now`. Parsing a call skips the marker and the blank
        (`index` and `num_taken` are 12), then finds "n" in place of "{". After `rewind(mark)` both are 0 again, and the
        text can be emitted.
        """
        self.index, self._token, self.num_taken, self.num_skipped = mark

    def release(self) -> None:
        """Ends a mark: text before the position may be discarded again."""
        self._pinned = False
        self._limit = 0

    # Looking ahead: these methods do not move the position.

    def wait_more(self) -> Parser[bool]:
        """Waits for at least one character. Returns False at the end of the text."""
        while self.index == len(self.text):
            if self.ended:
                return False
            yield
        return True

    def wait_count(self, count: int) -> Parser[bool]:
        """Waits for `count` characters. Returns False if the text ends before."""
        while len(self.text) - self.index < count:
            if self.ended:
                return False
            yield
        return True

    def peek(self, count: int = 1) -> str:
        """Returns the next characters that are available, at most `count`."""
        return self.text[self.index : self.index + count]

    def peek_original(self, count: int) -> str:
        """Returns the next characters as the model wrote them."""
        return self.alphabet.original_text(self.peek(count))

    def count_clear(self, stops: Literals) -> int:
        """Returns the number of characters ahead that certainly belong to none of the literals.

        The beginning of a possible literal is held back until more text decides. Example with `<tool_call>`:

            if a <to      `if a ` is clear, `<to` is held back
            if a <to b    everything is clear
        """
        # Text beyond the limit cannot be skipped, so it is not searched.
        end = min(len(self.text), self._limit + stops.longest) if self._limit else len(self.text)
        if stops.first_char_pattern.search(self.text, self.index, end) is None:  # the case for most tokens
            return end - self.index
        match = stops.complete_pattern.search(self.text, self.index, end)
        if match is None and end < len(self.text):
            return end - self.index
        if match is None and not self.ended:
            match = stops.partial_pattern.search(self.text, max(self.index, len(self.text) - stops.longest + 1))
        elif match is not None and not self.ended and match.start() > self.index:
            # A longer literal may have begun earlier and be incomplete.
            partial = stops.partial_pattern.search(self.text, max(self.index, len(self.text) - stops.longest + 1))
            match = partial if partial is not None and partial.start() < match.start() else match
        return (len(self.text) if match is None else match.start()) - self.index

    def match_literal(self, stops: Literals) -> Parser[str | None]:
        """Returns the literal or control token that begins here, or None. Waits until that is decided."""
        for literal in stops.literals:
            if (yield from self.matches_here(literal)):
                return literal
        return self.peek() if stops.controls and self.at_control_token() else None

    def matches_here(self, literal: str, *, cut: bool = False) -> Parser[bool]:
        """Tells whether `literal` is here, once that is decided. `cut`: a prefix at the end of the text counts."""
        while True:
            ahead = self.text[self.index : self.index + len(literal)]
            if len(ahead) == len(literal) or not literal.startswith(ahead):
                return ahead == literal
            if self.ended:
                return cut and ahead != ""
            yield

    # Moving: each character is either taken as payload or skipped.

    def take(self, count: int) -> str:
        """Takes `count` characters of payload. Returns them as the model wrote them."""
        text = self.alphabet.original_text(self.text[self.index : self.index + count])
        self.num_taken += len(text)
        self._advance(count)
        return text

    def take_with_logprobs(self, count: int) -> tuple[str, tuple[PlacedLogprob, ...]]:
        """Takes payload. Returns it with the log-probabilities of the tokens that begin in it."""
        if not self._scored:
            return self.take(count), ()
        base, previous, first, offset = self._base, self.index, self._token, 0
        text = self.take(count)
        entries = []
        for token in range(first, self._token):
            logprob, start = self._logprobs[token], self._starts[token] - base
            offset += len(self.alphabet.original_text(self.text[previous:start]))
            previous = start
            if logprob is not None and not CONTROL_RANGE[0] <= self.text[start] <= CONTROL_RANGE[-1]:
                entries.append(PlacedLogprob(offset, logprob))
        return text, tuple(entries)

    def skip(self, count: int) -> None:
        """Skips characters that are markup, or that are emitted in another form.

        Raises `HoldBackExceeded` beyond the limit of the mark.
        """
        if 0 < self._limit < self.index + count:
            raise HoldBackExceeded
        self.num_skipped += len(self.alphabet.original_text(self.text[self.index : self.index + count]))
        self._advance(count)

    def count_tokens(self, count: int) -> int:
        """Returns the number of tokens that begin in the next `count` characters."""
        return bisect_left(self._starts, self._base + self.index + count, self._token) - self._token

    @property
    def num_tokens_read(self) -> int:
        """Number of tokens that begin before the position."""
        return self._num_discarded + self._token

    def token_at(self, mark: TapeMark) -> int:
        """Returns the number of the token that has the character at a mark, from 0."""
        return max(self._num_discarded + bisect_right(self._starts, self._base + mark[0]) - 1, 0)

    def _advance(self, count: int) -> None:
        self.index += count
        self._token = bisect_left(self._starts, self._base + self.index, self._token)

    # Skipping expected text.

    def skip_literal(self, literal: str, *, cut: bool = False) -> Parser[bool]:
        """Skips `literal` if it is here, and tells whether it was. `cut`: a prefix at the end of the text counts."""
        if not (yield from self.matches_here(literal, cut=cut)):
            return False
        self.skip(min(len(literal), len(self.text) - self.index))
        return True

    def at_control_token(self) -> bool:
        """Tells whether a control token is next."""
        return CONTROL_RANGE[0] <= self.peek() <= CONTROL_RANGE[-1]

    def expect(self, literal: str) -> Parser[None]:
        """Skips `literal`. Raises `MalformedText` if it is not here."""
        if not (yield from self.skip_literal(literal)):
            raise MalformedText(literal)

    def skip_whitespace(self) -> Parser[None]:
        """Skips white space, and waits until it has ended."""
        while (yield from self.wait_more()):
            match = _WHITESPACE.match(self.text, self.index)
            self.skip(match.end() - self.index if match else 0)
            if self.index < len(self.text):
                return

    def skip_until(self, stops: Literals, longest: int = 256) -> Parser[str]:
        """Skips text up to one of `stops`, which stays. Returns the text.

        Raises `MalformedText` after `longest` characters, or at the end of the text.
        """
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
        """Skips text up to `end` in the same line, and `end` itself. Returns the text.

        Raises `MalformedText` if the text is not printable, or if `end` does not follow within `longest` characters.
        """
        while True:
            ahead = self.text[self.index : self.index + longest + len(end)]
            stop = ahead.find(end)
            word = ahead if stop < 0 else ahead[:stop]
            is_too_long = len(ahead) >= longest + len(end)
            if "\n" in word or not word.isprintable() or (stop < 0 and (is_too_long or self.ended)):
                raise MalformedText(word)
            if stop >= 0:
                self.skip(stop + len(end))
                return word
            yield
