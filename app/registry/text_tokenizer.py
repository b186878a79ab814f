"""Converts texts, and pairs of texts, to the token ids that an embedding or reranking model reads."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import Tokenizer

from antiphon.engine.encoder_messages import EncoderInput
from antiphon.harmony.tokens.vocabulary import TokenizeError

T = TypeVar("T")
TextOrPair = str | tuple[str, str]


class TextTokenizer:
    """The tokenizer of a folder with `tokenizer.json`. Puts `prompt` before each text, but not before pairs."""

    def __init__(self, folder: Path, *, lower_case: bool = False, prompt: str = "") -> None:
        self._whole, self._truncating = (Tokenizer.from_file(str(folder / "tokenizer.json")) for _ in range(2))
        self._direction = (self._whole.truncation or {}).get("direction", "right")
        for tokenizer in (self._whole, self._truncating):
            tokenizer.no_truncation()
            tokenizer.no_padding()
        self._lock = threading.Lock()  # the limit of the truncating tokenizer is part of its state
        self._lower_case, self._prompt = lower_case, prompt

    def encode_texts(self, texts: Sequence[TextOrPair], max_tokens: int | None = None) -> list[EncoderInput]:
        """Encodes texts or pairs with the special tokens, cut to `max_tokens` if set. Raises `TokenizeError`.

        If not even the special tokens fit, the library cuts nothing.
        """
        prepared = [self._prepare(text) for text in texts]
        if max_tokens is None:
            return self._encode(self._whole, prepared)
        with self._lock:
            _call_library(
                lambda: self._truncating.enable_truncation(
                    max_tokens, strategy="longest_first", direction=self._direction
                )
            )
            return self._encode(self._truncating, prepared)

    def encode_text(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Encodes one text. Raises `TokenizeError`."""
        # `encode` of one text would keep the interpreter's lock.
        encoding = _call_library(
            lambda: self._whole.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]
        )
        ids: list[int] = encoding.ids
        return ids

    def decode_tokens(self, tokens: Sequence[int]) -> str:
        """Returns the text of token ids, special tokens included."""
        text: str = _call_library(lambda: self._whole.decode(list(tokens), skip_special_tokens=False))
        return text

    def token_text(self, token: int) -> str:
        """Returns the tokenizer's own spelling of a token."""
        return self._whole.id_to_token(token) or ""

    def _prepare(self, text: TextOrPair) -> TextOrPair:
        if isinstance(text, tuple):
            return (text[0].lower(), text[1].lower()) if self._lower_case else text
        text = self._prompt + text
        return text.lower() if self._lower_case else text

    @staticmethod
    def _encode(tokenizer: Any, texts: Sequence[TextOrPair]) -> list[EncoderInput]:
        encodings = _call_library(lambda: tokenizer.encode_batch_fast(texts))
        return [EncoderInput(tuple(each.ids), _find_second_part(each.type_ids)) for each in encodings]


def _find_second_part(type_ids: list[int]) -> int | None:
    """Returns the number of tokens before the first one of type 1; None if there is none."""
    return type_ids.index(1) if 1 in type_ids else None


def _call_library(call: Callable[[], T]) -> T:
    """Returns the result of a call. Raises `TokenizeError` if the library fails or panics."""
    try:
        return call()
    except BaseException as error:  # the library raises its panics past `Exception`, and its errors as `Exception`
        if type(error).__name__ != "PanicException" and not isinstance(error, Exception):
            raise
        raise TokenizeError(f"The model's tokenizer failed: {str(error)[:200]}") from None
