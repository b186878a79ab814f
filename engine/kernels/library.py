"""Loads the compiled kernels of this process, after a comparison of each kernel with torch.

Without a compiler, or if any result differs, no kernel is used and torch computes everything.
"""

import ctypes
import functools
import logging
from array import array
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from antiphon.engine.fallbacks import report_fallback
from antiphon.engine.kernels.bindings import SOFTMAX_BLOCK, Kernels
from antiphon.engine.kernels.compiler import CompilationError, load_library
from antiphon.engine.kernels.half_linear import HALF_DTYPES
from antiphon.engine.kernels.int4_layout import (
    INT4_GROUP_INPUTS,
    INT4_MAX,
    INT4_MIN,
    pack_int4_weight,
    unpack_int4_weight,
)
from antiphon.engine.kernels.int8_layout import ACTIVATION_LEVELS, pack_int8_weight
from antiphon.engine.kernels.lora import describe_group
from antiphon.engine.kernels.mxfp4_layout import MXFP4_GROUP_INPUTS, quantize_to_mxfp4

log = logging.getLogger(__name__)

SOURCES = tuple(sorted(Path(__file__).parent.glob("*.c")))

KERNEL_TOLERANCE = 1e-5
"""Absolute and relative tolerance of the comparison with torch. The results compared are near 1."""

GEMM_ROW_RANGES = ((0, 1), (1, 3), (3, 10), (10, 53))
"""Row ranges to compare the linear layer on: one per code path of the kernel for few rows, and one for many."""

ATTENTION_CASES = ((1, 1), (140, 1), (25, 9), (37, 37))
"""Sequences to compare attention on: their number of keys, and how many of them belong to new tokens."""


def load_kernels() -> Kernels | None:
    """Returns the kernels of this process, or None, with one warning in the log, if they cannot be used."""
    kernels, reason = _load_once()
    if reason is not None:
        message = "compiled CPU kernels are unavailable, using slower torch operations: %s"
        report_fallback(log, "kernels", message, reason)
    return kernels


@functools.cache
def _load_once() -> tuple[Kernels | None, str | None]:
    """Returns the kernels, or the reason why they cannot be used."""
    try:
        return verify_kernels(load_library(*SOURCES)), None
    except (CompilationError, AttributeError) as failure:  # AttributeError: the library lacks a kernel
        return None, str(failure)


def verify_kernels(loaded: ctypes.CDLL) -> Kernels:
    """Returns the kernels of a library. Raises `CompilationError` if their results differ from torch's."""
    kernels = Kernels(loaded)
    mismatches = [
        name
        for name, result, expected in _compare_with_torch(kernels)
        if not torch.allclose(result, expected, rtol=KERNEL_TOLERANCE, atol=KERNEL_TOLERANCE)
    ]
    if mismatches:
        raise CompilationError(f"results differ from torch's: {', '.join(mismatches)}")
    return kernels


