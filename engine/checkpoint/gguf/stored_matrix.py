"""A matrix in a mapped GGUF file, decoded by the package `gguf` when it is read, as transformers decodes it."""

from collections.abc import Callable

import gguf
import numpy as np
import torch
from torch import Tensor

from antiphon.engine.checkpoint.quantized.quantized_weight import QuantizedWeight

DECODED_ROWS_PER_PART = 256
"""Rows that are decoded at a time: `gguf` holds their values twice."""

Finish = Callable[[Tensor], Tensor]
"""Turns decoded values into those of the model: other rows, other signs."""


class GgufMatrix(QuantizedWeight):
    """A matrix (outputs, inputs). `stored`: its rows in the file, as elements or as bytes of blocks of a `kind`."""

    def __init__(self, stored: np.ndarray, kind: gguf.GGMLQuantizationType, finish: Finish | None = None) -> None:
        self._stored, self._kind, self._finish = stored, kind, finish
        elements, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        inputs = stored.shape[1] * stored.itemsize // block_bytes * elements
        super().__init__((len(stored), inputs), 8 * block_bytes // elements, torch.from_numpy(stored))

    def dequantize(self) -> Tensor:
        """Returns the matrix in fp32."""
        values = np.empty(self.shape, np.float32)
        for first in range(0, len(values), DECODED_ROWS_PER_PART):
            rows = slice(first, first + DECODED_ROWS_PER_PART)
            values[rows] = gguf.quants.dequantize(self._stored[rows], self._kind)
        decoded = torch.from_numpy(values)
        return decoded if self._finish is None else self._finish(decoded)

    @property
    def has_rows(self) -> bool:
        """True if rows are decoded without the others: nothing moves values to other rows."""
        return self._finish is None

    def read_rows(self, rows: Tensor) -> Tensor:
        """Returns some rows in fp32."""
        if self._finish is not None:
            return super().read_rows(rows)
        return torch.from_numpy(gguf.quants.dequantize(self._stored[rows.numpy()], self._kind))
