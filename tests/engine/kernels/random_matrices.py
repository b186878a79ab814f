"""Random matrices, and both forms of integer weights."""

from typing import Any

import torch
from torch import Tensor

from antiphon.engine.kernels.bindings import Kernels


def make_random_matrix(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def pack_integers(kernels: Kernels, form: str, weight: Tensor) -> Any:
    return kernels.pack_int4_weight(weight) if form == "int4" else kernels.pack_int8_weight(weight)
