"""A tensor that stands for a stored weight while transformers builds the model, and is decoded when it is used."""

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from antiphon.engine.checkpoint.quantized.fused_weight import FusedExpertsWeight, concatenate_stacks, stack_weights
from antiphon.engine.checkpoint.quantized.quantized_weight import QuantizedWeight


class LazyWeight(Tensor):
    """A stored weight with the shape and type of a tensor, and without its memory.

    Most operations decode it first. `detach` and moves that change nothing return it as it is, so that a plain weight
    arrives in its layer; the operations by which transformers fuses experts return another lazy weight.
    """

    source: QuantizedWeight
    decoded_dtype: torch.dtype

    @staticmethod
    def __new__(cls, source: QuantizedWeight, dtype: torch.dtype, decoded_dtype: torch.dtype) -> Self:
        """Creates the tensor with the type that the model expects. It is decoded to `decoded_dtype`."""
        weight: Self = Tensor._make_wrapper_subclass(cls, source.shape, dtype=dtype, device=torch.device("cpu"))
        weight.source, weight.decoded_dtype = source, decoded_dtype
        return weight

    def __init__(self, source: QuantizedWeight, dtype: torch.dtype, decoded_dtype: torch.dtype) -> None:
        """Does nothing: `__new__` has created the tensor."""

    def __getitem__(self, index: Any) -> Tensor:
        """Returns the weight itself for `...`, by which transformers reads a tensor of a file.

        For a number, returns that matrix of several in memory, without decoding the others.
        """
        matrix = self.source.select(index) if isinstance(index, int) else None
        if matrix is not None:
            return matrix.read().to(self.decoded_dtype)
        return self if index is Ellipsis else super().__getitem__(index)

    def decode(self) -> Tensor:
        """Returns the weight in memory."""
        return self.source.read().to(self.decoded_dtype)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Runs an operation: on the stored weights themselves if possible, else on decoded ones."""
        result = _run_lazily(func, args)
        if result is not None:
            return result
        decoded = tree_map(lambda value: value.decode() if isinstance(value, cls) else value, (args, kwargs or {}))
        return func(*decoded[0], **decoded[1])


def _run_lazily(func: Any, args: Sequence[Any]) -> Tensor | None:
    """Returns the result of an operation by which transformers fuses experts; None for all others."""
    first = args[0][0] if isinstance(args[0], list | tuple) else args[0]
    weights = args[0] if isinstance(args[0], list | tuple) else [first]
    if not all(isinstance(weight, LazyWeight) for weight in weights):
        return None
    sources, axis = [weight.source for weight in weights], args[1] if len(args) > 1 else 0
    result: QuantizedWeight | None = None
    if func is torch.ops.aten.detach.default:
        result = first.source
    elif func is torch.ops.aten.stack.default and axis == 0:
        result = stack_weights(sources)
    elif func is torch.ops.aten.cat.default and axis > 0:
        stacks = [source for source in sources if isinstance(source, FusedExpertsWeight)]
        result = concatenate_stacks(stacks, axis - 1) if len(stacks) == len(sources) else None
    return None if result is None else LazyWeight(result, first.dtype, first.decoded_dtype)
