"""Adapters that cannot be served are refused in one line that names the key or the layer."""

import copy
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from antiphon.engine.adapters.lora_config import MAX_RANK, read_lora_config
from antiphon.engine.adapters.modules import parse_lora_option
from antiphon.engine.adapters.peft_files import read_adapter_files
from antiphon.engine.builder import build_core_from_model
from antiphon.engine.errors import LoadError
from antiphon.engine.forward.varlen import VarlenForward
from antiphon.engine.options import EngineOptions
from tests.engine.adapters.adapter_folders import (
    ATTENTION,
    base_model,
    build_adapted_core,
    make_adapter,
    write_adapter,
)

REFUSED_SETTINGS: dict[str, dict[str, Any]] = {
    "modules_to_save": {"modules_to_save": ["lm_head"]},
    "use_dora": {"use_dora": True},
    "target_parameters": {"target_parameters": ["mlp.experts.down_proj"]},
    "trainable_token_indices": {"trainable_token_indices": [3]},
    "layer_replication": {"layer_replication": [[0, 2]]},
    "alora_invocation_tokens": {"alora_invocation_tokens": [5]},
    "lora_bias": {"lora_bias": True},
    "bias": {"bias": "all"},
    "init_lora_weights": {"init_lora_weights": "pissa_niter_4"},
    "peft_type": {"peft_type": "LOHA"},
    "task_type": {"task_type": "SEQ_CLS"},
    "a_key_of_tomorrow": {"a_key_of_tomorrow": {"on": True}},
    "r": {"r": MAX_RANK + 1},
    "rank_pattern": {"rank_pattern": {"q_proj": 0}},
}


@pytest.mark.parametrize("key", REFUSED_SETTINGS)
def test_settings_that_change_more_than_linear_layers_are_refused(key: str, tmp_path: Path) -> None:
    make_adapter(tmp_path, "qwen3", 1, **REFUSED_SETTINGS[key])
    named = "q_proj" if key == "rank_pattern" else key
    with pytest.raises(LoadError, match=f"adapter_config.json has {named} = "):
        read_lora_config(tmp_path)


def test_settings_of_training_are_accepted(tmp_path: Path) -> None:
    harmless = {
        "lora_dropout": 0.1,
        "megatron_core": "megatron.core",
        "loftq_config": {"loftq_bits": 4},
        "revision": "main",
        "qalora_group_size": 16,
        "init_lora_weights": "gaussian",
        "layers_to_transform": [0, 1],
        "use_qalora": False,
        "eva_config": None,
    }
    make_adapter(tmp_path, "qwen3", 1, **harmless)
    assert read_lora_config(tmp_path).rank == 4


@pytest.mark.parametrize(
    ("settings", "layer", "rank", "scale"),
    [
        ({}, "model.layers.0.mlp.up_proj", 4, 2.0),
        ({"use_rslora": True}, "model.layers.0.mlp.up_proj", 4, 4.0),
        ({"rank_pattern": {"up_proj": 2}}, "model.layers.0.mlp.up_proj", 2, 4.0),
        ({"rank_pattern": {"up_proj": 2}}, "model.layers.0.mlp.gate_up_proj", 4, 2.0),
        ({"rank_pattern": {r"layers\.1\..*q_proj": 2}}, "model.layers.1.self_attn.q_proj", 2, 4.0),
        ({"alpha_pattern": {"^model.layers.0.mlp.up_proj": 32}}, "model.layers.0.mlp.up_proj", 4, 8.0),
        ({"rank_pattern": {"up_proj": 16}, "alpha_pattern": {"up_proj": 4}, "use_rslora": True}, "a.up_proj", 16, 1.0),
    ],
)
def test_ranks_and_scales_are_those_of_peft(
    settings: dict[str, Any], layer: str, rank: int, scale: float, tmp_path: Path
) -> None:
    make_adapter(tmp_path, "qwen3", 1, **settings)
    config = read_lora_config(tmp_path)
    assert config.rank_of(layer) == rank
    assert config.scale_of(layer) == pytest.approx(scale)


