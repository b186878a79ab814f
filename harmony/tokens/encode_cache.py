"""Cached encoding of prompts: the part of a conversation that a request repeats is not tokenized again.

Texts are cut in front of the tokens that end a message, if trial cuts show that this does not change the ids.
"""

import re
from array import array
from collections.abc import Callable, Iterable, Mapping
from functools import partial

EncodeFunction = Callable[[str], list[int]]

MAX_CACHED_CHARS = 8_000_000
"""Characters that the cache holds for all owners together."""

MIN_PIECE_CHARS = 64
"""Minimum characters of a cached piece. Looking up a shorter one takes as long as encoding it."""

CUT_PROBES = (
    ("", ""),
    ("a b", "c d"),
    (" x ", "\n\n y"),
    ("1", "23"),
    ("Zażółć ", " gęślą"),
    ("e", "\u0301a"),
    ("\u2581a", "\u2581b"),
    ("<", ">"),
    ("word", "s and more words"),
)
"""Texts before and after a trial cut: white space that is stripped, prepended or merged, and combining characters."""


class EncodingCache:
    """The ids of the latest pieces of text, at most `bound` characters for all owners together.

    A piece is cached for its owner alone, so that no client can find out by timing what other clients have sent. Any
    thread may call the cache: at worst, two threads encode the same piece.
    """

    def __init__(self, bound: int = MAX_CACHED_CHARS) -> None:
        self._bound, self._size = bound, 0
        self.newer: dict[tuple[str, str], array[int]] = {}
        self.older: dict[tuple[str, str], array[int]] = {}
        """The older generation of a two-generation cache, each of half the bound. Hits move to the newer one."""

    def get_ids(self, owner: str, text: str, encode: Callable[[], list[int]]) -> "array[int]":
        """Returns the ids of a piece, from the cache if it has them, else from `encode`."""
        key = (owner, text)
        ids = self.newer.get(key)
        if ids is None:
            ids = self.older.get(key)
            if ids is None:
                ids = array("I", encode())
            self.newer[key] = ids
            self._size += len(text)
            if self._size > self._bound // 2:
                self.older, self.newer, self._size = self.newer, {}, 0
        return ids


class CachedEncoder:
    """Encodes texts with `encode`, which matches the `added` tokens before all others, and caches pieces of them."""

    def __init__(
        self, encode: EncodeFunction, ends: Iterable[str], added: Mapping[str, int], bound: int = MAX_CACHED_CHARS
    ) -> None:
        self._encode = encode
        cuts = [end for end in dict.fromkeys(ends) if _is_unambiguous(end, added) and _splits_cleanly(end, encode)]
        self.cut = re.compile(f"(?={'|'.join(map(re.escape, cuts))})") if cuts else None
        self.memory = EncodingCache(bound)

    def encode(self, text: str, owner: str) -> list[int]:
        """Encodes text to the same ids as without the cache."""
        if self.cut is None:
            return self._encode(text)
        ids: list[int] = []
        for piece in self.cut.split(text):
            encode = partial(self._encode, piece)
            ids.extend(self.memory.get_ids(owner, piece, encode) if len(piece) >= MIN_PIECE_CHARS else encode())
        return ids


def _is_unambiguous(end: str, added: Mapping[str, int]) -> bool:
    """Tells whether this token matches wherever its text occurs: no other one contains it, or ends as it begins."""
    other_tokens = [other for other in added if other != end]
    return end in added and not any(
        end in other or any(other.endswith(end[:length]) for length in range(1, len(end))) for other in other_tokens
    )


def _splits_cleanly(end: str, encode: EncodeFunction) -> bool:
    """Tells whether the text before this token and the text from it on have the same ids when encoded apart."""
    return all(
        encode(f"{before}{end}{after}") == encode(before) + encode(f"{end}{after}") for before, after in CUT_PROBES
    )
