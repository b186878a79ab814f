"""A checkpoint whose weights are not finite is refused at start, in one line that names the weight."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from antiphon.engine.builder import build_core
from antiphon.engine.errors import LoadError
from antiphon.engine.load.finite_logits import check_finite
from antiphon.engine.options import EngineOptions
from tests.engine.tiny_models import copy_tiny_model, tiny_model

DOWN_PROJ = "model.layers.1.mlp.down_proj.weight"


def save_broken(folder: Path, family: str, name: str, value: float, *, half: bool = False) -> Path:
    """Saves a tiny model, one of whose weights has a row of this value."""
    model = copy_tiny_model(family)
    (model.bfloat16() if half else model).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    tensors[name][1] = value
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def refuse(folder: Path, **options: Any) -> str:
    with pytest.raises(LoadError) as refused:
        build_core(folder, EngineOptions(kv_cache_gib=0.01, threads=1, **options))
    return refused.value.message


@pytest.mark.parametrize(
    ("family", "name", "options"),
    [
        ("llama", DOWN_PROJ, {}),
        ("llama", DOWN_PROJ, {"quantization": "int4"}),
        ("lfm2", "model.layers.1.feed_forward.w2.weight", {}),
        ("bloom", "transformer.h.1.mlp.dense_4h_to_h.weight", {}),
        ("bloom", "transformer.h.1.mlp.dense_4h_to_h.weight", {"quantization": "int4"}),
    ],
)
def test_weight_of_nan_is_named_before_the_model_serves(
    family: str, name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    message = refuse(save_broken(tmp_path, family, name, torch.nan), **options)
    assert f"the weight {name} holds NaN or infinity" in message and str(tmp_path) in message
    assert "--quantization" not in message


def test_infinite_weight_is_refused(tmp_path: Path) -> None:
    assert f"the weight {DOWN_PROJ} holds" in refuse(save_broken(tmp_path, "llama", DOWN_PROJ, torch.inf, half=True))


def test_expert_of_nan_is_refused_although_validation_does_not_compute_it(tmp_path: Path) -> None:
    name = "model.layers.1.block_sparse_moe.experts.2.w2.weight"
    assert f"the weight {name} holds" in refuse(save_broken(tmp_path, "mixtral", name, torch.nan, half=True))


def test_suppressed_tokens_are_no_fault() -> None:
    logits = torch.zeros(3, 8)
    logits[:, 2:] = -torch.inf
    check_finite(logits, tiny_model("llama"))
    logits[1] = -torch.inf
    with pytest.raises(LoadError, match="no finite logits in float32; fetch the model again"):
        check_finite(logits, tiny_model("llama"))
