"""An adapter in memory: its matrices in each layer, as a product whose rows do not depend on each other."""

import hashlib
import logging
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from antiphon.engine.fallbacks import report_fallback
from antiphon.engine.kernels.lora import LoraKernel, LoraMatrices

log = logging.getLogger(__name__)

BLOCK_ROWS = 8
"""Rows of one product on a CPU. Fewer rows are padded, so that every product has the same shape."""
ALIGNMENT_ELEMENTS = 16
"""Elements of fp32 between two addresses of torch's alignment, 64 bytes."""


class LoraWeight:
    """Computes scale · B(A(x)) for rows x (n, inputs).

    On a CPU it computes in fp32, and a row's bits are the same in any batch. torch's product promises that for equal
    shapes at equally aligned addresses only, since MKL chooses the order of its sums by both. So rows are copied into
    blocks of one size whose rows are aligned, and where the place in a block matters all the same, each row is a block.
    On a GPU it computes in `dtype`.
    For a `kernel` that supports the layer it holds only `matrices`, and cannot be called.
    """

    def __init__(
        self,
        a: Tensor,
        b: Tensor,
        scale: float,
        device: torch.device,
        dtype: torch.dtype,
        kernel: LoraKernel | None = None,
    ) -> None:
        self.rank, self.inputs = a.shape
        self.outputs = b.shape[0]
        self.matrices: LoraMatrices | None = None
        if kernel is not None and kernel.supports_layer(self.inputs, self.outputs):
            self.matrices = kernel.pack_matrices(a, b, scale)
            self.num_bytes = sum(matrix.nbytes for matrix in self.matrices)
            return
        self._block_rows = 0
        if device.type == "cpu":
            self._dtype = torch.float32
            self._a, self._b = _copy_aligned(a.float()), _copy_aligned(b.float() * scale)
            self._block_rows = BLOCK_ROWS if self._has_equal_places() else 1
            if self._block_rows == 1:
                report_fallback(log, "adapter_blocks", "rows of adapters are computed one by one, for equal bits")
        else:
            self._dtype = dtype
            # Copies, so that the file's memory is not kept.
            self._a = a.to(device, dtype, copy=True).contiguous()
            self._b = (b.float() * scale).to(device, dtype).contiguous()
        self.num_bytes = self._a.nbytes + self._b.nbytes
        """Memory of the matrices."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The matrices in the form in which they are multiplied."""
        return (self._a, self._b) if self.matrices is None else tuple(self.matrices)

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the change of the layer's output: (n, inputs) → (n, outputs)."""
        count, rows = len(x), self._block_rows
        if not rows:
            return self._multiply(x.to(self._dtype))
        padded = torch.zeros((-(-count // rows) * rows, self._a.shape[1]))
        padded[:count, : self.inputs] = x
        if len(padded) == rows:
            product = self._multiply(padded)
        else:
            product = torch.cat([self._multiply(block) for block in torch.split(padded, rows)])
        return product[:count, : self.outputs]

    def _multiply(self, x: Tensor) -> Tensor:
        return functional.linear(functional.linear(x, self._a), self._b)

    def _has_equal_places(self) -> bool:
        """Tells whether a row has the same bits in every place of a block, whatever the other rows are."""
        rows = torch.randn((2 * BLOCK_ROWS, self._a.shape[1]), generator=torch.Generator().manual_seed(1))
        row, others = rows[0].clone(), rows[BLOCK_ROWS:]
        expected = self._multiply(rows[:BLOCK_ROWS].clone())[0]
        for place in range(BLOCK_ROWS):
            block = others.clone()
            block[place] = row
            if not torch.equal(self._multiply(block)[place], expected):
                return False
        return True


class LoadedAdapter:
    """An adapter that jobs can use. `number` is never used twice, also not for the same name."""

    def __init__(self, name: str, number: int, weights: dict[str, LoraWeight]) -> None:
        self.name, self.number = name, number
        self.weights = weights
        self.is_listed = True
        """False once it was unloaded: no new job gets it, and caches of its last jobs are not kept."""

    @property
    def num_bytes(self) -> int:
        """Memory of the matrices in bytes."""
        return sum(weight.num_bytes for weight in self.weights.values())

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all matrices and the names of their layers, the same after a restart."""
        digest = hashlib.sha256()
        for name, weight in sorted(self.weights.items()):
            for tensor in weight.tensors:
                digest.update(repr((name, weight.rank, tensor.dtype, tuple(tensor.shape))).encode())
                digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    @property
    def description(self) -> str:
        """Name, ranks and memory, for the operator."""
        ranks = sorted({weight.rank for weight in self.weights.values()})
        rank = str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]}"
        return f"{self.name} (rank {rank}, {len(self.weights)} layers, {self.num_bytes / 2**20:.1f} MiB)"


def _copy_aligned(matrix: Tensor) -> Tensor:
    """Returns a copy with zeros up to a multiple of `ALIGNMENT_ELEMENTS` rows and columns."""
    rows, columns = (-(-size // ALIGNMENT_ELEMENTS) * ALIGNMENT_ELEMENTS for size in matrix.shape)
    copy = torch.zeros((rows, columns))
    copy[: matrix.shape[0], : matrix.shape[1]] = matrix
    return copy
