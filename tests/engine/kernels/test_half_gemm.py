"""The compiled product with 16-bit weights: the error of fp32, and rows that do not affect each other."""

import pytest
import torch
from torch import nn

from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.kernels.half_linear import HALF_DTYPES, pack_half_weight, unpack_half_weight
from antiphon.engine.kernels.weight_rows import WeightRows
from tests.engine.kernel_builds import INSTRUCTION_SET_FLAGS, build_kernels
from tests.engine.kernels.random_matrices import make_random_matrix

FMA_BUILD_FLAGS = [INSTRUCTION_SET_FLAGS[index] for index in (1, 3, -1)]
"""Compiler flags for AVX512, AVX2 and portable C without AMX, whose results have other bits."""

NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module", params=["", *FMA_BUILD_FLAGS])
def compiled_kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return build_kernels(request.param, tmp_path_factory)


def fp32_error_bound(inputs: int) -> float:
    """Returns a bound on the relative error of sums of `inputs` products in fp32, in any order.

    Rounding errors are independent of each other, so their sum grows with the square root of the length. Activations
    rounded to two bf16 parts, 16 bits, would exceed it.
    """
    return torch.finfo(torch.float32).eps * (1 + inputs**0.5 / 4)


@pytest.mark.parametrize("dtype", HALF_DTYPES)
@pytest.mark.parametrize(
    ("outputs", "inputs"), [(1, 1), (37, 50), (33, 64), (256, 256), (100, 1024), (96, 1025), (150, 2333)]
)
def test_error_is_that_of_fp32(compiled_kernels: Kernels, dtype: torch.dtype, outputs: int, inputs: int) -> None:
    weight = make_random_matrix(outputs, inputs).to(dtype)
    x, bias = make_random_matrix(50, inputs, seed=2), make_random_matrix(outputs, seed=3)
    exact = nn.functional.linear(x.double(), weight.double(), bias.double())
    kernel = compiled_kernels.half
    error = float((kernel.multiply(x, kernel.pack(weight), bias) - exact).norm() / exact.norm())
    assert error < fp32_error_bound(inputs)


@pytest.mark.parametrize("dtype", HALF_DTYPES)
def test_rows_have_the_same_bits_in_any_batch(compiled_kernels: Kernels, dtype: torch.dtype) -> None:
    x, bias = make_random_matrix(220, 333, seed=2), make_random_matrix(200, seed=3)
    kernel = compiled_kernels.half
    packed = kernel.pack(make_random_matrix(200, 333).to(dtype))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        product = kernel.multiply(x, packed, bias)
        torch.set_num_threads(1)
        for count in [*range(1, 41), 79, 81, 128]:
            for first in (0, 92):
                assert torch.equal(
                    kernel.multiply(x[first : first + count], packed, bias), product[first : first + count]
                )
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", HALF_DTYPES)
def test_instruction_sets_without_amx_give_the_same_bits(
    dtype: torch.dtype, tmp_path_factory: pytest.TempPathFactory
) -> None:
    x, weight, bias = make_random_matrix(70, 601), make_random_matrix(90, 601, seed=2), make_random_matrix(90, seed=3)
    results = []
    for flags in FMA_BUILD_FLAGS:
        kernel = build_kernels(flags, tmp_path_factory).half
        results.append(kernel.multiply(x, kernel.pack(weight.to(dtype)), bias))
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("dtype", HALF_DTYPES)
@pytest.mark.parametrize("count", [1, 40])
def test_all_bits_of_activations_and_weights_count(compiled_kernels: Kernels, dtype: torch.dtype, count: int) -> None:
    """A product with the identity is the activation itself, whatever its exponent; one with a unit row the weight."""
    kernel = compiled_kernels.half
    x = make_random_matrix(count, 70, seed=2) * 2.0 ** (torch.arange(70) * 2 - 70)
    identity = torch.eye(70).to(dtype)
    assert torch.equal(kernel.multiply(x, kernel.pack(identity)), x)
    weight = (make_random_matrix(70, 70) * 2.0 ** (torch.arange(70) - 55)).clamp(-6e4, 6e4).to(dtype)
    assert torch.equal(kernel.multiply(torch.eye(70)[:count], kernel.pack(weight)), weight.float().T[:count])


@pytest.mark.parametrize("dtype", HALF_DTYPES)
@pytest.mark.parametrize("count", [0, 1, 5, 40])
def test_gated_product_equals_the_product_of_the_gated_input(
    compiled_kernels: Kernels, dtype: torch.dtype, count: int
) -> None:
    kernel, x, bias = compiled_kernels.half, make_random_matrix(2, count, 160), make_random_matrix(40, seed=3)
    packed = kernel.pack(make_random_matrix(40, 80, seed=2).to(dtype))
    expected = kernel.multiply(compiled_kernels.silu_mul(x), packed, bias)
    assert torch.equal(kernel.multiply(x, packed, bias, gated=True), expected)


@pytest.mark.parametrize("dtype", HALF_DTYPES)
def test_non_finite_rows_affect_only_themselves(compiled_kernels: Kernels, dtype: torch.dtype) -> None:
    kernel, bias, x = compiled_kernels.half, make_random_matrix(20, seed=2), make_random_matrix(60, 64, seed=3)
    packed = kernel.pack(make_random_matrix(20, 64).to(dtype))
    expected = kernel.multiply(x, packed, bias)
    x[0], x[1, 5], x[2, 7], x[20, 63], x[59, 1] = 0.0, NAN, INF, -INF, NAN
    y = kernel.multiply(x, packed, bias)
    assert torch.equal(y[0], bias) and not y[[1, 2, 20, 59]].isfinite().any()
    assert torch.equal(y[3:20], expected[3:20]) and torch.equal(y[21:59], expected[21:59])


@pytest.mark.parametrize("dtype", HALF_DTYPES)
@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_packed_weight_takes_two_bytes_for_each_weight_and_keeps_its_bits(dtype: torch.dtype, lanes: int) -> None:
    weight = make_random_matrix(1088, 96).to(dtype)
    packed = pack_half_weight(weight, lanes)
    assert packed.weights.nbytes == 2 * weight.numel() and packed.weights.dtype == dtype
    assert torch.equal(unpack_half_weight(packed), weight.float())
    assert torch.equal(unpack_half_weight(pack_half_weight(weight[:37, :29], lanes)), weight[:37, :29].float())


@pytest.mark.parametrize("dtype", HALF_DTYPES)
def test_weight_in_several_parts_is_packed_like_one(dtype: torch.dtype) -> None:
    weight, released = make_random_matrix(2500, 40).to(dtype), []
    parts = list(weight.split([700, 1, 1500, 299]))
    rows = WeightRows.join(parts, lambda part, first, end: released.append((part, first, end)))
    assert torch.equal(pack_half_weight(rows, 16).weights, pack_half_weight(weight, 16).weights)
    read = [sum(end - first for part, first, end in released if part == index) for index in range(4)]
    assert read == [700, 1, 1500, 299]
