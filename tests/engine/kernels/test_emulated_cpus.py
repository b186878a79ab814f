"""The kernels on CPUs that this machine does not have, under QEMU: equal to torch, and the same bits as in portable C.

NEON has four lanes, as portable C has on this machine. So sums over lanes, too, are added in the same order.
"""

import shutil
from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.kernels.half_linear import HALF_DTYPES
from antiphon.engine.kernels.int4_layout import pack_int4_weight
from antiphon.engine.kernels.int8_layout import pack_int8_weight
from antiphon.engine.kernels.library import verify_kernels
from antiphon.engine.kernels.mxfp4_layout import quantize_to_mxfp4
from tests.counts import FULL_COUNTS
from tests.engine.kernel_builds import PORTABLE_FLAGS, build_kernels
from tests.engine.kernels.emulated_library import EmulatedLibrary, TensorRecorder, compile_driver

ARM_COMPILER, ARM_EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
ARM_BUILDS = {
    "dotprod": (["-march=armv8.2-a+dotprod"], "neoverse-n1"),
    "neon": (["-march=armv8-a"], "cortex-a72"),
    "portable": (["-march=armv8-a", "-U__ARM_NEON", "-DFUSED_MULTIPLY_ADD"], "cortex-a53"),
}
"""Compiler flags of each build, and the oldest CPU that must run it."""

TESTED_BUILDS = list(ARM_BUILDS) if FULL_COUNTS else ["dotprod", "neon"]


@pytest.fixture(scope="module", params=TESTED_BUILDS)
def arm_kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernels]:
    """The kernels as an ARM CPU computes them. Every tensor that a test creates can be passed to them."""
    for program in (ARM_COMPILER, ARM_EMULATOR):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    flags, cpu = ARM_BUILDS[request.param]
    program = tmp_path_factory.mktemp("arm") / "kernels"
    functions = compile_driver(ARM_COMPILER, flags, program)
    with (
        TensorRecorder() as memory,
        EmulatedLibrary([ARM_EMULATOR, "-cpu", cpu, str(program)], functions, memory) as library,
    ):
        yield Kernels(cast("Any", library))


@pytest.fixture(scope="module")
def portable_kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return build_kernels(PORTABLE_FLAGS, tmp_path_factory)


