"""Tests of the made-up vocabulary and the sizes of the models."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from bench.compare import count_weights, expert_share
from bench.gpt_oss_model import OSS_SHAPES, build_gpt_oss_config, find_oss_shape, list_tensors, write_checkpoint
from bench.random_models import (
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


def test_tensors_of_gpt_oss_are_those_of_transformers() -> None:
    torch = pytest.importorskip("torch")
    from transformers import AutoConfig, AutoModelForCausalLM

    config = build_gpt_oss_config(OSS_SHAPES["osstiny"], 9)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    tensors = {tensor.name: tensor.shape for tensor in list_tensors(config)}
    blocks = {name: shape for name, shape in tensors.items() if name.endswith("_blocks")}
    for name, (experts, outputs, groups, half) in blocks.items():
        assert tensors.pop(name.replace("_blocks", "_scales")) == (experts, outputs, groups)
        tensors[name.removesuffix("_blocks")] = (experts, 2 * half * groups, outputs)
        del tensors[name]
    assert tensors == expected


def test_checkpoint_in_mxfp4_holds_what_its_header_says(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    shape = OSS_SHAPES["osstiny"] | {"vocab_size": 1000, "num_hidden_layers": 1, "hidden_size": 64}
    config = build_gpt_oss_config(shape, 9)
    write_checkpoint(tmp_path / "model.safetensors", config, 1)
    (tmp_path / "config.json").write_text(json.dumps(config))
    stored = safetensors.load_file(tmp_path / "model.safetensors")
    assert {name: tuple(value.shape) for name, value in stored.items()} == {
        tensor.name: tensor.shape for tensor in list_tensors(config)
    }
    assert 0.019 < float(stored["lm_head.weight"].float().std()) < 0.021
    assert len(stored["model.layers.0.mlp.experts.down_proj_blocks"].unique()) == 256
    counts = count_weights(tmp_path)
    assert counts.experts == 3 * 8 * 64 * 256 and counts.total - counts.experts - counts.dense == 64_000
    assert expert_share(tmp_path) == 0.25


@pytest.mark.parametrize(("name", "layers"), [("oss20b", 24), ("oss20b-3", 3), ("oss20b-0", None), ("oss20c", None)])
def test_name_of_a_model_contains_its_number_of_layers(name: str, layers: int | None) -> None:
    shape = find_oss_shape(name)
    assert (shape and shape["num_hidden_layers"]) == layers
