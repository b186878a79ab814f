"""What takes the place of several steps of transformers' own: only where it is the same, and only what it knows."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from transformers.models.llama import modeling_llama

from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.model.select import reference_logits, select_forward
from antiphon.engine.optimize.fuse import ROTARY_FUNCTION, FusedRotary, FusedSwiGLU, fuse_layers_and_rotary
from antiphon.engine.optimize.linears import MergedLinearSlice
from antiphon.engine.optimize.pack_linears import pack_linears
from tests.engine.tiny_models import fresh

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """transformers' own functions are put back, also those that another test replaced before."""
    held = {
        name: getattr(module, ROTARY_FUNCTION)
        for name, module in list(sys.modules.items())
        if hasattr(module, ROTARY_FUNCTION)
    }
    for name, function in held.items():
        if isinstance(function, FusedRotary):
            setattr(sys.modules[name], ROTARY_FUNCTION, function._original)
    yield
    for name, function in held.items():
        setattr(sys.modules[name], ROTARY_FUNCTION, function)


def packed(family: str, compiled: Kernels) -> tuple[nn.Module, Any]:
    model = fresh(family)
    forward = select_forward(model, kernels=compiled)
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
def test_a_model_gives_the_same_logits_in_fewer_steps(compiled: Kernels, family: str, gates: int, rotary: int) -> None:
    model, forward = packed(family, compiled)
    truth = reference_logits(forward, model)
    assert fuse_layers_and_rotary(model, compiled) == (gates, rotary)
    assert torch.allclose(reference_logits(forward, model), truth, atol=1e-4)
    assert sum(isinstance(module, FusedSwiGLU) for module in model.modules()) == gates
    assert fuse_layers_and_rotary(model, compiled) == (0, rotary)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_in_int8_a_gate_is_part_of_the_product_after_it(
    compiled: Kernels, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled.supports_int8_linear(torch.ones(1, 1)):
        pytest.skip("there is no such kernel for this CPU")
    model = fresh(family)
    forward = select_forward(model, kernels=compiled)
    pack_linears(model, lambda: reference_logits(forward, model), "int8", compiled)
    assert fuse_layers_and_rotary(model, compiled)[0] == 2
    apart = [module for module in model.modules() if isinstance(module, FusedSwiGLU)]
    at_once = reference_logits(forward, model)
    monkeypatch.setattr(Kernels, "silu_mul", None)
    assert torch.equal(reference_logits(forward, model), at_once), "no gate of its own"
    monkeypatch.undo()
    for module in apart:
        module._activate_and_project = None
    assert torch.equal(reference_logits(forward, model), at_once)


class Watched:
    """Counts the calls of kernels."""

    def __init__(self, kernels: Kernels) -> None:
        self.turns = 0
        self._kernels = kernels

    def supports_rotary(self, *given: Any) -> bool:
        return self._kernels.supports_rotary(*given)

    def apply_rotary(self, *given: Any) -> Any:
        self.turns += 1
        return self._kernels.apply_rotary(*given)


def test_shapes_that_the_kernel_does_not_know_are_turned_as_before(compiled: Kernels) -> None:
    watched: Any = Watched(compiled)
    rotary = FusedRotary(modeling_llama.apply_rotary_pos_emb, watched)
    generator = torch.Generator().manual_seed(1)

    def given(batch: int = 1, dim: int = 32, table: int | None = None, kind: torch.dtype = torch.float32) -> list[Any]:
        q, k = (torch.randn((batch, heads, 3, dim), generator=generator).to(kind) for heads in (4, 2))
        return [q, k, *(torch.randn((batch, 3, table or dim), generator=generator).to(kind) for _ in "cs")]

    for count, inputs in enumerate((given(), given(dim=64)), 1):
        assert all(map(torch.allclose, rotary(*inputs), modeling_llama.apply_rotary_pos_emb(*inputs)))
        assert watched.turns == 2 * count
    expanded = given()
    expanded[2] = expanded[2][:, :1].expand(1, 3, 32)
    across = given()
    across[0] = torch.randn((1, 4, 32, 3)).transpose(2, 3)
    coarse = given()
    coarse[2], coarse[3] = coarse[2].double(), coarse[3].bfloat16()
    odd = [given(batch=2), given(dim=6), given(kind=torch.bfloat16), expanded, across, coarse]
    for inputs in odd:
        assert all(map(torch.equal, rotary(*inputs), modeling_llama.apply_rotary_pos_emb(*inputs)))
    inputs = given()
    turned = rotary(*inputs, unsqueeze_dim=1)
    assert all(map(torch.equal, turned, modeling_llama.apply_rotary_pos_emb(*inputs)))
    wider = given()
    wider[1] = torch.randn((1, 2, 3, 64), generator=generator)
    with pytest.raises(RuntimeError, match="size of tensor"):
        rotary(*wider)
    assert watched.turns == 4


def test_a_function_that_turns_otherwise_stays(compiled: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
        return q * cos.unsqueeze(1) + q.flip(-1) * sin.unsqueeze(1), k

    model, _ = packed("llama", compiled)
    for strange in (other, lambda q, k, cos, sin, unsqueeze_dim: q + 1, lambda x, cos, sin: x, "no function"):
        monkeypatch.setattr(modeling_llama, ROTARY_FUNCTION, strange)
        assert fuse_layers_and_rotary(model, compiled)[1] == 0 and getattr(modeling_llama, ROTARY_FUNCTION) is strange


class Louder(nn.Module):
    """As a gated layer, but not the same."""

    more = False

    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj, self.act_fn = (
            mlp.gate_proj,
            mlp.up_proj,
            mlp.down_proj,
            mlp.act_fn,
        )

    def forward(self, x: torch.Tensor, *also: torch.Tensor) -> Any:
        assert also or not self.more
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x)) * 1.05


@pytest.mark.parametrize(
    "change", ["formula", "more inputs", "activation", "hook", "early hook", "own weight", "not packed"]
)
def test_layers_that_are_not_plainly_gated_stay(compiled: Kernels, change: str) -> None:
    model: Any
    model, _ = packed("llama", compiled) if change != "not packed" else (fresh("llama"), None)
    mlp = model.model.layers[0].mlp
    assert change == "not packed" or isinstance(mlp.gate_proj, MergedLinearSlice)
    if change == "formula":
        model.model.layers[0].mlp = Louder(mlp)
    elif change == "more inputs":
        model.model.layers[0].mlp = Louder(mlp)
        model.model.layers[0].mlp.more = True
    elif change == "activation":
        mlp.act_fn = nn.GELU()
    elif change == "hook":
        mlp.register_forward_hook(lambda *_: None)
    elif change == "early hook":
        mlp.register_forward_pre_hook(lambda *_: None)
    elif change == "own weight":
        mlp.scale = nn.Parameter(torch.ones(1))
    assert fuse_layers_and_rotary(model, compiled)[0] == (0 if change == "not packed" else 1)
