"""Tests of the made-up vocabulary and the sizes of the models."""

import json

import pytest
from tokenizers import Tokenizer

from tests.bench.random_models import (
    ADDED_TOKENS,
    SHAPES,
    SPECIAL_TOKENS,
    VOCAB_SIZE,
    build_tokenizer,
    single_token_words,
    weight_shapes,
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_str(json.dumps(build_tokenizer()))


def test_vocabulary_has_every_id_once(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    assert sorted(tokenizer.get_vocab().values()) == list(range(VOCAB_SIZE))


def test_word_is_one_token(tokenizer: Tokenizer) -> None:
    words = single_token_words()[::97]
    assert [len(tokenizer.encode(f" {word}").ids) for word in words] == [1] * len(words)


def test_decoding_restores_any_text(tokenizer: Tokenizer) -> None:
    text = "Hello, wörld!\n\t{ }"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_markers_are_single_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("".join((*SPECIAL_TOKENS, *ADDED_TOKENS))).tokens == [*SPECIAL_TOKENS, *ADDED_TOKENS]


@pytest.mark.parametrize(("name", "millions"), [("small", 596), ("tiny", 42)])
def test_models_have_documented_number_of_weights(name: str, millions: int) -> None:
    sizes = [size for _, size in weight_shapes(SHAPES[name])]
    assert sum(size[0] * (size[1] if len(size) > 1 else 1) for size in sizes) // 10**6 == millions
