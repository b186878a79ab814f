"""Linear layers and embeddings whose weights stay in the model's files, in the type in which they are stored.

The files are mapped into memory. A weight is converted to fp32 when it is used, a part at a time, and its pages are
given back afterwards. So a model can be run, compared and packed, although it is never in memory as a whole.
"""

import ctypes
import mmap
import sys
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon.engine.checkpoint.quantized.lazy_weight import LazyWeight
from antiphon.engine.checkpoint.quantized.quantized_weight import GroupedLevels
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.kernels.weight_rows import WeightRows

OUTPUTS_PER_PART = 256
"""Outputs of a mapped weight that are converted to fp32 at a time: few enough to stay in the cache of a core."""

WEIGHTS_PER_PART = 1 << 21
"""Weights that a kernel multiplies by at a time. Their pages are in memory together."""


class FileMappings:
    """Address ranges of this process that map model files, as the system reports them now."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        with suppress(OSError):
            for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
                if line.endswith((".safetensors", ".gguf")):
                    start, _, end = line.split(maxsplit=1)[0].partition("-")
                    self._starts.append(int(start, 16))
                    self._ends.append(int(end, 16))

    def contain(self, tensor: Tensor) -> bool:
        """Tells whether all elements of a contiguous tensor lie in a mapped file."""
        index = bisect_right(self._starts, tensor.data_ptr()) - 1
        return index >= 0 and tensor.is_contiguous() and tensor.data_ptr() + tensor.nbytes <= self._ends[index]


class MmapWeight:
    """A weight in a mapped file, or in memory if loading had to convert it."""

    def __init__(self, stored: Tensor, mappings: FileMappings) -> None:
        self.stored = stored
        self._is_in_file = mappings.contain(stored)

    def read(self) -> Tensor:
        """Returns the whole weight in fp32."""
        weight = self.stored.float()
        if weight.data_ptr() != self.stored.data_ptr():
            self.release()
        return weight

    def release(self, first_row: int = 0, end_row: int | None = None) -> None:
        """Gives pages of the weight back to the system, which reads them from the file again when they are needed.

        Only pages that hold nothing but the given rows are given back.
        """
        if not self._is_in_file or sys.platform != "linux" or not self.stored.ndim:
            return
        rows = self.stored[first_row:end_row]
        first = -(-rows.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (rows.data_ptr() + rows.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > first:
            libc = ctypes.CDLL(None)
            libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), ctypes.c_int(mmap.MADV_DONTNEED))


class QuantizedMmapWeight(MmapWeight):
    """A weight of a quantized checkpoint, decoded whenever it is read. Its stored tensors are in a mapped file.

    `lazy` has its shape, and the type to which it is decoded.
    """

    def __init__(self, weight: LazyWeight) -> None:
        self.lazy = LazyWeight(weight.source, torch.float32, torch.float32)

    @property
    def stored(self) -> Tensor:  # type: ignore[override]
        """The whole weight in fp32."""
        return self.lazy.decode()

    def read(self) -> Tensor:
        """Returns the whole weight in fp32."""
        return self.lazy.decode()

    def read_levels(self) -> GroupedLevels | None:
        """Returns the weight as whole numbers; None if the checkpoint stores something else."""
        return self.lazy.source.read_levels()

    def read_rows(self, rows: Tensor) -> Tensor:
        """Returns some rows in fp32."""
        return self.lazy.source.read_rows(rows)

    def release(self, first_row: int = 0, end_row: int | None = None) -> None:  # noqa: ARG002  rows are not stored as such
        """Gives the pages of the stored tensors back to the system."""
        self.lazy.source.release()


def map_weight(weight: Tensor, mappings: FileMappings) -> MmapWeight:
    """Returns a weight that stays in its file until it is used."""
    return QuantizedMmapWeight(weight) if isinstance(weight, LazyWeight) else MmapWeight(weight, mappings)


def join_rows(weights: Sequence[MmapWeight | Tensor]) -> WeightRows:
    """Returns the rows of several weights as one weight that gives back the pages it was read from."""

    def release(part: int, first: int, end: int) -> None:
        weight = weights[part]
        if isinstance(weight, MmapWeight):
            weight.release(first, end)

    stored = [weight.stored if isinstance(weight, MmapWeight) else weight for weight in weights]
    return WeightRows.join(stored, release)


def multiply_in_parts(x: Tensor, rows: WeightRows, bias: Tensor | None, kernels: Kernels | None = None) -> Tensor:
    """Returns the product in fp32 with a weight (outputs, inputs) of any type, read a part at a time.

    `kernels` multiply by 16-bit weights as they are stored. Without them, every part is converted to fp32 first.
    """
    outputs, inputs = rows.shape
    product = x.new_empty((*x.shape[:-1], outputs))
    x, first = x.contiguous(), 0
    if kernels is not None and kernels.row_major.supports(rows.dtype, inputs):
        multiply, count = kernels.row_major.multiply, max(1, WEIGHTS_PER_PART // inputs)
    else:
        multiply, count = _ConvertedProduct(min(OUTPUTS_PER_PART, outputs), inputs).multiply, OUTPUTS_PER_PART
    for stored in rows.split_rows(count):
        end = first + len(stored)
        multiply(x, stored, product[..., first:end])
        rows.release_rows(first, end)
        first = end
    return product if bias is None else product.add_(bias)


class _ConvertedProduct:
    """Converts weights of at most `outputs` rows to fp32 and multiplies by them.

    All weights are converted in the same memory: the small products between them would keep the heap from reusing it.
    """

    def __init__(self, outputs: int, inputs: int) -> None:
        self._converted = torch.empty(outputs, inputs)

    def multiply(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """Writes the product of x (…, inputs) and the weight to out (…, outputs)."""
        is_fp32 = weight.dtype == torch.float32
        out.copy_(functional.linear(x, weight if is_fp32 else self._converted[: len(weight)].copy_(weight)))


class MmapLinear(nn.Linear):
    """A linear layer with a mapped weight. Computes in fp32, with `kernels` if they are set."""

    kernels: Kernels | None = None

    def __init__(self, layer: nn.Linear, mappings: FileMappings) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.register_parameter("bias", layer.bias)
        self.mapped = map_weight(layer.weight.detach(), mappings)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """Returns the weight in fp32."""
        return self.mapped.read()

    def forward(self, x: Tensor) -> Tensor:
        """(…, inputs) → (…, outputs)."""
        return multiply_in_parts(x, join_rows([self.mapped]), self._parameters["bias"], self.kernels)

    def to_linear(self) -> nn.Linear:
        """Returns the same layer with its weight in memory, in fp32."""
        layer = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")  # the weight comes next
        layer.weight = nn.Parameter(self.mapped.read().clone(), requires_grad=False)
        layer.bias = self.bias
        return layer


class MmapEmbedding(nn.Embedding):
    """An embedding with a mapped weight: the rows in use are in memory as they are stored, or decoded for each use."""

    def __init__(self, layer: nn.Embedding, mappings: FileMappings) -> None:
        nn.Module.__init__(self)
        self.num_embeddings, self.embedding_dim = layer.num_embeddings, layer.embedding_dim
        self.padding_idx = layer.padding_idx
        self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse = None, 2.0, False, False  # for repr()
        # transformers reads the model's type and device from its first parameter, and there may be no other one.
        self.register_parameter("empty", nn.Parameter(torch.empty(0), requires_grad=False))
        self.mapped = map_weight(layer.weight.detach(), mappings)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """Returns the weight in fp32."""
        return self.mapped.read()

    def forward(self, ids: Tensor) -> Tensor:
        """(…) → (…, embedding_dim)."""
        if isinstance(self.mapped, QuantizedMmapWeight):
            return self.mapped.read_rows(ids.flatten()).view(*ids.shape, self.embedding_dim)
        return functional.embedding(ids, self.mapped.stored).float()


def has_exact_buffers(model: nn.Module) -> bool:
    """Tells whether no buffer was rounded to the type of the weights."""
    return all(buffer.dtype == torch.float32 for buffer in model.buffers() if buffer.is_floating_point())


def map_weights(model: nn.Module) -> int:
    """Replaces the linear layers and embeddings of a model by mapped ones, and converts all other weights to fp32.

    The model must have been loaded in the type of its files. Only layers of torch's own classes are replaced: a
    subclass may compute anything. Returns the number of layers replaced.
    """
    mappings, count = FileMappings(), 0
    replacements: dict[int, nn.Module] = {}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            kind: Any = {nn.Linear: MmapLinear, nn.Embedding: MmapEmbedding}.get(type(child))
            if kind is None or getattr(child, "max_norm", None) is not None:
                continue
            weight = child.weight
            if kind is MmapEmbedding and isinstance(weight, LazyWeight) and not weight.source.has_rows:
                continue
            if id(child) not in replacements:
                replacements[id(child)] = kind(child, mappings)
                count += 1
            setattr(parent, name, replacements[id(child)])
    decode_parameters(model)
    for parameter in model.parameters():
        if parameter.is_floating_point():
            stored = MmapWeight(parameter.data, mappings)
            parameter.data = stored.read()
    return count


def use_kernels(model: nn.Module, kernels: Kernels | None) -> None:
    """Lets the mapped layers of a model compute with kernels."""
    for module in model.modules():
        if isinstance(module, MmapLinear):
            module.kernels = kernels


def decode_parameters(model: nn.Module) -> None:
    """Decodes all parameters of a model that are still lazy."""
    decoded: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if isinstance(parameter, LazyWeight):
                if id(parameter) not in decoded:
                    decoded[id(parameter)] = nn.Parameter(parameter.decode(), requires_grad=False)
                setattr(module, name, decoded[id(parameter)])
