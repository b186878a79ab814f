"""Where transformers takes several steps for what a kernel does in one: gated layers and rotary positions.

As everywhere, a replacement is compared with the original on the loaded model before it stays.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.optimize.linears import CompiledInt8Linear, LinearKernel, MergedLinearSlice, PackedLinear
from antiphon.engine.optimize.replace import relative_error, replace_modules

GATED_MLP_CHILDREN = {"gate_proj", "up_proj", "down_proj", "act_fn"}
SILU_CLASSES = {"SiLU", "SiLUActivation"}
ROTARY_FUNCTION = "apply_rotary_pos_emb"
"""What transformers' modules call the function that turns queries and keys."""

FUSED_RTOL = 1e-5
FUSED_INT8_RTOL = 1e-2
"""As above, where int8 comes after: a last bit may move an activation to the next of its few levels."""

RotaryFn = Callable[..., tuple[Tensor, Tensor]]


class FusedSwiGLU(nn.Module):
    """down(silu(gate(x)) · up(x)), in the place of a model's own; gate and up are one linear layer already."""

    def __init__(self, gate_up: PackedLinear, down: nn.Module, kernels: Kernels) -> None:
        super().__init__()
        self.gate_up = gate_up
        self._kernels = kernels
        self.down_proj = down
        self._activate_and_project: LinearKernel | None = None
        if isinstance(down, PackedLinear) and isinstance(down.kernel, CompiledInt8Linear):
            self._activate_and_project = down.kernel.linear_after_silu_mul

    def activate(self, x: Tensor) -> Tensor:
        """What is given to the last layer."""
        return self._kernels.silu_mul(self.gate_up(x))

    def forward(self, x: Tensor) -> Tensor:
        """(…, inputs) → (…, outputs)."""
        if self._activate_and_project is not None:
            return self._activate_and_project(self.gate_up(x))
        return self.down_proj(self.activate(x))  # type: ignore[no-any-return]


@torch.inference_mode()
def fuse_layers_and_rotary(model: nn.Module, kernels: Kernels) -> tuple[int, int]:
    """Replace what can be; how many gated layers, and in how many of transformers' modules the rotary function."""
    gates = replace_modules(model, lambda mlp: _make_fused_swiglu(mlp, kernels))
    sources = {type(module).__module__ for module in model.modules()}
    return gates, sum(_replace_rotary(sys.modules[source], kernels) for source in sorted(sources))


def _make_fused_swiglu(mlp: Any, kernels: Kernels) -> FusedSwiGLU | None:
    """The same in fewer steps; None if it is something else."""
    watched = mlp._forward_hooks or mlp._forward_pre_hooks
    if dict(mlp.named_children()).keys() != GATED_MLP_CHILDREN or mlp._parameters or mlp._buffers or watched:
        return None
    gate, up, down = mlp.gate_proj, mlp.up_proj, mlp.down_proj
    if not (isinstance(gate, MergedLinearSlice) and isinstance(up, MergedLinearSlice) and gate.merged is up.merged):
        return None
    alike = (gate.index, up.index) == (0, 1) and gate.merged.linear.out_features == 2 * gate.out_features
    if type(mlp.act_fn).__name__ not in SILU_CLASSES or not alike or not kernels.is_row_aligned(gate.out_features):
        return None
    twin = FusedSwiGLU(gate.merged.linear, down, kernels)
    x = torch.linspace(-3.0, 4.0, 3 * gate.in_features).sin().view(1, 3, -1)
    try:
        inner = relative_error(twin.activate(x), mlp.act_fn(gate(x)) * up(x))
        return twin if inner <= FUSED_RTOL and relative_error(twin(x), mlp(x)) <= FUSED_INT8_RTOL else None
    except Exception:  # noqa: BLE001  one that wants more than its input stays as it is
        return None


def _replace_rotary(module: Any, kernels: Kernels) -> bool:
    """In one of transformers' modules, for all its models in this process: it has no other place to put one."""
    original = getattr(module, ROTARY_FUNCTION, None)
    if not callable(original) or isinstance(original, FusedRotary):
        return isinstance(original, FusedRotary)
    if list(inspect.signature(original).parameters) != ["q", "k", "cos", "sin", "unsqueeze_dim"]:
        return False
    twin = FusedRotary(original, kernels)
    generator = torch.Generator().manual_seed(2)
    q, k = (torch.randn((1, 5, heads, 64), generator=generator).transpose(1, 2) for heads in (4, 2))
    cos, sin = (torch.randn((1, 5, 64), generator=generator) for _ in "cs")
    try:
        alike = all(
            relative_error(*pair) <= FUSED_RTOL
            for pair in zip(twin(q, k, cos, sin), original(q, k, cos, sin), strict=True)
        )
    except Exception:  # noqa: BLE001  one that wants other inputs stays as it is
        return False
    if alike:
        setattr(module, ROTARY_FUNCTION, twin)
    return alike


class FusedRotary:
    """Turns queries and keys (1, heads, n, dim) by a kernel where it knows their shapes, else as before."""

    def __init__(self, original: RotaryFn, kernels: Kernels) -> None:
        self._original = original
        self._kernels = kernels

    def __call__(
        self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *more: Any, **named: Any
    ) -> tuple[Tensor, Tensor]:
        """As transformers' own."""
        kernels = self._kernels
        if more or named or not (kernels.supports_rotary(q, cos, sin) and kernels.supports_rotary(k, cos, sin)):
            return self._original(q, k, cos, sin, *more, **named)
        return kernels.apply_rotary(q, cos, sin), kernels.apply_rotary(k, cos, sin)
