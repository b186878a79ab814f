"""Python binding of `expert_layer.c`: the experts of a layer in one call."""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from antiphon.engine.kernels.native_calls import count_threads, int64_fields, load_function

EXPERT_FORMS = ("int8", "int4", "mxfp4", "bfloat16", "float16")
"""Forms of the weights, in the order of their numbers in `expert_layer.c`."""

MATRIX_TENSORS = ("weights", "scales", "zeros", "group_scales")
"""Tensors of `struct expert_matrix` that have a stride."""


class ClampedGate(NamedTuple):
    """gpt-oss's activation: the gate times sigmoid(alpha · gate), times up + 1; both are cut at `limit`."""

    alpha: float
    limit: float


class ExpertMatrixArgs(ctypes.Structure):
    """`struct expert_matrix` of `expert_layer.c`."""

    _fields_ = int64_fields(
        "weights scales zeros group_scales bias weights_stride scales_stride zeros_stride group_scales_stride"
    )


class ExpertLayerArgs(ctypes.Structure):
    """`struct expert_layer_args` of `expert_layer.c`."""

    _fields_ = [
        *int64_fields("x count hidden inner indices route_weights choices experts form gate"),
        ("up", ExpertMatrixArgs),
        ("down", ExpertMatrixArgs),
        *int64_fields("out workspace order threads"),
    ]


class ExpertLayerKernel:
    """The kernel of a loaded library. Raises `AttributeError` if the library lacks it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._run = load_function(library, "expert_layer", ExpertLayerArgs, ctypes.c_float, ctypes.c_float)
        self._workspace = load_function(library, "expert_layer_workspace", ExpertLayerArgs)
        self._workspace.restype = ctypes.c_int64

    def run(self, layer: "ExpertLayerWeights", x: Tensor, indices: Tensor, route_weights: Tensor) -> Tensor:
        """Returns the weighted sum of each row's experts, for x (rows, hidden), indices and weights (rows, choices)."""
        x, indices = x.contiguous(), indices.contiguous().to(torch.int64)
        route_weights = route_weights.contiguous().to(torch.float32)
        out = torch.empty_like(x)
        order = torch.empty(layer.experts + 1 + indices.numel(), dtype=torch.int64)
        gate = layer.clamped or ClampedGate(0.0, 0.0)
        args = ExpertLayerArgs(
            x.data_ptr(),
            len(x),
            layer.hidden,
            layer.inner,
            indices.data_ptr(),
            route_weights.data_ptr(),
            indices.shape[1],
            layer.experts,
            EXPERT_FORMS.index(layer.form),
            int(layer.clamped is not None),
            layer.up,
            layer.down,
            out.data_ptr(),
            0,
            order.data_ptr(),
            count_threads(),
        )
        workspace = torch.empty(self._workspace(args))
        args.workspace = workspace.data_ptr()
        self._run(args, *gate)
        return out


class ExpertLayerWeights(NamedTuple):
    """Addresses of a layer's packed experts, whose tensors the caller keeps alive; `clamped` is None for SiLU."""

    form: str
    experts: int
    hidden: int
    inner: int
    up: ExpertMatrixArgs
    down: ExpertMatrixArgs
    clamped: ClampedGate | None


def matrix_args(tensors: dict[str, Tensor], bias: Tensor | None) -> ExpertMatrixArgs:
    """Returns the addresses of the packed weights of all experts; the tensors have a first dimension for them."""
    found: Sequence[Tensor | None] = [tensors.get(name) for name in MATRIX_TENSORS]
    addresses = [0 if tensor is None else tensor.data_ptr() for tensor in found]
    strides = [0 if tensor is None else tensor.stride(0) * tensor.itemsize for tensor in found]
    return ExpertMatrixArgs(*addresses, 0 if bias is None else bias.data_ptr(), *strides)