@pytest.mark.parametrize(
    ("targets", "layer", "is_target"),
    [
        (["q_proj"], "model.layers.0.self_attn.q_proj", True),
        (["q_proj"], "model.layers.0.self_attn.eq_proj", False),
        (["self_attn.q_proj"], "model.layers.0.self_attn.q_proj", True),
        (r".*layers\.[01]\.mlp\.(up|down)_proj", "model.layers.1.mlp.down_proj", True),
        (r".*layers\.[01]\.mlp\.(up|down)_proj", "model.layers.2.mlp.down_proj", False),
        ("all-linear", "model.layers.2.mlp.down_proj", True),
    ],
)
def test_target_modules_are_a_list_a_pattern_or_all(
    targets: list[str] | str, layer: str, is_target: bool, tmp_path: Path
) -> None:
    write_adapter(tmp_path, {"target_modules": targets}, {"x": torch.zeros(1)})
    assert read_lora_config(tmp_path).is_target(layer) is is_target


def refusal_of(folder: Path, family: str = "qwen3") -> str:
    with pytest.raises(LoadError) as raised:
        build_adapted_core(family, {"a": folder})
    return raised.value.message


def test_a_layer_that_the_base_lacks_is_named(tmp_path: Path) -> None:
    make_adapter(tmp_path, "phi3", 1, targets=["qkv_proj"], base_model_name_or_path="some/phi")
    message = refusal_of(tmp_path)
    assert "layers that the base model does not have: model.layers.0.self_attn.qkv_proj" in message
    assert "(some/phi)" in message


def test_a_shape_of_another_model_is_told(tmp_path: Path) -> None:
    make_adapter(tmp_path, "mistral", 1, targets=["down_proj"], rank=3)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    key = "base_model.model.model.layers.0.mlp.down_proj"
    write_adapter(
        tmp_path, config, {f"{key}.lora_A.weight": torch.zeros(3, 47), f"{key}.lora_B.weight": torch.zeros(32, 3)}
    )
    assert "lora_A of model.layers.0.mlp.down_proj has the shape 3 x 47" in refusal_of(tmp_path)
    write_adapter(
        tmp_path, config, {f"{key}.lora_A.weight": torch.zeros(2, 48), f"{key}.lora_B.weight": torch.zeros(32, 2)}
    )
    assert "require 3 x 48" in refusal_of(tmp_path)


@pytest.mark.parametrize("number", [torch.nan, -torch.inf])
def test_matrix_that_is_not_finite_is_refused(number: float, tmp_path: Path) -> None:
    make_adapter(tmp_path, "qwen3", 1, targets=["q_proj"])
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    tensors["base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"][3, 1] = number
    write_adapter(tmp_path, json.loads((tmp_path / "adapter_config.json").read_text()), tensors)
    assert "lora_B of model.layers.1.self_attn.q_proj holds NaN or infinity" in refusal_of(tmp_path)


@pytest.mark.parametrize("fault", ["shape", "layer", "file"])
def test_adapter_is_refused_before_the_model_is_packed(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("optimize_model", "_select_forward"):
        monkeypatch.setattr(
            f"antiphon.engine.model_build.stages.{name}", lambda *_: pytest.fail("found late", pytrace=False)
        )
    make_adapter(tmp_path, "gemma2" if fault == "shape" else "phi3", 1, targets=["o_proj", "qkv_proj"])
    if fault == "shape":
        config, key = json.loads((tmp_path / "adapter_config.json").read_text()), "base_model.model.model.layers.0"
        matrices = {"A": torch.zeros(4, 31), "B": torch.zeros(32, 4)}
        write_adapter(
            tmp_path,
            config,
            {f"{key}.self_attn.o_proj.lora_{name}.weight": matrix for name, matrix in matrices.items()},
        )
    elif fault == "file":
        (tmp_path / "adapter_model.safetensors").write_bytes(b"x")
    reason = {"shape": "has the shape 4 x 31", "layer": "does not have", "file": "cannot be read"}[fault]
    assert reason in refusal_of(tmp_path)


def test_weights_that_target_modules_does_not_name_are_refused(tmp_path: Path) -> None:
    make_adapter(tmp_path, "qwen3", 1, targets=["q_proj"])
    path = tmp_path / "adapter_config.json"
    path.write_text(path.read_text().replace('"q_proj"', '"k_proj"'))
    assert "self_attn.q_proj, which target_modules does not name" in refusal_of(tmp_path)


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("base_model.model.model.embed_tokens.lora_embedding_A", "adapters of embeddings"),
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector.weight", "use_dora"),
        ("base_model.model.lm_head.modules_to_save.weight", "modules_to_save"),
        ("transformer.h.0.attn.lora_A", "no matrix of a LoRA adapter"),
    ],
)
def test_other_weights_in_the_file_are_refused(key: str, kind: str, tmp_path: Path) -> None:
    write_adapter(tmp_path, {"target_modules": ["q_proj"]}, {key: torch.zeros(2, 2)})
    with pytest.raises(LoadError, match=kind):
        read_adapter_files(tmp_path)


