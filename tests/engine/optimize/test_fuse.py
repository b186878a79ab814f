"""Fused SwiGLU layers and rotary embeddings: equal to those of transformers, and used only where supported."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.llama import modeling_llama

from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.optimize.fuse import ROTARY_FUNCTION, FusedRotary, FusedSwiGLU, fuse_layers_and_rotary
from antiphon.engine.optimize.linears import MergedLinearSlice
from antiphon.engine.optimize.pack_linears import pack_linears
from antiphon.engine.optimize.select import select_forward
from antiphon.engine.optimize.validation import reference_logits
from tests.engine.kernel_builds import require_kernels
from tests.engine.tiny_models import copy_tiny_model

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def original_rotary_functions() -> Iterator[None]:
    """Restores the functions of transformers, including those that an earlier test replaced."""
    functions = {
        name: getattr(module, ROTARY_FUNCTION)
        for name, module in list(sys.modules.items())
        if hasattr(module, ROTARY_FUNCTION)
    }
    for name, function in functions.items():
        if isinstance(function, FusedRotary):
            setattr(sys.modules[name], ROTARY_FUNCTION, function.original)
    yield
    for name, function in functions.items():
        setattr(sys.modules[name], ROTARY_FUNCTION, function)


def build_packed_model(family: str, compiled_kernels: Kernels) -> tuple[nn.Module, Any]:
    model = copy_tiny_model(family)
    forward = select_forward(model, kernels=compiled_kernels)
    pack_linears(model, lambda: reference_logits(forward, model))
    return model, forward


@pytest.mark.parametrize(
    ("family", "gates", "rotary"),
    [
        ("llama", 2, 1),
        ("qwen3", 2, 1),
        ("mistral", 2, 1),
        ("gemma2", 0, 1),
        ("mixtral", 0, 1),
        ("gpt_oss", 0, 0),
        ("bloom", 0, 0),
    ],
)
def test_fused_model_has_the_same_logits(compiled_kernels: Kernels, family: str, gates: int, rotary: int) -> None:
    model, forward = build_packed_model(family, compiled_kernels)
    expected = reference_logits(forward, model)
    assert fuse_layers_and_rotary(model, compiled_kernels) == (gates, rotary)
    assert torch.allclose(reference_logits(forward, model), expected, atol=1e-4)
    assert sum(isinstance(module, FusedSwiGLU) for module in model.modules()) == gates
    assert fuse_layers_and_rotary(model, compiled_kernels) == (0, rotary)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_int8_product_includes_the_gate_before_it(
    compiled_kernels: Kernels, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_kernels()
    model = copy_tiny_model(family)
    forward = select_forward(model, kernels=compiled_kernels)
    pack_linears(model, lambda: reference_logits(forward, model), "int8", compiled_kernels)
    assert fuse_layers_and_rotary(model, compiled_kernels)[0] == 2
    gated_layers = [module for module in model.modules() if isinstance(module, FusedSwiGLU)]
    fused_logits = reference_logits(forward, model)
    monkeypatch.setattr(Kernels, "silu_mul", None)
    assert torch.equal(reference_logits(forward, model), fused_logits), "the gate is computed within the product"
    monkeypatch.undo()
    for module in gated_layers:
        module._activate_and_project = None
    assert torch.equal(reference_logits(forward, model), fused_logits)


class CountingKernels:
    """Kernels that count their rotary calls."""

    def __init__(self, kernels: Kernels) -> None:
        self.num_calls = 0
        self._kernels = kernels

    def supports_rotary(self, *args: Any) -> bool:
        return self._kernels.supports_rotary(*args)

    def apply_rotary(self, *args: Any) -> Any:
        self.num_calls += 1
        return self._kernels.apply_rotary(*args)


def test_unsupported_rotary_inputs_use_the_original_function(compiled_kernels: Kernels) -> None:
    kernels: Any = CountingKernels(compiled_kernels)
    rotary = FusedRotary(modeling_llama.apply_rotary_pos_emb, kernels)
    generator = torch.Generator().manual_seed(1)

    def make_inputs(
        batch: int = 1, dim: int = 32, table_dim: int | None = None, dtype: torch.dtype = torch.float32
    ) -> list[Any]:
        q, k = (torch.randn((batch, heads, 3, dim), generator=generator).to(dtype) for heads in (4, 2))
        return [q, k, *(torch.randn((batch, 3, table_dim or dim), generator=generator).to(dtype) for _ in "cs")]

    for count, inputs in enumerate((make_inputs(), make_inputs(dim=64)), 1):
        assert all(map(torch.allclose, rotary(*inputs), modeling_llama.apply_rotary_pos_emb(*inputs)))
        assert kernels.num_calls == 2 * count
    expanded = make_inputs()
    expanded[2] = expanded[2][:, :1].expand(1, 3, 32)
    transposed = make_inputs()
    transposed[0] = torch.randn((1, 4, 32, 3)).transpose(2, 3)
    mixed_dtypes = make_inputs()
    mixed_dtypes[2], mixed_dtypes[3] = mixed_dtypes[2].double(), mixed_dtypes[3].bfloat16()
    unsupported = [
        make_inputs(batch=2),
        make_inputs(dim=6),
        make_inputs(dtype=torch.bfloat16),
        expanded,
        transposed,
        mixed_dtypes,
    ]
    for inputs in unsupported:
        assert all(map(torch.equal, rotary(*inputs), modeling_llama.apply_rotary_pos_emb(*inputs)))
    inputs = make_inputs()
    rotated = rotary(*inputs, unsqueeze_dim=1)
    assert all(map(torch.equal, rotated, modeling_llama.apply_rotary_pos_emb(*inputs)))
    only_queries = FusedRotary(lambda q, k=None, cos=None, sin=None: (q * cos + sin, k), kernels)  # type: ignore[arg-type]
    query, _, cos, sin = make_inputs()
    assert torch.equal(only_queries(query, cos=cos, sin=sin)[0], query * cos + sin)
    mismatched = make_inputs()
    mismatched[1] = torch.randn((1, 2, 3, 64), generator=generator)
    with pytest.raises(RuntimeError, match="size of tensor"):
        rotary(*mismatched)
    assert kernels.num_calls == 4


def test_other_rotary_functions_are_not_replaced(compiled_kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    def other_rotation(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
        return q * cos.unsqueeze(1) + q.flip(-1) * sin.unsqueeze(1), k

    model, _ = build_packed_model("llama", compiled_kernels)
    for function in (other_rotation, lambda q, k, cos, sin, unsqueeze_dim: q + 1, lambda x, cos, sin: x, "no function"):
        monkeypatch.setattr(modeling_llama, ROTARY_FUNCTION, function)
        assert (
            fuse_layers_and_rotary(model, compiled_kernels)[1] == 0
            and getattr(modeling_llama, ROTARY_FUNCTION) is function
        )


class ScaledGatedLayer(nn.Module):
    """A gated layer with a scaled output."""

    needs_second_input = False

    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj, self.act_fn = (
            mlp.gate_proj,
            mlp.up_proj,
            mlp.down_proj,
            mlp.act_fn,
        )

    def forward(self, x: torch.Tensor, *extra_inputs: torch.Tensor) -> Any:
        assert extra_inputs or not self.needs_second_input
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x)) * 1.05


@pytest.mark.parametrize(
    "change", ["formula", "more inputs", "activation", "hook", "early hook", "own weight", "not packed"]
)
def test_altered_gated_layers_are_not_fused(compiled_kernels: Kernels, change: str) -> None:
    model: Any
    model, _ = (
        build_packed_model("llama", compiled_kernels) if change != "not packed" else (copy_tiny_model("llama"), None)
    )
    mlp = model.model.layers[0].mlp
    assert change == "not packed" or isinstance(mlp.gate_proj, MergedLinearSlice)
    if change == "formula":
        model.model.layers[0].mlp = ScaledGatedLayer(mlp)
    elif change == "more inputs":
        model.model.layers[0].mlp = ScaledGatedLayer(mlp)
        model.model.layers[0].mlp.needs_second_input = True
    elif change == "activation":
        mlp.act_fn = nn.GELU()
    elif change == "hook":
        mlp.register_forward_hook(lambda *_: None)
    elif change == "early hook":
        mlp.register_forward_pre_hook(lambda *_: None)
    elif change == "own weight":
        mlp.scale = nn.Parameter(torch.ones(1))
    assert fuse_layers_and_rotary(model, compiled_kernels)[0] == (0 if change == "not packed" else 1)
