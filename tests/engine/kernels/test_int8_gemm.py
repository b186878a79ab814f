"""The compiled int8 GEMM: the same integers with every instruction set, and rows that do not affect each other."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.kernels.int8_layout import ACTIVATION_LEVELS, OUTPUTS_PER_CHUNK, pack_int8_weight
from tests.engine.kernel_builds import INSTRUCTION_SET_FLAGS, build_kernels
from tests.engine.kernels.random_matrices import make_random_matrix, pack_integers

NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module", params=INSTRUCTION_SET_FLAGS)
def compiled_kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return build_kernels(request.param, tmp_path_factory)


def quantize_rows(x: Tensor, levels: int) -> Tensor:
    """Returns each row rounded to its `levels` int8 levels."""
    scale = x.abs().amax(-1, keepdim=True) / levels
    return (x / scale).round() * scale


@pytest.mark.parametrize(
    ("outputs", "inputs"), [(1, 1), (16, 8), (37, 50), (33, 64), (256, 256), (100, 1024), (96, 1025), (64, 3072)]
)
@pytest.mark.parametrize("threads", [1, 2])
def test_products_equal_those_of_rounded_values_in_any_batch(
    compiled_kernels: Kernels, outputs: int, inputs: int, threads: int
) -> None:
    weight, x, bias = (
        make_random_matrix(outputs, inputs),
        make_random_matrix(100, inputs, seed=2),
        make_random_matrix(outputs, seed=3),
    )
    matrix = compiled_kernels.pack_int8_weight(weight)
    expected = functional.linear(quantize_rows(x, ACTIVATION_LEVELS).double(), quantize_rows(weight, 127).double())
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        product = compiled_kernels.multiply(x, matrix, bias)
        assert ((product - expected - bias).norm() / expected.norm()) < 2e-3  # ties may round differently
        assert torch.allclose(compiled_kernels.multiply(x, matrix) + bias, product, rtol=1e-5, atol=1e-5)
        for count in (1, 2, 3, 5, 12, 13, 16, 17, 31, 32, 33, 49):
            for first in (0, 7, 50):
                assert torch.equal(
                    compiled_kernels.multiply(x[first : first + count], matrix, bias), product[first : first + count]
                )
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("form", ["int8", "int4"])
@pytest.mark.parametrize("count", [0, 1, 5, 40])
def test_gated_product_equals_the_product_of_the_gated_input(compiled_kernels: Kernels, form: str, count: int) -> None:
    x, matrix, bias = (
        make_random_matrix(2, count, 160),
        pack_integers(compiled_kernels, form, make_random_matrix(40, 80, seed=2)),
        make_random_matrix(40, seed=3),
    )
    expected = compiled_kernels.multiply(compiled_kernels.silu_mul(x), matrix, bias)
    assert torch.equal(compiled_kernels.multiply(x, matrix, bias, gated=True), expected)


def test_largest_possible_sums_do_not_saturate(compiled_kernels: Kernels) -> None:
    """Pairs of products need all 16 bits, and their sums all 32 bits. Nothing saturates."""
    signs = make_random_matrix(3, 65536).sign()
    matrix = compiled_kernels.pack_int8_weight(signs)
    assert torch.equal(compiled_kernels.multiply(signs, matrix), functional.linear(signs, signs))
    assert torch.equal(compiled_kernels.multiply(-signs[:1], matrix), -functional.linear(signs[:1], signs))


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_non_finite_inputs_stay_non_finite_and_zeros_give_the_bias(compiled_kernels: Kernels, form: str) -> None:
    weight, bias, x = make_random_matrix(20, 64), make_random_matrix(20, seed=2), make_random_matrix(40, 64, seed=3)
    matrix = pack_integers(compiled_kernels, form, weight)
    expected = compiled_kernels.multiply(x, matrix, bias)
    x[0], x[1, 5], x[2, 7], x[3], x[20, 63] = 0.0, NAN, INF, 1e-42, -INF
    for first in (0, 1, 2, 3, 20):
        row_product = compiled_kernels.multiply(x[first : first + 1], matrix, bias)
        assert torch.equal(row_product, bias[None]) if first == 0 else row_product.isfinite().all() == (first == 3)
    y = compiled_kernels.multiply(x, matrix, bias)
    assert torch.equal(y[0], bias) and y[3].isfinite().all()
    assert not y[[1, 2, 20]].isfinite().any()
    assert torch.equal(y[4:20], expected[4:20]) and torch.equal(y[21:], expected[21:])


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.view(2, 5, 3, 64)[:, 1:3],
        lambda x: x.view(2, 15, 64).transpose(0, 1),
        lambda x: x.view(30, 64)[::3],
        lambda x: x.view(30, 64)[:0],
        lambda x: x.view(64, 30).T,
        lambda x: x[:64],
    ],
)
def test_strided_views_are_supported(compiled_kernels: Kernels, view: Any) -> None:
    x, matrix = view(make_random_matrix(1920)), compiled_kernels.pack_int8_weight(make_random_matrix(40, 64, seed=2))
    product = compiled_kernels.multiply(x, matrix)
    assert product.shape == (*x.shape[:-1], 40)
    assert torch.equal(product, compiled_kernels.multiply(x.clone(memory_format=torch.contiguous_format), matrix))


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_all_instruction_sets_give_the_same_bits(form: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    x, weight, bias = make_random_matrix(70, 200), make_random_matrix(90, 200, seed=2), make_random_matrix(90, seed=3)
    results = []
    for flags in INSTRUCTION_SET_FLAGS:
        kernels = build_kernels(flags, tmp_path_factory)
        results.append(kernels.multiply(x, pack_integers(kernels, form, weight), bias))
    assert all(torch.equal(result, results[0]) for result in results)


def test_weight_packed_in_chunks_equals_one_packed_at_once() -> None:
    weight = make_random_matrix(2 * OUTPUTS_PER_CHUNK + 5, 12)
    whole = pack_int8_weight(weight, 8)
    for first in (0, OUTPUTS_PER_CHUNK, 2 * OUTPUTS_PER_CHUNK):
        part = pack_int8_weight(weight[first : first + 5], 8)
        for whole_vector, part_vector in ((whole.scales, part.scales), (whole.zeros, part.zeros)):
            assert torch.equal(whole_vector[first : first + 5], part_vector[:5])
        assert torch.equal(whole.weights[first // 8, :, :5], part.weights[0, :, :5])
    assert not whole.weights[-1].any() and len(whole.scales) % 16 == 0
