"""Quantized checkpoints: computed exactly from their stored numbers where the kernels can, else dequantized."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from antiphon.engine.builder import build_core
from antiphon.engine.checkpoint import formats
from antiphon.engine.checkpoint.quantized.lazy_weight import LazyWeight
from antiphon.engine.errors import LoadError
from antiphon.engine.load import loader
from antiphon.engine.load.loader import load_model
from antiphon.engine.load.mmap_weights import MmapLinear
from antiphon.engine.optimize.stored_linears import build_stored_linear
from antiphon.engine.optimize.validation import reference_logits
from antiphon.engine.options import EngineOptions
from tests.engine.checkpoint import quantized_folders as folders
from tests.engine.checkpoint.quantized_cases import CASES

pytestmark = pytest.mark.filterwarnings("ignore")


PROMPT = torch.tensor([[3, 9, 27, 81, 51, 57, 75, 33]])


def relative_error(result: Tensor, expected: Tensor) -> float:
    return float((result - expected).norm() / expected.norm())


@pytest.mark.parametrize("name", CASES)
def test_checkpoint_computes_what_its_dequantized_weights_compute(name: str, tmp_path: Path) -> None:
    quantize, settings, _ = CASES[name]
    expected: Any = folders.write_checkpoint(tmp_path, quantize, settings)
    model: Any = load_model(tmp_path, device="cpu")[0]
    with torch.inference_mode():
        assert relative_error(model(PROMPT).logits, expected(PROMPT).logits) < 1e-5
    assert isinstance(model.model.layers[0].mlp.down_proj, MmapLinear)


@pytest.mark.parametrize("name", ["gptq-zeros", "awq", "ct-w4a16", "fp8-block", "bnb-nf4"])
def test_experts_are_dequantized_one_by_one(name: str, tmp_path: Path) -> None:
    quantize, settings, _ = CASES[name]
    expected: Any = folders.write_checkpoint(tmp_path, quantize, settings, "mixtral").model.layers[0].mlp.experts  # type: ignore[union-attr]
    stored: Any = load_model(tmp_path, device="cpu")[0].model.layers[0].mlp.experts  # type: ignore[union-attr]
    for part in ("gate_up_proj", "down_proj"):
        assert isinstance(stored.weights[part], LazyWeight)
        for index, weight in enumerate(getattr(expected, part)):
            assert torch.allclose(stored.expert_weight(part, index), weight, rtol=1e-6, atol=0)


def test_engine_packs_dequantized_experts(tmp_path: Path) -> None:
    quantize, settings, _ = CASES["awq"]
    folders.write_checkpoint(tmp_path, quantize, settings, "mixtral")
    core = build_core(tmp_path, EngineOptions(threads=1, force_quantization=True))
    assert "experts in int8" in core.info.description


def make_exact_rows(inputs: int) -> Tensor:
    """Rows that are their own int8 levels, so that quantized activations have no error."""
    rows = torch.randint(-127, 128, (19, inputs), generator=torch.Generator().manual_seed(1)).float()
    rows[:, 0] = 127
    return rows


@pytest.mark.parametrize("compiles", [True, False], ids=["kernels", "torch"])
@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][2]])
def test_layers_compute_with_their_stored_numbers(
    name: str, compiles: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    quantize, settings, form = CASES[name]
    folders.write_checkpoint(tmp_path, quantize, settings)
    kernels = request.getfixturevalue("compiled_kernels") if compiles else None
    layer: Any = load_model(tmp_path, device="cpu")[0].model.layers[0]  # type: ignore[union-attr]
    for layers in ([layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj], [layer.mlp.down_proj]):
        for part in layers:
            part.register_parameter("bias", torch.nn.Parameter(torch.arange(float(part.out_features))))
        kernel = build_stored_linear(layers, kernels, "stored")
        if name == "gptq-g32" or (form == "int8" and not compiles):
            assert kernel is None  # no layout can hold these levels, so they are dequantized
            continue
        assert kernel is not None
        x = make_exact_rows(layers[0].in_features)
        expected = torch.cat([x @ part.weight.T + part.bias for part in layers], -1).detach()
        assert relative_error(kernel(x), expected) < 1e-6
        assert torch.equal(kernel(x)[7:8], kernel(x[7:8]))
        assert build_stored_linear(layers, kernels, "int8" if form == "int4" else "int4") is None


@pytest.mark.parametrize(
    ("name", "options", "forms"),
    [
        ("gptq-act-order", {}, "stored in gptq; 4 matrices in int4, 1 matrices in int8"),
        ("fp8-block", {}, "stored in fp8; 5 matrices in int8"),
        ("awq", {"quantization": "int8"}, "stored in awq; int8, "),
        ("ct-w8a8", {"dtype": "float32"}, "stored in compressed-tensors; packed in float16; "),
    ],
)
def test_engine_says_in_which_form_weights_are_computed(
    name: str, options: dict[str, Any], forms: str, tmp_path: Path
) -> None:
    quantize, settings, _ = CASES[name]
    expected: Any = folders.write_checkpoint(tmp_path, quantize, settings)
    core = build_core(tmp_path, EngineOptions(threads=1, force_quantization=True, **options))
    assert forms in core.info.description
    model: Any = core.forward.model  # type: ignore[attr-defined]
    with torch.inference_mode():
        logits = expected(torch.tensor([[(5 + 17 * n) % 96 for n in range(64)]])).logits[0]
    error = relative_error(reference_logits(core.forward, model), logits)
    assert error < (1e-4 if "dtype" in options else 0.15)  # the rest is that of activations in 8 bits


def test_weights_can_be_loaded_in_another_type(tmp_path: Path) -> None:
    quantize, settings, _ = CASES["awq"]
    expected: Any = folders.write_checkpoint(tmp_path, quantize, settings)
    model: Any = load_model(tmp_path, device="cpu", dtype="bfloat16")[0]
    weight = model.model.layers[0].mlp.up_proj.weight
    assert type(weight) is torch.nn.Parameter
    assert torch.equal(weight, expected.model.layers[0].mlp.up_proj.weight.bfloat16())


def test_gpu_needs_the_packages_that_transformers_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quantize, settings, _ = CASES["gptq"]
    folders.write_checkpoint(tmp_path, quantize, settings)
    monkeypatch.setattr(loader, "choose_device", lambda device: "cuda")
    monkeypatch.setattr(formats, "find_spec", lambda name: None)
    with pytest.raises(LoadError, match="pip install optimum gptqmodel"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("name", "damaged", "message"),
    [
        ("ct-fp8-block", ".weight_scale", "scales do not fit"),
        ("gptq", ".g_idx", "differ in size"),
        ("ct-w4a16", ".weight_packed", "without gaps"),
    ],
)
def test_damaged_weights_are_reported_in_one_line(name: str, damaged: str, message: str, tmp_path: Path) -> None:
    quantize, settings, _ = CASES[name]

    def damage(weight: Tensor) -> folders.StoredLayer:
        layer = quantize(weight)
        tensor = layer.tensors[damaged]
        layer.tensors[damaged] = torch.zeros_like(tensor) if damaged == ".g_idx" else tensor.repeat(1, 5)
        return layer

    folders.write_checkpoint(tmp_path, damage, settings)
    with pytest.raises(LoadError, match=message) as caught:
        build_core(tmp_path, EngineOptions(threads=1))
    assert "\n" not in str(caught.value)
