"""Replaces gated layers (SwiGLU) and rotary embeddings of transformers, each several operations, by one kernel call.

A replacement is compared with the original on the loaded model before it is used.
"""

import inspect
import logging
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from antiphon.engine.fallbacks import report_fallback
from antiphon.engine.forward.replace import SAME_FORMULA_RTOL, relative_error, replace_modules
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.optimize.linears import CompiledLinear, LinearKernel, MergedLinearSlice, PackedLinear

log = logging.getLogger(__name__)

GATED_MLP_CHILDREN = {"gate_proj", "up_proj", "down_proj", "act_fn"}
SILU_CLASSES = {"SiLU", "SiLUActivation"}
ROTARY_FUNCTION = "apply_rotary_pos_emb"
"""Name, in transformers' modules, of the function that rotates queries and keys."""

FUSED_RTOL = 1e-5
FUSED_INT8_RTOL = 1e-2
"""Tolerance if an int8 layer follows: a difference in the last bit may move an activation to the next int8 level."""

RotaryFn = Callable[..., tuple[Tensor, Tensor]]


class FusedSwiGLU(nn.Module):
    """Computes down(silu(gate(x)) · up(x)) in place of a model's own MLP. Gate and up are already one linear layer."""

    def __init__(self, gate_up: PackedLinear, down: nn.Module, kernels: Kernels) -> None:
        super().__init__()
        self.gate_up = gate_up
        self._kernels = kernels
        self.down_proj = down
        self._activate_and_project: LinearKernel | None = None
        if isinstance(down, PackedLinear) and isinstance(down.kernel, CompiledLinear):
            self._activate_and_project = down.kernel.linear_after_silu_mul

    @property
    def calls_down(self) -> bool:
        """True if the last layer is called as a module, False if its kernel also computes the activation."""
        return self._activate_and_project is None

    def activate(self, gate_up: Tensor) -> Tensor:
        """Returns the input of the last layer, silu(gate(x)) · up(x), for the product of the first two."""
        return self._kernels.silu_mul(gate_up)

    def forward(self, x: Tensor) -> Tensor:
        """Computes the MLP: (…, inputs) → (…, outputs)."""
        gate_up = self.gate_up(x)
        if self._activate_and_project is not None:
            return self._activate_and_project(gate_up)
        return self.down_proj(self.activate(gate_up))  # type: ignore[no-any-return]


@torch.inference_mode()
def fuse_layers_and_rotary(model: nn.Module, kernels: Kernels) -> tuple[int, int]:
    """Replaces gated layers and rotary functions where possible.

    Returns the number of gated layers replaced, and of transformers' modules whose rotary function is replaced.
    """
    num_gated = replace_modules(model, lambda mlp: _make_fused_swiglu(mlp, kernels))
    sources = {type(module).__module__ for module in model.modules()}
    return num_gated, sum(_replace_rotary(sys.modules[source], kernels) for source in sorted(sources))


def _make_fused_swiglu(mlp: Any, kernels: Kernels) -> FusedSwiGLU | None:
    """Returns the fused form of a module; None if the module is no such MLP or the results differ."""
    has_hooks = mlp._forward_hooks or mlp._forward_pre_hooks
    if dict(mlp.named_children()).keys() != GATED_MLP_CHILDREN or mlp._parameters or mlp._buffers or has_hooks:
        return None
    gate, up, down = mlp.gate_proj, mlp.up_proj, mlp.down_proj
    if not (isinstance(gate, MergedLinearSlice) and isinstance(up, MergedLinearSlice) and gate.merged is up.merged):
        return None
    is_gate_up_pair = (gate.index, up.index) == (0, 1) and gate.merged.linear.out_features == 2 * gate.out_features
    if (
        type(mlp.act_fn).__name__ not in SILU_CLASSES
        or not is_gate_up_pair
        or not kernels.is_row_aligned(gate.out_features)
    ):
        return None
    fused = FusedSwiGLU(gate.merged.linear, down, kernels)
    x = torch.linspace(-3.0, 4.0, 3 * gate.in_features).sin().view(1, 3, -1)
    try:
        inner_error = relative_error(fused.activate(fused.gate_up(x)), mlp.act_fn(gate(x)) * up(x))
        error = relative_error(fused(x), mlp(x))
    except Exception:  # noqa: BLE001  an MLP that needs more than its input stays unchanged
        return None
    if inner_error <= FUSED_RTOL and error <= FUSED_INT8_RTOL:
        return fused
    message = "%s is not fused: its results differ by %.2g, its activations by %.2g"
    report_fallback(log, "gated_layers", message, type(mlp).__name__, error, inner_error)
    return None


def _replace_rotary(module: Any, kernels: Kernels) -> bool:
    """Replaces the rotary function of one of transformers' modules. Tells whether it is replaced.

    The replacement affects all models of that module in this process, because the function is a module global.
    """
    original = getattr(module, ROTARY_FUNCTION, None)
    if not callable(original) or isinstance(original, FusedRotary):
        return isinstance(original, FusedRotary)
    if list(inspect.signature(original).parameters) != ["q", "k", "cos", "sin", "unsqueeze_dim"]:
        return False
    fused = FusedRotary(original, kernels)
    generator = torch.Generator().manual_seed(2)
    q, k = (torch.randn((1, 5, heads, 64), generator=generator).transpose(1, 2) for heads in (4, 2))
    cos, sin = (torch.randn((1, 5, 64), generator=generator) for _ in "cs")
    try:
        pairs = zip(fused(q, k, cos, sin), original(q, k, cos, sin), strict=True)
        error = max(relative_error(*pair) for pair in pairs)
    except Exception:  # noqa: BLE001  a function that needs other inputs stays unchanged
        return False
    if error <= FUSED_RTOL:
        setattr(module, ROTARY_FUNCTION, fused)
    elif error <= SAME_FORMULA_RTOL:
        report_fallback(log, "rotary", "the rotary embedding is not fused: its results differ by %.2g", error)
    return error <= FUSED_RTOL


class FusedRotary:
    """Rotates queries and keys (1, heads, n, dim) by a kernel; calls the original for shapes it does not support."""

    def __init__(self, original: RotaryFn, kernels: Kernels) -> None:
        self.original = original
        self._kernels = kernels

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Rotates queries and keys, with the signature of transformers' function. Some models pass queries only."""
        kernels = self._kernels
        if kwargs or len(args) != 4:
            return self.original(*args, **kwargs)
        q, k, cos, sin = args
        if not (kernels.supports_rotary(q, cos, sin) and kernels.supports_rotary(k, cos, sin)):
            return self.original(q, k, cos, sin)
        return kernels.apply_rotary(q, cos, sin), kernels.apply_rotary(k, cos, sin)
