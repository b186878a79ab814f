"""Two vocabularies: a model's own, from its `tokenizer.json`, and one of bytes, for tests and scripts."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping

from tokenizers import Tokenizer

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_letters() -> Iterator[tuple[str, int]]:
    """Yields the letter by which byte-level tokenizers write each byte: itself if printable, else one from 256 on."""
    codepoint = 256
    for byte in range(256):
        printable = 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or 0xAE <= byte <= 0xFF
        yield chr(byte if printable else codepoint), byte
        codepoint += not printable


_LETTERS = dict(_byte_letters())


class TokenizeError(ValueError):
    """The tokenizer cannot encode a text: a pattern in its `tokenizer.json` takes too long on it."""


class TokenizerVocabulary:
    """The vocabulary of a `tokenizer.json`, either byte-level or with SentencePiece's spelling."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        tokens = tokenizer.get_added_tokens_decoder()
        self.added_tokens: Mapping[str, int] = {token.content: token_id for token_id, token in tokens.items()}
        self.special_ids = frozenset(token_id for token_id, token in tokens.items() if token.special)
        self._texts = {token_id: token.content.encode() for token_id, token in tokens.items()}
        self.boundary_ids = _find_boundary_ids(tokenizer)
        self._bytes = "ByteLevel" in json.dumps(json.loads(tokenizer.to_str())["decoder"])

    def token_bytes(self, token: int) -> bytes | None:
        """Returns a token's bytes, or None if the id is not a token."""
        if token in self._texts:
            return self._texts[token]
        text: str | None = self._tokenizer.id_to_token(token) if token >= 0 else None
        if text is None:
            return None
        if self._bytes and all(letter in _LETTERS for letter in text):
            return bytes(_LETTERS[letter] for letter in text)
        byte = _BYTE.fullmatch(text)
        return bytes([int(byte[1], base=16)]) if byte else text.replace("\u2581", " ").encode()

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Encodes text to ids. Added tokens in the text become their ids. Raises `TokenizeError`.

        `add_special_tokens`: adds the tokens that the tokenizer puts around every text, such as one that begins it.
        """
        try:
            # `encode` keeps the interpreter's lock for the whole text: a prompt of 9 MiB stopped all threads for 12 s.
            encoding = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]
        except BaseException as error:  # the library raises its panics past `Exception`
            if type(error).__name__ != "PanicException":
                raise
            raise TokenizeError(f"The model's tokenizer failed: {str(error)[:200]}") from None
        ids: list[int] = encoding.ids
        return ids


def _find_boundary_ids(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the ids that a tokenizer adds before and after a text."""
    framed = tokenizer.encode("a", add_special_tokens=True)
    added: list[int] = framed.special_tokens_mask
    start = added.index(0) if 0 in added else len(added)
    end = len(added) - added[::-1].index(0) if 0 in added else start
    return tuple(framed.ids[:start]), tuple(framed.ids[end:])


class ByteVocabulary:
    """The 256 bytes, followed by one token for each of the given texts."""

    def __init__(self, markers: Iterable[str], special: Iterable[str]) -> None:
        names = list(dict.fromkeys((*markers, *special)))
        self.boundary_ids: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
        self.added_tokens: Mapping[str, int] = {name: 256 + index for index, name in enumerate(names)}
        self.special_ids = frozenset(self.added_tokens[name] for name in special)
        self._texts = dict(enumerate(name.encode() for name in names))
        self._split = re.compile(f"({'|'.join(map(re.escape, sorted(names, key=len, reverse=True)))})")

    def token_bytes(self, token: int) -> bytes | None:
        """Returns a token's bytes, or None if the id is not a token."""
        return bytes([token]) if 0 <= token < 256 else self._texts.get(token - 256)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:  # noqa: ARG002  # there are none
        """Encodes text to ids. Added tokens in the text become their ids."""
        ids: list[int] = []
        for piece in self._split.split(text):
            ids += [self.added_tokens[piece]] if piece in self.added_tokens else piece.encode()
        return ids
