"""Routers multiply row by row, whatever else they take and however they hold their weight."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon.engine.optimize.experts.routers import ExactRouter, make_routers_exact, make_shared_gates_exact
from antiphon.engine.optimize.pack_linears import _choose_form

HIDDEN, NUM_EXPERTS = 96, 5


class OwnWeightRouter(nn.Module):
    """Holds its weight and a bias itself, as most routers do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(NUM_EXPERTS, HIDDEN), requires_grad=False)
        self.bias = nn.Parameter(torch.randn(NUM_EXPERTS), requires_grad=False)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return functional.linear(hidden_states, self.weight.type(torch.float32), self.bias)


class CorrectedRouter(OwnWeightRouter):
    """Takes a correction of the scores."""

    def forward(self, hidden_states: Tensor, e_score_correction_bias: Tensor) -> Tensor:  # type: ignore[override]
        return functional.linear(hidden_states, self.weight) + e_score_correction_bias


class HashRouter(OwnWeightRouter):
    """Takes token ids."""

    def forward(self, hidden_states: Tensor, input_ids: Tensor) -> Tensor:  # type: ignore[override]
        return functional.linear(hidden_states, self.weight) + input_ids[:, None]


class SigmoidRouter(OwnWeightRouter):
    """Applies a function whose last bits depend on an element's place in the tensor."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return functional.linear(hidden_states, self.weight).sigmoid()


class LinearRouter(nn.Linear):
    """Is a linear layer itself."""

    def __init__(self) -> None:
        super().__init__(HIDDEN, NUM_EXPERTS, bias=False)
        self.weight.requires_grad_(False)


class OtherRouter(OwnWeightRouter):
    """Multiplies in another way."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states @ self.weight.T


class Experts(nn.Module):
    """Marks the module whose other children are routers."""


class Mixture(nn.Module):
    """A router next to experts."""

    def __init__(self, router: nn.Module) -> None:
        super().__init__()
        self.experts, self.gate = Experts(), router


def make_rows(count: int) -> Tensor:
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    ("build", "other"),
    [
        (OwnWeightRouter, lambda _: ()),
        (CorrectedRouter, lambda _: (torch.arange(NUM_EXPERTS),)),
        (HashRouter, lambda rows: (torch.arange(rows),)),
        (LinearRouter, lambda _: ()),
        (SigmoidRouter, lambda _: ()),
    ],
)
@torch.inference_mode()
def test_a_router_gives_the_same_bits_in_any_batch(
    build: Callable[[], nn.Module], other: Callable[[int], tuple[Tensor, ...]]
) -> None:
    mixture, x = Mixture(build()), make_rows(40)
    expected = mixture.gate(x, *other(40))
    assert make_routers_exact(mixture, Experts) == 1
    assert isinstance(mixture.gate, ExactRouter)
    assert not any(parameter.ndim > 1 for parameter in mixture.parameters())
    result = mixture.gate(x, *other(40))
    assert torch.allclose(result, expected, atol=1e-4)
    for count in (1, 2, 3, 17, 33):
        assert torch.equal(mixture.gate(x[:count], *other(count)), result[:count])


@torch.inference_mode()
def test_the_gate_of_a_shared_expert_gives_the_same_bits_in_any_batch() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts, self.shared_expert_gate = Experts(), nn.Linear(HIDDEN, 1)

        def forward(self, scores: Tensor) -> Tensor:
            return torch.sigmoid(scores)

    block, x = Block(), make_rows(70)[:, :1].contiguous()
    make_shared_gates_exact(block, Experts)
    expected = block(x)
    assert torch.allclose(expected, x.sigmoid())
    for row in range(70):
        assert torch.equal(block(x[row : row + 1]), expected[row : row + 1])


@pytest.mark.parametrize("build", [OtherRouter, lambda: nn.Linear(HIDDEN, NUM_EXPERTS)])
@torch.inference_mode()
def test_a_router_that_multiplies_in_another_way_stays_as_it_is(build: Callable[[], nn.Module]) -> None:
    router = build()
    mixture, x = Mixture(router), make_rows(4)
    expected = router(x)
    assert make_routers_exact(mixture, Experts) == 0
    assert mixture.gate is router and "weight" in dict(router.named_parameters())
    assert torch.equal(router(x), expected)


@pytest.mark.parametrize("name", ["layers.0.mlp.gate", "layers.0.router.proj", "layers.0.mlp.gate.wg"])
def test_linear_layers_of_routers_stay_fp32(name: str) -> None:
    assert _choose_form(name, "int8", "lm_head") is None
    assert _choose_form("layers.0.mlp.gate_proj", "int8", "lm_head") == "int8"
