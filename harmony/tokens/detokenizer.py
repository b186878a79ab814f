"""Decodes token ids to text, in complete characters only.

The decoded text has one more alphabet than Unicode: *marks*, single characters from the surrogate range that represent
tokens with a meaning (`<think>` if that is one token, `<|im_end|>`). A model's text can never contain a mark, since
UTF-8 cannot encode surrogates. So a reader matches markers by id and by spelling in the same way, and never mistakes a
marker spelled out in ordinary tokens for the real one. This module does not know what a marker means.
"""

import codecs
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

CONTROL_MARK = "\udfff"
"""The mark of every special token that is not a marker of the dialect. It has no text."""
CONTROL_RANGE = "\udf00-\udfff"
"""Regular-expression range of the marks without text: `CONTROL_MARK`, and markers that are control tokens."""
_FIRST_MARK, _FIRST_CONTROL = 0xD800, 0xDF00
_strict = codecs.getincrementaldecoder("utf-8")
REPLACEMENT_CHARACTER = "�"


class TokenVocabulary(Protocol):
    """The interface of a tokenizer that this package uses."""

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """Ids, by text, of the tokens that are matched in text before all others."""

    @property
    def special_ids(self) -> Collection[int]:
        """The ids of control tokens, which are never text."""

    @property
    def boundary_ids(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids that the tokenizer itself adds before and after a text, such as BOS."""

    def token_bytes(self, token: int) -> bytes | None:
        """Returns a token's bytes, or None if the id is not a token."""

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Encodes text to ids. Added tokens in the text become their ids.

        `add_special_tokens`: adds the tokens that the tokenizer puts around every text, such as one that begins it.
        """


def split_at_tokens(marker: str, added: Mapping[str, int]) -> tuple[str, ...]:
    """Splits a marker at the added tokens in it, as a tokenizer would."""
    contained = sorted((token for token in added if token and token in marker), key=len, reverse=True)
    if not contained:
        return (marker,)
    return tuple(part for part in re.split(f"({'|'.join(map(re.escape, contained))})", marker) if part)


class MarkerAlphabet:
    """The spelling of a dialect's markers in the text of one vocabulary, and the text that each token adds."""

    def __init__(self, vocabulary: TokenVocabulary, markers: Iterable[str]) -> None:
        self._parts = {marker: split_at_tokens(marker, vocabulary.added_tokens) for marker in markers}
        all_parts = (part for parts in self._parts.values() for part in parts)
        single_tokens = [part for part in dict.fromkeys(all_parts) if part in vocabulary.added_tokens]
        control_tokens = {
            marker for marker in single_tokens if vocabulary.added_tokens[marker] in vocabulary.special_ids
        }
        self._marks = {
            marker: chr((_FIRST_CONTROL if marker in control_tokens else _FIRST_MARK) + index)
            for index, marker in enumerate(single_tokens)
        }
        self.token_texts = _TokenTexts(
            vocabulary, {vocabulary.added_tokens[marker]: mark for marker, mark in self._marks.items()}
        )
        # Each mark's original text: its spelling, or nothing if the token is a control token.
        self._written = {ord(CONTROL_MARK): ""} | {
            ord(mark): "" if marker in control_tokens else marker for marker, mark in self._marks.items()
        }

    def tape_text(self, marker: str) -> str:
        """Returns a marker as it appears in decoded text: its mark if it is one token, else letters and marks."""
        if marker not in self._parts:
            return self._marks.get(marker, marker)
        return "".join(self._marks.get(part, part) for part in self._parts[marker])

    def original_text(self, text: str) -> str:
        """Returns the text as the model wrote it: marks spelled out again, control tokens removed."""
        return text if text.isascii() else text.translate(self._written)


class _TokenTexts(dict[int, str | bytes]):
    """Each token's text or mark, or its bytes if these alone are not UTF-8; empty for unknown ids. Filled lazily."""

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
    """Decodes one stream of tokens. An invalid byte sequence becomes U+FFFD, which is final."""

    def __init__(self, alphabet: MarkerAlphabet) -> None:
        self._token_texts = alphabet.token_texts
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = False
        self._length = 0

    def feed(self, tokens: Sequence[int]) -> tuple[str, list[int]]:
        """Returns the characters that are now complete, and the index at which each token begins.

        A token begins at the character that holds its first byte, counted from the start of the stream.
        """
        if len(tokens) == 1 and not self._pending and isinstance(piece := self._token_texts[tokens[0]], str):
            # Nearly every step of nearly every stream: one token of complete characters.
            start = self._length
            self._length += len(piece)
            return piece, [start]
        texts: list[str] = []
        starts: list[int] = []
        length = self._length
        for token in tokens:
            piece = self._token_texts[token]
            if self._pending or isinstance(piece, bytes):
                text, shift = self._decode_partial(piece)
                starts.append(length + shift)
            else:
                text = piece
                starts.append(length)
            texts.append(text)
            length += len(text)
        self._length = length
        return "".join(texts), starts

    def _decode_partial(self, piece: str | bytes) -> tuple[str, int]:
        """Returns what a token adds if an incomplete character is before or in it, and its start within that text."""
        if isinstance(piece, str) and "\ud800" <= piece[:1] <= CONTROL_MARK:
            return self.finish() + piece, 1
        raw = piece.encode() if isinstance(piece, str) else piece
        incomplete = self._decoder.getstate()[0]
        shift = 0 if not incomplete or not raw or _continues_character(incomplete, raw) else 1
        text = self._decoder.decode(raw)
        self._pending = bool(self._decoder.getstate()[0])
        return text, shift

    def finish(self) -> str:
        """Flushes the decoder. Returns a replacement character if a character is incomplete, else nothing."""
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
