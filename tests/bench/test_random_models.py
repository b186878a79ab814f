"""The made-up vocabulary is whole, and its words are one token each."""

import json

import pytest
from tokenizers import Tokenizer

from tests.bench.models import ADDED, SHAPES, SPECIAL, VOCAB, tensors, tokenizer, words


@pytest.fixture(scope="module")
def made() -> Tokenizer:
    return Tokenizer.from_str(json.dumps(tokenizer()))


def test_every_id_is_there_once(made: Tokenizer) -> None:
    assert made.get_vocab_size() == VOCAB
    assert sorted(made.get_vocab().values()) == list(range(VOCAB))


def test_a_word_is_one_token(made: Tokenizer) -> None:
    asked = words()[::97]
    assert [len(made.encode(f" {word}").ids) for word in asked] == [1] * len(asked)


def test_any_text_comes_back_as_it_was(made: Tokenizer) -> None:
    text = "Hello, wörld!\n\t{ }"
    assert made.decode(made.encode(text).ids) == text


def test_markers_are_single_tokens(made: Tokenizer) -> None:
    assert made.encode("".join((*SPECIAL, *ADDED))).tokens == [*SPECIAL, *ADDED]


@pytest.mark.parametrize(("name", "millions"), [("small", 596), ("tiny", 42)])
def test_the_models_have_their_size(name: str, millions: int) -> None:
    sizes = [size for _, size in tensors(SHAPES[name])]
    assert sum(size[0] * (size[1] if len(size) > 1 else 1) for size in sizes) // 10**6 == millions
