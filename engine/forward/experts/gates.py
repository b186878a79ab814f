"""Activations of experts between their two matrices. Most activate a gate that multiplies the other outputs."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.integrations.moe import _default_apply_gate

from antiphon.engine.fallbacks import report_fallback
from antiphon.engine.forward.experts.layout import ExpertsLayout
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.kernels.expert_layer import ClampedGate

log = logging.getLogger(__name__)

Gate = Callable[[Tensor], Tensor]
"""Maps the outputs of the first matrix (rows, gate and up) to the inputs of the second. May overwrite them."""

MAX_BLOCK_ELEMENTS = 1 << 15
"""Elements up to which torch computes an operation on one thread, from the first element to the last."""

PROBE_VALUES = 33
"""Values on which an activation is compared with a known one."""

VECTOR_ELEMENTS = 32
"""Elements that torch computes together; it computes the rest of a tensor in another way, with other last bits."""


class ModuleGate:
    """The module's own activation, on blocks of rows whose bits do not depend on each other."""

    def __init__(self, module: nn.Module, layout: ExpertsLayout) -> None:
        self._module: Any = module
        self._layout = layout

    def __call__(self, x: Tensor) -> Tensor:
        """Implements `Gate`."""
        width = x.shape[1]
        inner = width // 2 if self._layout.is_gated else width
        block = max(MAX_BLOCK_ELEMENTS // width, 1) if inner % VECTOR_ELEMENTS == 0 else 1
        return torch.cat([self._apply(rows) for rows in torch.split(x, block)])

    def _apply(self, rows: Tensor) -> Tensor:
        if not self._layout.is_gated:
            result: Tensor = self._module.act_fn(rows)
        elif self._layout.is_interleaved:
            gate, up = rows.chunk(2, dim=-1)
            result = self._apply_own_gate(torch.stack([gate, up], -1).flatten(-2))
        else:
            result = self._apply_own_gate(rows)
        return result

    def _apply_own_gate(self, rows: Tensor) -> Tensor:
        apply_gate: Gate = getattr(self._module, "_apply_gate", partial(_default_apply_gate, self._module))
        return apply_gate(rows)


def choose_gate(module: nn.Module, layout: ExpertsLayout, inner: int, kernels: Kernels | None) -> Gate:
    """Returns the activation of the module's experts, compiled if it is the usual one."""
    if kernels is not None and kernels.is_row_aligned(inner) and _is_silu(module, layout):
        return kernels.silu_mul
    return ModuleGate(module, layout)


def find_compiled_gate(module: nn.Module, layout: ExpertsLayout) -> ClampedGate | Literal["silu"] | None:
    """Returns the activation that the compiled expert layer has for this module; None if it has none."""
    if _is_silu(module, layout):
        return "silu"
    alpha, limit = getattr(module, "alpha", None), getattr(module, "limit", None)
    if not (layout.is_gated and isinstance(alpha, float) and isinstance(limit, float)):
        return None
    gate = torch.linspace(-2 * limit, 2 * limit, PROBE_VALUES)
    up = gate.flip(0) / 2
    cut = gate.clamp(max=limit)
    expected = cut * torch.sigmoid(alpha * cut) * (up.clamp(-limit, limit) + 1)
    result = ModuleGate(module, layout)(torch.cat([gate, up])[None])[0]
    if torch.allclose(result, expected, atol=1e-5):
        return ClampedGate(alpha, limit)
    report_fallback(log, "expert_layer", "the gate of %s is not the usual one", type(module).__name__)
    return None


def _is_silu(module: nn.Module, layout: ExpertsLayout) -> bool:
    activation: Any = getattr(module, "act_fn", None)
    own_gate = getattr(type(module), "_apply_gate", _default_apply_gate)
    is_usual = layout.is_gated and own_gate is _default_apply_gate
    if not is_usual or layout.is_interleaved or not isinstance(activation, nn.Module):
        return False
    probe = torch.linspace(-4, 4, PROBE_VALUES)
    return torch.allclose(activation(probe), nn.functional.silu(probe), atol=1e-6)


def apply_to_whole_vectors(func: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Returns `func(x)` for an elementwise function, with the same bits for an element wherever it is.

    torch computes the last elements of a tensor, which fill no vector, in another way.
    """
    flat = x.reshape(-1)
    padded = nn.functional.pad(flat, (0, -len(flat) % VECTOR_ELEMENTS))
    parts = [func(part) for part in torch.split(padded, MAX_BLOCK_ELEMENTS)]
    return torch.cat(parts)[: len(flat)].view(x.shape)


def apply_post_norm(module: nn.Module, rows: Tensor) -> Tensor:
    """Returns an expert's results after the norm that some modules apply to them."""
    marked: Any = module
    return marked.post_expert_norm(rows) if getattr(module, "has_post_expert_norm", False) else rows
