"""Encoding a prompt that is mostly the one before it: what a conversation says again is not cut into tokens again.

Texts are cut in front of the tokens that end a message, where that is proved to change nothing.
"""

import re
from array import array
from collections.abc import Callable, Iterable, Mapping
from functools import partial

EncodeFunction = Callable[[str], list[int]]

MAX_CACHED_CHARS = 8_000_000
"""Characters that are remembered of all owners together."""

MIN_PIECE_CHARS = 64
"""Shorter pieces take as long to be found as to be encoded."""

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
"""What may stand before a cut and after it: blanks that are stripped, put in front or merged, marks that combine."""


class EncodingCache:
    """The ids of the latest pieces of text, at most `bound` characters of all owners together.

    Each is remembered for its owner alone, so that nobody can tell by the time it takes what others have said. Any
    thread may ask: at worst one encodes what another one is encoding.
    """

    def __init__(self, bound: int = MAX_CACHED_CHARS) -> None:
        self._bound, self._size = bound, 0
        self._known: dict[tuple[str, str], array[int]] = {}
        self._older: dict[tuple[str, str], array[int]] = {}
        """What was known when half of the bound was reached; what is asked for again is known again."""

    def get_ids(self, owner: str, piece: str, encode: Callable[[], list[int]]) -> "array[int]":
        """As `encode` gives them, the same ones whenever it is this piece."""
        key = (owner, piece)
        ids = self._known.get(key)
        if ids is None:
            ids = self._older.get(key)
            if ids is None:
                ids = array("I", encode())
            self._known[key] = ids
            self._size += len(piece)
            if self._size > self._bound // 2:
                self._older, self._known, self._size = self._known, {}, 0
        return ids


class CachedEncoder:
    """The ids of texts by `encode`, which finds the `added` tokens before all others."""

    def __init__(
        self, encode: EncodeFunction, ends: Iterable[str], added: Mapping[str, int], bound: int = MAX_CACHED_CHARS
    ) -> None:
        self._encode = encode
        cuts = [end for end in dict.fromkeys(ends) if _is_unambiguous(end, added) and _splits_cleanly(end, encode)]
        self._cut = re.compile(f"(?={'|'.join(map(re.escape, cuts))})") if cuts else None
        self._memory = EncodingCache(bound)

    def encode(self, text: str, owner: str) -> list[int]:
        """Text to ids, as `encode` would."""
        if self._cut is None:
            return self._encode(text)
        ids: list[int] = []
        for piece in self._cut.split(text):
            encode = partial(self._encode, piece)
            ids.extend(self._memory.get_ids(owner, piece, encode) if len(piece) >= MIN_PIECE_CHARS else encode())
        return ids


def _is_unambiguous(end: str, added: Mapping[str, int]) -> bool:
    """Whether this token is found wherever its text stands: no other one holds it, or ends as it begins."""
    others = [other for other in added if other != end]
    return end in added and not any(
        end in other or any(other.endswith(end[:length]) for length in range(1, len(end))) for other in others
    )


def _splits_cleanly(end: str, encode: EncodeFunction) -> bool:
    """Whether what stands before this token and what follows it have the same ids without each other."""
    return all(encode(f"{one}{end}{two}") == encode(one) + encode(f"{end}{two}") for one, two in CUT_PROBES)
