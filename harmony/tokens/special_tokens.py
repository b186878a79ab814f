"""Escapes special tokens in client text, so that it cannot become control tokens.

A tokenizer finds its added tokens anywhere in a text, and a rendered prompt no longer shows which parts the client
wrote. So before rendering, every added token inside a client's string is broken by a sentinel, a character that occurs
nowhere in the conversation: `a<think>b` becomes `a<`, the sentinel, `think>b`. After rendering, the text is cut at the
sentinels and its pieces are encoded one by one. No token can match across a cut, and the template's own text, which has
no sentinels, keeps its tokens.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

_PRIVATE = re.compile("[\ue000-\uf8ff]")


class SpecialTokens:
    """The added tokens of a vocabulary that client text must not form. Computed once, used for every conversation."""

    def __init__(self, texts: Iterable[str]) -> None:
        # Added tokens of white space are ordinary vocabulary; a token of one character cannot be broken.
        self._texts = {text for text in texts if len(text) > 1 and not text.isspace()}
        self.texts = tuple(sorted(self._texts))
        self._lengths: dict[str, set[int]] = {}
        for word in self._texts:
            self._lengths.setdefault(word[0], set()).add(len(word))
        self._first = re.compile(f"[{re.escape(''.join(self._lengths))}]" if self._texts else "(?!)")
        self._heads = {word[:end] for word in self._texts for end in range(1, len(word))}
        self._tails = {word[start:] for word in self._texts for start in range(1, len(word))}
        self._longest = max(map(len, self._texts), default=0)
        self._cores = {core for word in self._texts for core in _inner_parts(word)} - self._texts

    def find_tokens(self, text: str) -> Iterator[int]:
        """Yields the offset of each token in a text."""
        for match in self._first.finditer(text):
            start = match.start()
            if any(text[start : start + length] in self._texts for length in self._lengths[match[0]]):
                yield start

    def find_breaks(self, text: str) -> set[int]:
        """Returns the offsets at which to break a text: in each token, and at an edge that could complete one."""
        offsets = {start + 1 for start in self.find_tokens(text)}
        edges = range(1, min(self._longest, len(text) + 1))
        if text in self._cores or any(text[:count] in self._tails for count in edges):
            offsets.add(0)
        if text in self._cores or any(text[-count:] in self._heads for count in edges):
            offsets.add(len(text))
        return offsets


def _inner_parts(word: str) -> Iterator[str]:
    """Yields the parts of a token that a client could send and a template complete: `<{{ key }}>` makes `<think>`."""
    if core := re.search(r"\w+(?:\W+\w+)*", word):
        yield from (word[start:end] for start in range(core.start() + 1) for end in range(core.end(), len(word) + 1))


class SpecialTokenEscaper:
    """Breaks the given tokens in the strings of one conversation. `texts`: every text that may occur in the prompt.

    `end_mark` and `image_mark` are other characters that occur nowhere in the conversation.
    """

    def __init__(self, tokens: SpecialTokens, texts: Iterable[str]) -> None:
        used_letters = {letter for text in texts for letter in _PRIVATE.findall(text)}
        unused_letters = (letter for letter in map(chr, range(0xE000, 0xF900)) if letter not in used_letters)
        self.sentinel, self.end_mark, self.image_mark = (next(unused_letters) for _ in range(3))
        self._tokens = tokens

    def contains_token(self, text: str) -> bool:
        """Tells whether a text contains one of the tokens as a whole."""
        return next(self._tokens.find_tokens(text), None) is not None

    def escape_text(self, text: str) -> str:
        """Returns the text with a sentinel at each break."""
        offsets = self._tokens.find_breaks(text) if text else set()
        if not offsets:
            return text
        cuts = sorted(offsets | {0, len(text)})
        escaped = self.sentinel.join(text[start:end] for start, end in pairwise(cuts))
        return f"{self.sentinel if 0 in offsets else ''}{escaped}{self.sentinel if len(text) in offsets else ''}"

    def escape_value(self, value: Any) -> Any:
        """Escapes every string in a JSON value, keys included."""
        if isinstance(value, str):
            return self.escape_text(value)
        if isinstance(value, dict):
            return {self.escape_text(str(key)): self.escape_value(part) for key, part in value.items()}
        return [self.escape_value(part) for part in value] if isinstance(value, list | tuple) else value

    def encode(self, rendered: str, encode: Callable[[str], list[int]]) -> tuple[list[int], str]:
        """Returns the ids of a rendered prompt and its text, both without sentinels."""
        pieces = rendered.split(self.sentinel)
        return [token for piece in pieces if piece for token in encode(piece)], "".join(pieces)


def collect_strings(value: Any) -> Sequence[str]:
    """Returns every string in a JSON value, keys included."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for item in value.items() for part in item for text in collect_strings(part)]
    return [text for part in value for text in collect_strings(part)] if isinstance(value, list | tuple) else []
