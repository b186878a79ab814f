"""Copies of the base model's weights that PEFT saves with an adapter of the output layer."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from antiphon.engine.builder import build_core
from antiphon.engine.errors import LoadError
from antiphon.engine.options import EngineOptions, LoraModule
from antiphon.engine.scheduler.core import Core
from tests.engine.adapters.adapter_folders import (
    base_model,
    build_adapted_core,
    generate_merged,
    make_adapter,
    merge_adapter,
    write_adapter,
)
from tests.engine.tiny_models import generate_tokens, make_job, make_prompts

HEAD = "base_model.model.lm_head"
EMBEDDING = "base_model.model.model.embed_tokens"


def make_head_adapter(folder: Path, family: str = "llama", **copies: Tensor) -> Path:
    """Writes an adapter of the output layer and of another one, with copies of weights as PEFT saves them."""
    make_adapter(folder, family, 3, targets=["lm_head", "down_proj"])
    add_tensors(folder, copies)
    return folder


def add_tensors(folder: Path, tensors: dict[str, Tensor]) -> None:
    config: dict[str, Any] = json.loads((folder / "adapter_config.json").read_text())
    write_adapter(folder, config, load_file(folder / "adapter_model.safetensors") | tensors)


def save_base(folder: Path, family: str, dtype: torch.dtype = torch.float32) -> Path:
    copy.deepcopy(base_model(family)).to(dtype).save_pretrained(folder)
    return folder


def start(base: Path, adapter: Path) -> Core:
    return build_core(base, EngineOptions(lora_modules=(LoraModule("a", str(adapter)),), kv_cache_gib=0.01, threads=1))


@pytest.mark.parametrize("family", ["llama", "tied"])
def test_equal_copies_change_nothing(family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    weights = {key: value.clone() for key, value in base_model(family).state_dict().items()}
    adapter = make_head_adapter(
        tmp_path / "a",
        family,
        **{f"{HEAD}.base_layer.weight": weights["lm_head.weight"]},
        **{f"{EMBEDDING}.base_layer.weight": weights["model.embed_tokens.weight"]},
    )
    core = start(save_base(tmp_path / "base", family), adapter)
    prompt = make_prompts(9)[0]
    expected = generate_merged(merge_adapter(family, adapter), prompt, 6)
    assert generate_tokens(core, make_job(prompt, max_tokens=6, adapter="a")) == expected
    assert "copy of" not in caplog.text


def test_copies_in_another_type_are_compared_in_it(tmp_path: Path) -> None:
    weight = base_model("llama").state_dict()["lm_head.weight"].bfloat16()
    for dtype in (torch.float32, torch.bfloat16):
        adapter = make_head_adapter(tmp_path / f"a-{dtype}", **{f"{HEAD}.base_layer.weight": weight})
        assert start(save_base(tmp_path / f"{dtype}", "llama", dtype), adapter).adapters is not None


@pytest.mark.parametrize("key", [f"{HEAD}.base_layer.weight", f"{HEAD}.weight", f"{EMBEDDING}.base_layer.weight"])
def test_copy_that_was_trained_is_refused(key: str, tmp_path: Path) -> None:
    weight = torch.randn(96, 32)
    adapter = make_head_adapter(tmp_path / "a", **{key: weight})
    with pytest.raises(LoadError, match=r"differs from the base model's .*save_embedding_layers=False"):
        start(save_base(tmp_path / "base", "llama"), adapter)


def test_copy_of_a_resized_vocabulary_is_refused(tmp_path: Path) -> None:
    adapter = make_head_adapter(tmp_path / "a", **{f"{HEAD}.base_layer.weight": torch.zeros(97, 32)})
    with pytest.raises(LoadError, match=r"differs from the base model's lm_head\.weight"):
        start(save_base(tmp_path / "base", "llama"), adapter)


def test_copy_that_cannot_be_compared_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    adapter = make_head_adapter(tmp_path, **{f"{HEAD}.base_layer.weight": torch.zeros(96, 32)})
    build_adapted_core("llama", {"a": adapter})
    assert [message for message in caplog.messages if "its copy of lm_head.weight is not used" in message]


def test_bias_of_a_matrix_is_no_copy(tmp_path: Path) -> None:
    adapter = make_head_adapter(tmp_path, **{f"{HEAD}.lora_B.bias": torch.zeros(96)})
    with pytest.raises(LoadError, match="no matrix of a LoRA adapter"):
        build_adapted_core("llama", {"a": adapter})
