"""The states of sequences in recurrent layers, and the interface through which transformers' layers use them."""

from typing import Any

import torch
from torch import Tensor

StateKey = tuple[str, int, int]
"""Kind of a state ("conv", "recurrent" or "linear"), layer, and number among the layer's states of this kind."""


class StateBatch:
    """The states of `size` sequences, each tensor (size, …). Empty until the first pass of the layers.

    Layers may change the tensors in place, so that tensors are never shared between batches.
    """

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self.tensors: dict[StateKey, Tensor] = {}

    def copy_row(self, row: int) -> "StateBatch":
        """Returns a batch of one sequence with copies of its states."""
        copy = StateBatch()
        copy.tensors = {key: tensor[row : row + 1].clone() for key, tensor in self.tensors.items()}
        return copy

    def copy_layer_to(self, target: "StateBatch", layer: int) -> None:
        """Copies the states of one layer to another batch of the same size."""
        for key, tensor in self.tensors.items():
            if key[1] == layer:
                target.tensors[key] = tensor.clone()

    @property
    def bytes_per_sequence(self) -> int:
        """Bytes of the states of one sequence."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values()) // self.size


def stack_rows(rows: list[tuple[StateBatch, int]]) -> StateBatch:
    """Returns a batch with copies of the states of these rows, which have all been in a pass."""
    stacked = StateBatch(len(rows))
    for key in rows[0][0].tensors:
        stacked.tensors[key] = torch.cat([batch.tensors[key][row : row + 1] for batch, row in rows])
    return stacked


class StateView:
    """Gives a layer the states of a batch, by the methods of transformers' caches that recurrent layers call."""

    def __init__(self, batch: StateBatch) -> None:
        self._batch = batch
        self._hidden: set[int] = set()

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        """Tells whether the layer, or any layer, has read a token; see transformers' `Cache`."""
        return any(layer_idx in (None, layer) and state_idx in (None, index) for _, layer, index in self._batch.tensors)

    def is_recording_past(self, layer_idx: int) -> bool:  # noqa: ARG002  the signature is transformers'
        """Returns False: states before the latest token are not kept; see transformers' `Cache`."""
        return False

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """Returns the last inputs of a convolution (size, channels, kernel), which the layer may change in place."""
        return self._batch.tensors.get(("conv", layer_idx, state_idx))

    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, conv_kernel_size: int | None = None, **_: Any
    ) -> Tensor:
        """Returns the old and new inputs of a convolution (size, channels, n) and keeps the last of them.

        The first inputs are padded with zeros on the left, up to the size of the kernel.
        """
        key = ("conv", layer_idx, state_idx)
        previous = self._batch.tensors.get(key)
        if previous is None:
            kernel = conv_states.shape[-1] if conv_kernel_size is None else conv_kernel_size
            full = torch.nn.functional.pad(conv_states, (max(kernel - conv_states.shape[-1], 0), 0))
        else:
            kernel = previous.shape[-1]
            full = torch.cat([previous, conv_states], dim=-1)
        self._batch.tensors[key] = full[..., full.shape[-1] - kernel :].clone()
        return full

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        """Returns the recurrent state (size, …), which the layer may change in place; None before the first token."""
        return self._batch.tensors.get(("recurrent", layer_idx, state_idx))

    def update_recurrent_state(self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **_: Any) -> Tensor:
        """Replaces the recurrent state and returns it."""
        self._batch.tensors["recurrent", layer_idx, state_idx] = recurrent_states
        return recurrent_states

    def get_linear_cache(self, layer_idx: int) -> Tensor | None:
        """Returns the state of MiniMax's lightning attention (size, …); None before the first token, or if hidden."""
        return None if layer_idx in self._hidden else self._batch.tensors.get(("linear", layer_idx, 0))

    def hide_linear_cache(self, layer_idx: int) -> Tensor | None:
        """Returns what `get_linear_cache` returns, and makes it return None from now on."""
        state = self.get_linear_cache(layer_idx)
        self._hidden.add(layer_idx)
        return state

    def set_linear_cache(self, layer_idx: int, linear_cache: Tensor) -> None:
        """Replaces the state of MiniMax's lightning attention."""
        self._batch.tensors["linear", layer_idx, 0] = linear_cache
