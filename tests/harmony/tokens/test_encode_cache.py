"""The encode cache: repeated messages give the ids of the whole text, and the cache of each owner is separate."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from antiphon.harmony.tokens.encode_cache import MIN_PIECE_CHARS, CachedEncoder

END_TOKEN = "<|im_end|>"
TEXT_PIECES = [
    "a",
    "word ",
    " two",
    "\n",
    "  ",
    "é",
    "e\u0301",
    "\u0301",
    "\u2581",
    "12",
    "3",
    "<",
    "|im_end|",
    END_TOKEN,
    "<think>",
]


def create_tokenizer(normalizer: Any = None, pre_tokenizer: Any = None, **flags: bool) -> Tokenizer:
    """Returns a BPE tokenizer over single characters and four merged pairs."""
    characters = sorted(
        {character for text in TEXT_PIECES for character in text}
        | set(pre_tokenizers.ByteLevel.alphabet())
        | {"\u2581"}
    )
    vocabulary = {character: number for number, character in enumerate([*characters, "wo", "\u2581a", "Ġt", "12"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("w", "o"), ("\u2581", "a"), ("Ġ", "t"), ("1", "2")]))
    tokenizer.normalizer = normalizer  # type: ignore[assignment]
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.add_special_tokens([AddedToken(END_TOKEN, normalized=False, special=True, **flags)])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    return tokenizer


def create_encode(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)


TOKENIZER_FACTORIES = {
    "bytes": lambda: create_tokenizer(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "bytes with a blank in front": lambda: create_tokenizer(
        pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)
    ),
    "composed": lambda: create_tokenizer(normalizers.NFC(), pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "in front of all": lambda: create_tokenizer(normalizers.Prepend("\u2581")),
    "in front of the first": lambda: create_tokenizer(pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first")),
    "stripped": lambda: create_tokenizer(normalizers.Strip(), pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "strips to the left": lambda: create_tokenizer(
        pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False), lstrip=True
    ),
    "strips to the right": lambda: create_tokenizer(
        pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False), rstrip=True
    ),
    "a word of its own": lambda: create_tokenizer(
        pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False), single_word=True
    ),
}
CACHEABLE_TOKENIZERS = {"bytes", "composed", "in front of all", "in front of the first"}


@pytest.mark.parametrize("name", TOKENIZER_FACTORIES)
def test_cached_encoding_equals_encoding_of_the_whole_text(name: str) -> None:
    tokenizer = TOKENIZER_FACTORIES[name]()
    encode, rng = create_encode(tokenizer), random.Random(1)
    added_tokens = {token.content: number for number, token in tokenizer.get_added_tokens_decoder().items()}
    cached_encoder = CachedEncoder(encode, [END_TOKEN], added_tokens)
    assert cached_encoder.cut is not None or name not in CACHEABLE_TOKENIZERS
    for _ in range(300):
        text = "".join(rng.choices(TEXT_PIECES, k=rng.randint(0, 200)))
        for _ in range(2):
            assert cached_encoder.encode(text, "me") == encode(text)


class CountingEncoder:
    """Encodes text to bytes and records every text that it encodes."""

    def __init__(self) -> None:
        self.encoded_texts: list[str] = []

    def __call__(self, text: str) -> list[int]:
        self.encoded_texts.append(text)
        return [
            256 if part == END_TOKEN else byte
            for part in _split_at_end_token(text)
            for byte in (part.encode() if part != END_TOKEN else b"?")
        ]


def _split_at_end_token(text: str) -> list[str]:
    first, *following = text.split(END_TOKEN)
    return [first, *(part for piece in following for part in (END_TOKEN, piece))]


def create_counting_cache(**options: Any) -> tuple[CachedEncoder, CountingEncoder]:
    encode = CountingEncoder()
    cached_encoder = CachedEncoder(encode, [END_TOKEN], {END_TOKEN: 256}, **options)
    encode.encoded_texts.clear()
    return cached_encoder, encode


def test_repeated_text_is_encoded_once_per_owner() -> None:
    cached_encoder, encode = create_counting_cache()
    piece, new_piece = "x" * MIN_PIECE_CHARS, "y" * MIN_PIECE_CHARS
    text = f"{piece}{END_TOKEN}{piece}{END_TOKEN}"
    assert cached_encoder.encode(text, "me") == encode(text)
    encode.encoded_texts.clear()
    assert cached_encoder.encode(f"{text}{new_piece}", "me") == CountingEncoder()(f"{text}{new_piece}")
    assert encode.encoded_texts == [f"{END_TOKEN}{new_piece}"]
    encode.encoded_texts.clear()
    cached_encoder.encode(f"{text}{new_piece}", "you")
    assert len(encode.encoded_texts) == 3


def test_least_recently_used_pieces_are_evicted() -> None:
    cached_encoder, encode = create_counting_cache(bound=20 * MIN_PIECE_CHARS)
    texts = [str(n) * 3 * MIN_PIECE_CHARS for n in range(9)]
    for text in texts:  # the fourth and the eighth start a new generation of the cache
        cached_encoder.encode(text, "me")
        cached_encoder.encode(texts[0], "me")
    assert encode.encoded_texts == texts
    cached_encoder.encode(texts[1], "me")
    assert encode.encoded_texts == [*texts, texts[1]]
    cached_pieces = [*cached_encoder.memory.newer, *cached_encoder.memory.older]
    assert sum(len(piece) for _, piece in cached_pieces) <= 20 * MIN_PIECE_CHARS + len(texts[0])


@pytest.mark.parametrize("other", ["<|im_end|>!", "!<|im_end|>", "a<", "b<|im_end|", "<|im_end|><|im_end|>"])
def test_ambiguous_end_token_disables_the_cache(other: str) -> None:
    assert CachedEncoder(CountingEncoder(), [END_TOKEN], {END_TOKEN: 256, other: 257}).cut is None
    assert CachedEncoder(CountingEncoder(), [END_TOKEN], {END_TOKEN: 256, "<think>": 257}).cut is not None
    assert CachedEncoder(CountingEncoder(), [], {END_TOKEN: 256}).cut is None
    assert CachedEncoder(CountingEncoder(), ["</s>"], {END_TOKEN: 256}).cut is None
