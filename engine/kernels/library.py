"""The compiled kernels of this process, proved against torch before anybody gets them.

Where there is no compiler, or something is not as it should be, there are none.
"""

import ctypes
import functools
import logging
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from antiphon.engine.kernels.bindings import SOFTMAX_BLOCK, Kernels
from antiphon.engine.kernels.compiler import CompilationError, load_library

log = logging.getLogger(__name__)

SOURCES = tuple(
    Path(__file__).with_name(f"{name}.c") for name in ("rowwise", "attention", "int8_gemm", "decoder_layer")
)

KERNEL_TOLERANCE = 1e-5
"""Difference from torch's results up to which a kernel counts as right; those it is tried on are near 1."""

GEMM_ROW_RANGES = ((0, 1), (1, 3), (3, 10), (10, 53))
"""Rows that a product is tried with: each way that there is for few of them, and for many."""

ATTENTION_CASES = ((1, 1), (140, 1), (25, 9), (37, 37))
"""Keys that sequences have, and how many of them belong to new tokens."""


@functools.cache
def load_kernels() -> Kernels | None:
    """Those of this process; None if there cannot be any, which is said once."""
    try:
        return verify_kernels(load_library(*SOURCES))
    except (CompilationError, AttributeError) as failure:  # the latter if it lacks one of them
        log.warning("no compiled kernels, which costs speed: %s", failure)
    return None


def verify_kernels(loaded: ctypes.CDLL) -> Kernels:
    """The kernels of a library. Raises :class:`CompilationError` if they do not agree with torch."""
    found = Kernels(loaded)
    wrong = [
        name
        for name, one, two in _compare_with_torch(found)
        if not torch.allclose(one, two, rtol=KERNEL_TOLERANCE, atol=KERNEL_TOLERANCE)
    ]
    if wrong:
        raise CompilationError(f"the library computes another {', '.join(wrong)}")
    return found


def _compare_with_torch(kernels: Kernels) -> Iterator[tuple[str, Tensor, Tensor]]:
    """What each kernel says, and what torch says."""
    generator = torch.Generator().manual_seed(1)
    x, weight = (torch.randn(size, generator=generator) for size in ((3, 5, 64), (64,)))
    yield "rms_norm", kernels.rms_norm(x, weight, 1e-6), functional.rms_norm(x, (64,), weight, 1e-6)
    yield "silu_mul", kernels.silu_mul(x), functional.silu(x[..., :32]) * x[..., 32:]
    yield "rope", *_rotary_results(kernels, x)
    scores = x.view(3, 320)[:, :317]
    yield "block_softmax", kernels.block_softmax_sums(scores, torch.ones(3))[0], _block_sums(scores)
    for halves in (False, True)[: 1 + kernels.supports_fp16_cache]:
        yield "attend", *_attention_results(kernels, generator, halves=halves)
    if kernels.activation_levels:
        yield "int8_linear", *_int8_linear_results(kernels, generator)
        yield "int8_linear", *_silu_mul_results(kernels, x)


def _rotary_results(kernels: Kernels, x: Tensor) -> tuple[Tensor, Tensor]:
    """Five tokens of three heads."""
    angles = torch.outer(torch.arange(5.0), torch.arange(64.0))[None]
    half = torch.cat([-x[..., 32:], x[..., :32]], -1)
    return kernels.apply_rotary(x[None], angles.cos(), angles.sin()), (x * angles.cos() + half * angles.sin())[None]


def _block_sums(x: Tensor) -> Tensor:
    """Sums of weights, block by block."""
    weights = (x - x.amax(-1, keepdim=True)).exp()
    return torch.stack([part.sum(-1) for part in torch.split(weights, SOFTMAX_BLOCK, -1)], -1)


def _int8_linear_results(kernels: Kernels, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Whole numbers, which 8 bits hold."""
    x = torch.randint(-kernels.activation_levels, kernels.activation_levels + 1, (53, 100), generator=generator).float()
    weight = torch.randint(-127, 128, (40, 100), generator=generator).float()
    x[:, 0], weight[:, 1] = kernels.activation_levels, 127
    x *= 2.0 ** (torch.arange(len(x)) % 5)[:, None]
    matrix = kernels.pack_int8_weight(weight)
    pieces = [kernels.int8_linear(x[first:end], matrix) for first, end in GEMM_ROW_RANGES]
    return torch.cat(pieces), functional.linear(x, weight)


def _silu_mul_results(kernels: Kernels, x: Tensor) -> tuple[Tensor, Tensor]:
    """The product of what comes through a gate, by both at once and one after the other."""
    matrix, inner = kernels.pack_int8_weight(x[0, :, :32]), kernels.silu_mul(x)
    return kernels.int8_linear(x.clone(), matrix, gated=True), kernels.int8_linear(inner, matrix)


def _attention_results(kernels: Kernels, generator: torch.Generator, *, halves: bool) -> tuple[Tensor, Tensor]:
    """Sequences of :data:`CACHES`; what is new among their keys and values is not yet in the caches."""
    kind = torch.float16 if halves else torch.float32
    total = sum(new for _, new in ATTENTION_CASES)
    query = torch.randn((1, 6, total, 32), generator=generator)
    key, value = (torch.randn((1, 2, total, 32), generator=generator).to(kind).float() for _ in "kv")
    truth, table, caches = [], [], []
    first = 0
    for length, new in ATTENTION_CASES:
        keys, values = (torch.randn((1, 2, length, 32), generator=generator).to(kind) for _ in "kv")
        table += [first, new, keys.data_ptr(), values.data_ptr(), keys.stride(1), values.stride(1), length, 0]
        own = slice(first, first + new)
        k, v = (
            torch.cat([cache[:, :, : length - new].float(), fresh[:, :, own]], 2)
            for cache, fresh in ((keys, key), (values, value))
        )
        seen = torch.ones((new, length), dtype=torch.bool).tril_(length - new)
        rows = functional.scaled_dot_product_attention(query[:, :, own], k, v, seen, enable_gqa=True)
        truth.append(rows.transpose(1, 2))
        caches += [keys, values]  # which must live until they were read
        first += new
    return kernels.attend(query, key, value, table, 32**-0.5, fp16_cache=halves), torch.cat(truth, 1)
