"""Keeps what a client wrote from becoming control tokens.

A tokenizer finds its added tokens anywhere in a text, and a rendered prompt no longer tells whose words are whose. So
before rendering, every added token inside a client's string is broken by a sentinel, a character that occurs nowhere
in the conversation; after rendering the text is cut at the sentinels and its pieces are encoded one by one: no token
can match across a cut, and the frame, which has no sentinels, keeps its own.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

_PRIVATE = re.compile("[\ue000-\uf8ff]")


class SpecialTokens:
    """What a vocabulary makes dangerous: computed once, used for every conversation."""

    def __init__(self, texts: Iterable[str]) -> None:
        # Blanks that are added tokens are vocabulary like any other; a token of one character cannot be broken.
        self._words = {text for text in texts if len(text) > 1 and not text.isspace()}
        self._lengths: dict[str, set[int]] = {}
        for word in self._words:
            self._lengths.setdefault(word[0], set()).add(len(word))
        self._first = re.compile(f"[{re.escape(''.join(self._lengths))}]" if self._words else "(?!)")
        self._heads = {word[:end] for word in self._words for end in range(1, len(word))}
        self._tails = {word[start:] for word in self._words for start in range(1, len(word))}
        self._longest = max(map(len, self._words), default=0)
        self._cores = {core for word in self._words for core in _inner_parts(word)} - self._words

    def find_breaks(self, text: str) -> set[int]:
        """Where to break a text: in each token, and at an edge where it could complete one with its neighbour."""
        places = set()
        for found in self._first.finditer(text):
            at = found.start()
            if any(text[at : at + length] in self._words for length in self._lengths[found[0]]):
                places.add(at + 1)
        edges = range(1, min(self._longest, len(text) + 1))
        if text in self._cores or any(text[:count] in self._tails for count in edges):
            places.add(0)
        if text in self._cores or any(text[-count:] in self._heads for count in edges):
            places.add(len(text))
        return places


def _inner_parts(word: str) -> Iterator[str]:
    """What of a token a client could give while a template gives the signs around: `<{{ key }}>` makes a `<think>`."""
    if core := re.search(r"\w+(?:\W+\w+)*", word):
        yield from (word[start:end] for start in range(core.start() + 1) for end in range(core.end(), len(word) + 1))


class SpecialTokenEscaper:
    """Breaks the given tokens in the strings of one conversation. `texts`: everything the prompt may be made of."""

    def __init__(self, tokens: SpecialTokens, texts: Iterable[str]) -> None:
        used = {letter for text in texts for letter in _PRIVATE.findall(text)}
        self.sentinel = next(letter for letter in map(chr, range(0xE000, 0xF900)) if letter not in used)
        self._tokens = tokens

    def escape_text(self, text: str) -> str:
        """The string, broken where it must be."""
        places = self._tokens.find_breaks(text) if text else set()
        if not places:
            return text
        cuts = sorted(places | {0, len(text)})
        broken = self.sentinel.join(text[start:end] for start, end in pairwise(cuts))
        return f"{self.sentinel if 0 in places else ''}{broken}{self.sentinel if len(text) in places else ''}"

    def escape_value(self, value: Any) -> Any:
        """The same for every string in a JSON value, keys included."""
        if isinstance(value, str):
            return self.escape_text(value)
        if isinstance(value, dict):
            return {self.escape_text(str(key)): self.escape_value(part) for key, part in value.items()}
        return [self.escape_value(part) for part in value] if isinstance(value, list | tuple) else value

    def encode(self, rendered: str, encode: Callable[[str], list[int]]) -> tuple[list[int], str]:
        """The ids of a rendered prompt and its text, both without sentinels."""
        pieces = rendered.split(self.sentinel)
        return [token for piece in pieces if piece for token in encode(piece)], "".join(pieces)


def collect_strings(value: Any) -> Sequence[str]:
    """Every string in a JSON value, keys included."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for item in value.items() for part in item for text in collect_strings(part)]
    return [text for part in value for text in collect_strings(part)] if isinstance(value, list | tuple) else []