class RowChoosingMlp(nn.Module):
    """Two experts, each of which computes the rows that chose it."""

    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        self.experts = nn.ModuleList([mlp, copy.deepcopy(mlp)])

    def forward(self, x: Tensor) -> Tensor:
        result = torch.empty_like(x)
        chosen = x[..., 0] > 0
        for index, expert in enumerate(self.experts):
            result[chosen == bool(index)] = expert(x[chosen == bool(index)])
        return result


def test_layers_of_single_experts_are_refused(tmp_path: Path) -> None:
    """Their rows are gathered, so that no row of theirs can be told to belong to an adapter."""
    model: Any = copy.deepcopy(base_model("llama"))
    model.model.layers[1].mlp = RowChoosingMlp(model.model.layers[1].mlp)
    core = build_core_from_model(model, options=EngineOptions(allow_lora_updates=True, kv_cache_gib=0.01))
    assert isinstance(core.forward, VarlenForward)
    assert core.adapters is not None
    make_adapter(tmp_path / "attention", "llama", 1, targets=ATTENTION)
    core.adapters.load("a", str(tmp_path / "attention"))
    folder = make_adapter(tmp_path / "all", "llama", 1)
    config = json.loads((folder / "adapter_config.json").read_text())
    key = "base_model.model.model.layers.1.mlp.experts.1.up_proj"
    write_adapter(
        folder, config, {f"{key}.lora_A.weight": torch.zeros(4, 32), f"{key}.lora_B.weight": torch.zeros(48, 4)}
    )
    with pytest.raises(
        LoadError, match=r"names model.layers.1.mlp.experts.1.up_proj: it is not computed once for each"
    ):
        core.adapters.load("b", str(folder))


def test_missing_files_are_named(tmp_path: Path) -> None:
    assert "there is no such folder" in refusal_of(tmp_path / "none")
    assert "holds no adapter_model.safetensors" in refusal_of(tmp_path)
    (tmp_path / "adapter_model.bin").write_bytes(b"x")
    assert "may run code and is never read" in refusal_of(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"x")
    assert "holds no adapter_config.json" in refusal_of(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{")
    assert "cannot be read" in refusal_of(tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"target_modules": ["q_proj"]}')
    assert "adapter_model.safetensors cannot be read" in refusal_of(tmp_path)


def test_another_base_model_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    core = build_adapted_core("qwen3", {}, allow_lora_updates=True)
    assert core.adapters is not None
    core.adapters._base_folder = Path("/hub/models--Qwen--Qwen3-0.6B/snapshots/abc")
    for name, warns in (("Qwen/Qwen3-0.6B", False), ("unsloth/qwen3-0.6b", False), ("Qwen/Qwen3-4B", True)):
        make_adapter(tmp_path, "qwen3", 1, base_model_name_or_path=name)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            core.adapters.load("a", str(tmp_path))
        assert ("trained on Qwen/Qwen3-4B" in caplog.text) is warns


def test_memory_of_adapters_is_told(tmp_path: Path) -> None:
    make_adapter(tmp_path, "qwen3", 1, targets=["q_proj"], rank=4)
    description = build_adapted_core("qwen3", {"sql": tmp_path}).info.description
    assert "adapters sql (rank 4, 2 layers, 0.0 MiB)" in description


@pytest.mark.parametrize("text", ["sql", "=path", "sql=", " = "])
def test_an_option_without_name_or_path_is_refused(text: str) -> None:
    with pytest.raises(LoadError, match="write NAME=PATH"):
        parse_lora_option(text)
