"""Token ids to text, whole characters only.

The text that comes out has one more alphabet than Unicode: *marks*, single characters from the surrogate range that
stand for tokens with a meaning (`<think>` where that is one token, `<|im_end|>`). Text of a model can never hold one,
since UTF-8 cannot encode them, so whoever reads the text can match markers by id and by spelling in the same way, and
a marker spelled out in ordinary tokens is never mistaken for the real one. Nothing here knows what a marker means.
"""

import codecs
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

CONTROL_MARK = "\udfff"
"""The mark of every special token that is no marker of the dialect. It has no text."""
CONTROL_RANGE = "\udf00-\udfff"
"""As a range of a regular expression: the marks that have no text, of markers that are control tokens too."""
_FIRST_MARK, _FIRST_CONTROL = 0xD800, 0xDF00
_strict = codecs.getincrementaldecoder("utf-8")
REPLACEMENT_CHARACTER = "�"


class TokenVocabulary(Protocol):
    """What a tokenizer has to tell."""

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """The tokens that are matched in text before all others, by their text."""

    @property
    def special_ids(self) -> Collection[int]:
        """The ids of control tokens: these are never text."""

    def token_bytes(self, token: int) -> bytes | None:
        """A token's bytes; None for an id that is no token."""

    def encode(self, text: str) -> list[int]:
        """Text to ids; added tokens in it become their ids."""


def split_at_tokens(marker: str, added: Mapping[str, int]) -> tuple[str, ...]:
    """A marker cut at the added tokens in it, as a tokenizer would cut it."""
    inside = sorted((token for token in added if token and token in marker), key=len, reverse=True)
    if not inside:
        return (marker,)
    return tuple(part for part in re.split(f"({'|'.join(map(re.escape, inside))})", marker) if part)


class MarkerAlphabet:
    """How a dialect's markers look in the text of one vocabulary, and what each token adds to that text."""

    def __init__(self, vocabulary: TokenVocabulary, markers: Iterable[str]) -> None:
        self._parts = {marker: split_at_tokens(marker, vocabulary.added_tokens) for marker in markers}
        every = (part for parts in self._parts.values() for part in parts)
        single = [part for part in dict.fromkeys(every) if part in vocabulary.added_tokens]
        control = {marker for marker in single if vocabulary.added_tokens[marker] in vocabulary.special_ids}
        self._marks = {
            marker: chr((_FIRST_CONTROL if marker in control else _FIRST_MARK) + place)
            for place, marker in enumerate(single)
        }
        self.token_texts = _TokenTexts(
            vocabulary, {vocabulary.added_tokens[marker]: mark for marker, mark in self._marks.items()}
        )
        # What a mark is in the written text: its spelling, or nothing where the token is a control token.
        self._written = {ord(CONTROL_MARK): ""} | {
            ord(mark): "" if marker in control else marker for marker, mark in self._marks.items()
        }

    def tape_text(self, marker: str) -> str:
        """What to look for: the mark where the marker is one token, else its letters, and marks for tokens in it."""
        if marker not in self._parts:
            return self._marks.get(marker, marker)
        return "".join(self._marks.get(part, part) for part in self._parts[marker])

    def original_text(self, text: str) -> str:
        """The text as the model wrote it: marks spelled out again, control tokens gone."""
        return text if text.isascii() else text.translate(self._written)


class _TokenTexts(dict[int, str | bytes]):
    """Each token as text or a mark where it is that by itself, else as bytes; unknown ids are empty. Made on demand."""

    def __init__(self, vocabulary: TokenVocabulary, marks: Mapping[int, str]) -> None:
        super().__init__(marks)
        self._vocabulary = vocabulary

    def __missing__(self, token: int) -> str | bytes:
        piece = self[token] = self._decode_token(token)
        return piece

    def _decode_token(self, token: int) -> str | bytes:
        if token in self._vocabulary.special_ids:
            return CONTROL_MARK
        raw = self._vocabulary.token_bytes(token)
        try:
            return "" if raw is None else raw.decode("utf-8")
        except UnicodeDecodeError:
            return b"" if raw is None else raw


class Detokenizer:
    """Decodes one stream of tokens. An invalid byte sequence becomes U+FFFD, once and finally."""

    def __init__(self, alphabet: MarkerAlphabet) -> None:
        self._pieces = alphabet.token_texts
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = False
        self._length = 0

    def feed(self, tokens: Sequence[int]) -> tuple[str, list[int]]:
        """The characters that are now whole, and where each token begins.

        A token begins at the character that holds its first byte, counted from the start of the stream.
        """
        if len(tokens) == 1 and not self._pending and isinstance(whole := self._pieces[tokens[0]], str):
            # Nearly every step of nearly every stream: one token, and its characters are its own.
            begins = self._length
            self._length += len(whole)
            return whole, [begins]
        out: list[str] = []
        starts: list[int] = []
        length = self._length
        for token in tokens:
            piece = self._pieces[token]
            if self._pending or isinstance(piece, bytes):
                text, shift = self._decode_partial(piece)
                starts.append(length + shift)
            else:
                text = piece
                starts.append(length)
            out.append(text)
            length += len(text)
        self._length = length
        return "".join(out), starts

    def _decode_partial(self, piece: str | bytes) -> tuple[str, int]:
        """What a token adds when there is half a character before it or in it, and where in that it begins."""
        if isinstance(piece, str) and "\ud800" <= piece[:1] <= CONTROL_MARK:
            return self.finish() + piece, 1
        raw = piece.encode() if isinstance(piece, str) else piece
        half = self._decoder.getstate()[0]
        shift = 0 if not half or not raw or _continues_character(half, raw) else 1
        text = self._decoder.decode(raw)
        self._pending = bool(self._decoder.getstate()[0])
        return text, shift

    def finish(self) -> str:
        """What is left: a replacement character for half a character, or nothing."""
        text = self._decoder.decode(b"", True)
        self._decoder.reset()
        self._pending = False
        return text


def _continues_character(half: bytes, raw: bytes) -> bool:
    try:
        _strict().decode(half + raw[:1])
    except UnicodeDecodeError:
        return False
    return True