def make_random_tensor(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_all_kernels_of_an_arm_cpu_equal_torch(arm_kernels: Kernels) -> None:
    library = arm_kernels._rms_norm._library
    verify_kernels(library)


def compute_rows(kernels: Kernels) -> Iterator[Tensor]:
    """Yields results of the kernels for rows."""
    x, weight = make_random_tensor(5, 80) * 30, make_random_tensor(80, seed=2)
    yield kernels.rms_norm(x, weight, 1e-6)
    yield kernels.silu_mul(x)
    query = make_random_tensor(1, 3, 5, 32)
    yield kernels.apply_rotary(query, *(make_random_tensor(1, 5, 32, seed=seed) for seed in (3, 4)))
    yield torch.cat(kernels.block_softmax_sums(x.view(2, 200)[:, :197].contiguous(), torch.ones(2)), -1)


def compute_attention(kernels: Kernels, dtype: torch.dtype) -> Iterator[Tensor]:
    """Yields results of attention over values that fp16 represents exactly."""
    query = make_random_tensor(1, 4, 30, 48)
    key, value = (make_random_tensor(1, 2, 30, 48, seed=seed).half().float() for seed in (2, 3))
    caches = [make_random_tensor(2, 1, 2, 90, 48, seed=seed).to(torch.float16).to(dtype) for seed in (4, 5)]
    spans, kept, first = [], list[Tensor](), 0
    for (keys, values), length, count in zip(caches, (89, 25), (5, 25), strict=True):
        ends = torch.arange(length - count + 1, length + 1)
        ends[1:4] = length - count + 4  # a picture whose tokens see all of it
        kept.append(ends)
        spans += [first, count, keys.data_ptr(), values.data_ptr(), keys.stride(1), values.stride(1), length, 0]
        spans.append(ends.data_ptr())
        first += count
    fp16 = dtype is torch.float16
    for window, sinks, softcap in ((None, None, None), (20, torch.arange(4.0), None), (None, None, 3.0)):
        yield kernels.attend(
            query, key, value, spans, 0.2, window=window, sinks=sinks, softcap=softcap, fp16_cache=fp16
        )
        yield torch.cat([cache.float() for cache in caches])


def compute_products(kernels: Kernels) -> Iterator[Tensor]:
    """Yields products of rows, in any number, with quantized weights."""
    weight, bias, x = make_random_tensor(90, 200), make_random_tensor(90, seed=2), make_random_tensor(70, 200, seed=3)
    int8, int4 = pack_int8_weight(weight, 4), pack_int4_weight(weight, 4)
    for count in (1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 70):
        yield kernels.multiply(x[:count], int8, bias)
        yield kernels.multiply(x[:count], int4, bias)
    mxfp4 = kernels.pack_mxfp4_blocks(*quantize_to_mxfp4(make_random_tensor(90, 192)))
    yield kernels.multiply(x[:20, :192].contiguous(), mxfp4)
    gated = make_random_tensor(7, 400, seed=4)
    yield kernels.multiply(gated.clone(), int8, gated=True)
    yield kernels.multiply(gated.clone(), int4, gated=True)


def compute_half_products(kernels: Kernels, dtype: torch.dtype) -> Iterator[Tensor]:
    """Yields products of rows, in any number, with weights of 16 bits."""
    weight, bias, x = make_random_tensor(90, 299), make_random_tensor(90, seed=2), make_random_tensor(40, 299, seed=3)
    packed = kernels.half.pack(weight.to(dtype))
    for count in (1, 2, 3, 4, 5, 6, 7, 11, 13, 40):
        yield kernels.half.multiply(x[:count], packed, bias)


def compute_row_major_products(kernels: Kernels, dtype: torch.dtype) -> Iterator[Tensor]:
    """Yields products of rows, in any number, with weights that are not packed."""
    weight, x = make_random_tensor(90, 304).to(dtype), make_random_tensor(13, 304, seed=3)
    for count in (1, 2, 3, 4, 5, 13):
        out = torch.empty(count, len(weight))
        kernels.row_major.multiply(x[:count], weight, out)
        yield out


def assert_same_bits(results: Iterator[Tensor], expected: Iterator[Tensor]) -> None:
    for result, other in zip(results, expected, strict=True):
        assert torch.equal(result, other)


def test_rows_on_an_arm_cpu_have_the_bits_of_portable_code(arm_kernels: Kernels, portable_kernels: Kernels) -> None:
    assert_same_bits(compute_rows(arm_kernels), compute_rows(portable_kernels))


def test_attention_on_an_arm_cpu_has_the_bits_of_portable_code(arm_kernels: Kernels, portable_kernels: Kernels) -> None:
    expected = list(compute_attention(portable_kernels, torch.float32))
    assert_same_bits(compute_attention(arm_kernels, torch.float32), iter(expected))
    if arm_kernels.supports_fp16_cache:
        assert_same_bits(compute_attention(arm_kernels, torch.float16), iter(expected))


def test_products_on_an_arm_cpu_have_the_bits_of_portable_code(arm_kernels: Kernels, portable_kernels: Kernels) -> None:
    assert_same_bits(compute_products(arm_kernels), compute_products(portable_kernels))
    *_, few_rows, _, many_rows, _, _, _, _ = compute_products(arm_kernels)
    assert torch.equal(few_rows, many_rows[: len(few_rows)])


@pytest.mark.parametrize("dtype", HALF_DTYPES)
def test_products_of_16_bits_on_an_arm_cpu_have_the_bits_of_portable_code(
    arm_kernels: Kernels, portable_kernels: Kernels, dtype: torch.dtype
) -> None:
    for compute in (compute_half_products, compute_row_major_products):
        results = list(compute(arm_kernels, dtype))
        assert_same_bits(iter(results), compute(portable_kernels, dtype))
        assert all(torch.equal(rows, results[-1][: len(rows)]) for rows in results)
