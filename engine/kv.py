"""The keys and values of one sequence, contiguous in memory.

It knows nothing of models or schedules: layers announce themselves by writing. Tokens written in a forward pass count
only once the pass has succeeded (:meth:`KV.commit`), so that a pass that fails leaves nothing behind.
"""

import torch
from torch import Tensor

GRAIN = 64
"""Capacities are multiples of this many tokens."""


class KV:
    """Per layer two buffers of shape (1, kv_heads, capacity, head_dim); the first ``length`` tokens are valid.

    ``expected``: how many tokens the sequence will probably hold; it saves copying when the buffers grow.
    """

    def __init__(self, expected: int = 0) -> None:
        self.length = 0
        self._expected = expected
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write (1, kv_heads, n, head_dim) after the valid tokens; views of all keys and values, these included."""
        end = self.length + keys.shape[2]
        held = self._layers.get(layer)
        if held is None or held[0].shape[2] < end:
            held = self._layers[layer] = self._grow(held, keys, values, end)
        held[0][:, :, self.length : end] = keys
        held[1][:, :, self.length : end] = values
        return held[0][:, :, :end], held[1][:, :, :end]

    def commit(self, tokens: int) -> None:
        """The pass succeeded: the last ``tokens`` written are valid from now on."""
        self.length += tokens

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes over all layers; 0 before the first pass."""
        return sum(
            buffer.shape[1] * buffer.shape[3] * buffer.element_size()
            for layer in self._layers.values()
            for buffer in layer
        )

    def _grow(
        self, held: tuple[Tensor, Tensor] | None, keys: Tensor, values: Tensor, end: int
    ) -> tuple[Tensor, Tensor]:
        wanted = max(end, self._expected) if held is None else max(end, held[0].shape[2] * 3 // 2)
        capacity = -(-wanted // GRAIN) * GRAIN
        grown = []
        for old, new in zip(held or (None, None), (keys, values), strict=True):
            buffer = new.new_empty((1, new.shape[1], capacity, new.shape[3]))
            if old is not None:
                buffer[:, :, : self.length] = old[:, :, : self.length]
            grown.append(buffer)
        return grown[0], grown[1]


def causal_mask(queries: int, keys: int, window: int | None, device: torch.device) -> Tensor:
    """A (queries, keys) mask, True where attention may look; the last query stands on the last key."""
    place = torch.arange(keys - queries, keys, device=device)[:, None]
    column = torch.arange(keys, device=device)[None, :]
    mask = column <= place
    return mask if window is None else mask & (column > place - window)