def _compare_with_torch(kernels: Kernels) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yields each kernel's name, its result, and torch's result."""
    generator = torch.Generator().manual_seed(1)
    x, weight = (torch.randn(size, generator=generator) for size in ((3, 5, 64), (64,)))
    yield "rms_norm", kernels.rms_norm(x, weight, 1e-6), functional.rms_norm(x, (64,), weight, 1e-6)
    yield "silu_mul", kernels.silu_mul(x), functional.silu(x[..., :32]) * x[..., 32:]
    yield "rope", *_rotary_results(kernels, x)
    scores = x.view(3, 320)[:, :317]
    yield "block_softmax", kernels.block_softmax_sums(scores, torch.ones(3))[0], _block_sums(scores)
    for fp16 in (False, True)[: 1 + kernels.supports_fp16_cache]:
        yield "attend", *_attention_results(kernels, generator, halves=fp16)
        yield "attend", *_attention_results(kernels, generator, halves=fp16, softcap=2.0)
    yield "int8_linear", *_int8_linear_results(kernels, generator)
    yield "int8_linear", *_silu_mul_results(kernels, x)
    yield "pack", *_packing_results(kernels, generator)
    yield "int4_linear", *_int4_linear_results(kernels, generator)
    yield "mxfp4_linear", *_mxfp4_linear_results(kernels, generator)
    for dtype in HALF_DTYPES:
        yield "half_linear", *_half_linear_results(kernels, generator, dtype)
        yield "row_major_linear", *_row_major_linear_results(kernels, generator, dtype)
    yield "lora", *_lora_results(kernels, generator)


def _rotary_results(kernels: Kernels, x: Tensor) -> tuple[Tensor, Tensor]:
    """Results of both for five tokens and three heads."""
    angles = torch.outer(torch.arange(5.0), torch.arange(64.0))[None]
    rotated = torch.cat([-x[..., 32:], x[..., :32]], -1)
    return kernels.apply_rotary(x[None], angles.cos(), angles.sin()), (x * angles.cos() + rotated * angles.sin())[None]


def _block_sums(x: Tensor) -> Tensor:
    """Sums of the softmax weights, computed by torch, block by block."""
    weights = (x - x.amax(-1, keepdim=True)).exp()
    return torch.stack([block.sum(-1) for block in torch.split(weights, SOFTMAX_BLOCK, -1)], -1)


def _int8_linear_results(kernels: Kernels, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Results of both for integers that int8 represents exactly, so that quantization adds no error."""
    x = torch.randint(-ACTIVATION_LEVELS, ACTIVATION_LEVELS + 1, (53, 100), generator=generator).float()
    weight = torch.randint(-127, 128, (40, 100), generator=generator).float()
    x[:, 0], weight[:, 1] = ACTIVATION_LEVELS, 127
    x *= 2.0 ** (torch.arange(len(x)) % 5)[:, None]
    packed = kernels.pack_int8_weight(weight)
    parts = [kernels.multiply(x[first:end], packed) for first, end in GEMM_ROW_RANGES]
    return torch.cat(parts), functional.linear(x, weight)


def _packing_results(kernels: Kernels, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Weights in 4 bits and the levels of weights in 8 bits, packed by both from bf16."""
    weight = torch.randn((40, 100), generator=generator).bfloat16()
    packed, lanes = kernels.pack_int4_weight(weight), kernels.lanes
    levels = kernels.pack_int8_weight(weight).weights.flatten(), pack_int8_weight(weight, lanes).weights.flatten()
    expected = unpack_int4_weight(pack_int4_weight(weight, lanes)).flatten()
    return torch.cat([unpack_int4_weight(packed).flatten(), levels[0]]), torch.cat([expected, levels[1]])


def _int4_linear_results(kernels: Kernels, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Results of both for integers that both forms represent exactly, so that quantization adds no error."""
    x = torch.randint(-127, 128, (53, 200), generator=generator).float()
    weight = torch.randint(INT4_MIN, INT4_MAX + 1, (40, 200), generator=generator).float()
    x[:, 0], weight[:, ::INT4_GROUP_INPUTS] = 127, INT4_MIN
    x *= 2.0 ** (torch.arange(len(x)) % 5)[:, None]
    weight[:, INT4_GROUP_INPUTS:] /= 2
    packed = kernels.pack_int4_weight(weight)
    parts = [kernels.multiply(x[first:end], packed) for first, end in GEMM_ROW_RANGES]
    return torch.cat(parts), functional.linear(x, weight)


def _mxfp4_linear_results(kernels: Kernels, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Results of both for numbers that both forms represent exactly, so that quantization adds no error."""
    x = torch.randint(-127, 128, (53, 96), generator=generator).float()
    weight = torch.randint(-4, 5, (40, 96), generator=generator).float()
    x[:, ::MXFP4_GROUP_INPUTS], weight[:, ::MXFP4_GROUP_INPUTS] = 127, 6
    x[:, MXFP4_GROUP_INPUTS:] *= 2.0 ** (torch.arange(len(x)) % 5)[:, None]
    weight[:, 2 * MXFP4_GROUP_INPUTS :] /= 8
    packed = kernels.pack_mxfp4_blocks(*quantize_to_mxfp4(weight))
    parts = [kernels.multiply(x[first:end], packed) for first, end in GEMM_ROW_RANGES]
    return torch.cat(parts), functional.linear(x, weight)


def _half_linear_results(kernels: Kernels, generator: torch.Generator, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Results of both for weights that need no rounding."""
    x, weight = torch.randn((53, 300), generator=generator), torch.randn((40, 300), generator=generator).to(dtype)
    packed = kernels.half.pack(weight)
    parts = [kernels.half.multiply(x[first:end], packed) for first, end in GEMM_ROW_RANGES]
    return torch.cat(parts) / 16, functional.linear(x, weight.float()) / 16


def _row_major_linear_results(
    kernels: Kernels, generator: torch.Generator, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Results of both for weights that need no rounding."""
    x, weight = torch.randn((11, 80), generator=generator), torch.randn((41, 80), generator=generator).to(dtype)
    out = torch.empty(11, 41)
    for first, end in ((0, 1), (1, 3), (3, 11)):
        kernels.row_major.multiply(x[first:end], weight, out[first:end])
    return out / 16, functional.linear(x, weight.float()) / 16


def _silu_mul_results(kernels: Kernels, x: Tensor) -> tuple[Tensor, Tensor]:
    """Results of a gated linear layer: fused in one call, and as two calls."""
    packed, inner = kernels.pack_int8_weight(x[0, :, :32]), kernels.silu_mul(x)
    return kernels.multiply(x.clone(), packed, gated=True), kernels.multiply(inner, packed)


def _attention_results(
    kernels: Kernels, generator: torch.Generator, *, halves: bool, softcap: float | None = None
) -> tuple[Tensor, Tensor]:
    """Results of both for `ATTENTION_CASES`. The kernel itself must store the new keys and values."""
    dtype = torch.float16 if halves else torch.float32
    total = sum(new for _, new in ATTENTION_CASES)
    query = torch.randn((1, 6, total, 32), generator=generator)
    key, value = (torch.randn((1, 2, total, 32), generator=generator).to(dtype).float() for _ in "kv")
    expected, table, caches = [], [], []
    first = 0
    for length, new in ATTENTION_CASES:
        keys, values = (torch.randn((1, 2, length, 32), generator=generator).to(dtype) for _ in "kv")
        ends = torch.arange(length - new + 1, length + 1)
        ends[new // 4 : new // 2] = length - new + new // 2  # a picture whose tokens see all of it
        table += [first, new, keys.data_ptr(), values.data_ptr(), keys.stride(1), values.stride(1), length, 0]
        table.append(ends.data_ptr() if new > 1 else 0)
        span = slice(first, first + new)
        k, v = (
            torch.cat([cache[:, :, : length - new].float(), fresh[:, :, span]], 2)
            for cache, fresh in ((keys, key), (values, value))
        )
        visible = torch.arange(length) < ends[:, None]
        expected.append(_attend_by_torch(query[:, :, span], k, v, visible, softcap).transpose(1, 2))
        caches += [keys, values, ends]  # the table holds only addresses, so these must outlive the call
        first += new
    attended = kernels.attend(query, key, value, table, 32**-0.5, softcap=softcap, fp16_cache=halves)
    return attended, torch.cat(expected, 1)


def _attend_by_torch(query: Tensor, key: Tensor, value: Tensor, visible: Tensor, softcap: float | None) -> Tensor:
    """Attention of queries (1, 6, n, 32) over two key heads."""
    if softcap is None:
        return functional.scaled_dot_product_attention(query, key, value, visible, enable_gqa=True)
    scores = query.reshape(1, 2, 3, *query.shape[2:]) @ key[:, :, None].transpose(-1, -2) * 32**-0.5
    weights = (softcap * torch.tanh(scores / softcap)).masked_fill(~visible, float("-inf")).softmax(-1)
    return (weights @ value[:, :, None]).flatten(1, 2)


def _lora_results(kernels: Kernels, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Results of both for five rows of one adapter of rank 18 and one row of another, beside one row of none."""
    x, out = torch.randn((7, 64), generator=generator), torch.randn((7, 128), generator=generator)
    expected, groups, kept = out.clone(), array("q"), []
    for rank, first, count in ((18, 0, 5), (3, 6, 1)):
        a, b = torch.randn((rank, 64), generator=generator), torch.randn((128, rank), generator=generator)
        expected[first : first + count] += 0.5 * x[first : first + count] @ a.T @ b.T
        kept.append(kernels.lora.pack_matrices(a, b, 0.5))
        groups.extend(describe_group(first, count, kept[-1]))
    kernels.lora.add_products(x, out, groups)
    return out / 64, expected / 64
