"""The compiled MXFP4 GEMM: the same integers with every instruction set, and rows that do not affect each other."""

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from antiphon.engine.forward.experts.matmul import unpack_weight
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.kernels.mxfp4_layout import (
    E2M1_VALUES,
    LEVEL_SCALE,
    MXFP4_GROUP_INPUTS,
    PackedMxfp4Weight,
    pack_mxfp4_blocks,
    quantize_to_mxfp4,
    unpack_mxfp4_levels,
)
from tests.engine.kernel_builds import INSTRUCTION_SET_FLAGS, build_kernels
from tests.engine.kernels.random_matrices import make_random_matrix

BUILD_FLAGS = [*INSTRUCTION_SET_FLAGS, "-mno-amx-int8 -mno-avx512f -mno-avx2 -mno-fma -mno-f16c"]
"""Compiler flags that disable instruction sets one by one; with the last, only portable C is left."""

NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module", params=BUILD_FLAGS)
def compiled_kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return build_kernels(request.param, tmp_path_factory)


def make_random_blocks(outputs: int, groups: int) -> tuple[Tensor, Tensor]:
    """Returns blocks with all codes, and scales from 2⁻¹² to 2³."""
    generator = torch.Generator().manual_seed(outputs)
    blocks = torch.randint(0, 256, (outputs, groups, 16), generator=generator, dtype=torch.uint8)
    return blocks, torch.randint(115, 131, (outputs, groups), generator=generator, dtype=torch.uint8)


def compute_reference(x: Tensor, packed: PackedMxfp4Weight, bias: Tensor | None = None) -> Tensor:
    """Returns the product, computed group by group from integers, as the kernel defines it.

    numpy has no fused multiply-add: float64 holds the product of two float32 exactly, and their sum is rounded to
    float32 from 53 bits. That differs from one rounding only in rare ties of the first.
    """
    levels, group_scales = (part[: packed.outputs].numpy() for part in unpack_mxfp4_levels(packed))
    padded = torch.nn.functional.pad(x, (0, packed.padded_inputs - packed.inputs))
    groups = padded.view(len(x), -1, MXFP4_GROUP_INPUTS)
    maxima = groups.abs().amax(-1, keepdim=True)
    rows = (groups * (127 / maxima)).round_().nan_to_num_().numpy().astype(np.int64)
    weight = levels.reshape(packed.outputs, -1, MXFP4_GROUP_INPUTS).astype(np.int64)
    result = np.zeros((len(x), packed.outputs), np.float32)
    for group in range(rows.shape[1]):
        sums = (rows[:, group] @ weight[:, group].T).astype(np.float64)
        scales = group_scales[:, group] * (maxima[:, group] / 127).numpy()
        result = (sums * scales.astype(np.float64) + result).astype(np.float32)
    offset = 0.0 if bias is None else bias.numpy().astype(np.float64)
    return torch.from_numpy((result.astype(np.float64) * LEVEL_SCALE + offset).astype(np.float32))


@pytest.mark.parametrize(("outputs", "groups"), [(1, 1), (37, 3), (64, 4), (96, 45)])
@pytest.mark.parametrize("threads", [1, 2])
def test_products_equal_integer_arithmetic_in_any_batch(
    compiled_kernels: Kernels, outputs: int, groups: int, threads: int
) -> None:
    matrix = compiled_kernels.pack_mxfp4_blocks(*make_random_blocks(outputs, groups))
    x, bias = make_random_matrix(70, groups * 32, seed=2), make_random_matrix(outputs, seed=3)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        product = compiled_kernels.multiply(x, matrix, bias)
        difference = (product - compute_reference(x, matrix, bias)).abs()
        # A level on the border between two may be rounded to the other one; every other result has the same bits.
        assert float((difference == 0).float().mean()) > 0.9
        assert float(difference.norm() / product.norm()) < 1e-3
        for count in (1, 2, 3, 5, 6, 7, 11, 13, 16, 17, 33):
            for first in (0, 7, 36):
                rows = compiled_kernels.multiply(x[first : first + count], matrix, bias)
                assert torch.equal(rows, product[first : first + count])
    finally:
        torch.set_num_threads(before)


def test_product_is_near_the_one_with_the_unpacked_weight(compiled_kernels: Kernels) -> None:
    blocks, scales = make_random_blocks(50, 8)
    blocks[:, 0] = 0
    matrix = compiled_kernels.pack_mxfp4_blocks(blocks, scales)
    x = make_random_matrix(20, 256)
    x[:, 5] *= 100  # takes levels from its own group only, whose weights are zero
    expected = x @ unpack_weight(matrix).T
    product = compiled_kernels.multiply(x, matrix)
    assert float((product - expected).norm() / expected.norm()) < 0.01


@pytest.mark.parametrize("count", [0, 1, 40])
def test_gated_product_equals_the_product_of_the_gated_input(compiled_kernels: Kernels, count: int) -> None:
    x, bias = make_random_matrix(2, count, 192), make_random_matrix(40, seed=3)
    matrix = compiled_kernels.pack_mxfp4_blocks(*make_random_blocks(40, 3))
    expected = compiled_kernels.multiply(compiled_kernels.silu_mul(x), matrix, bias)
    assert torch.equal(compiled_kernels.multiply(x, matrix, bias, gated=True), expected)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_largest_possible_sums_are_exact(compiled_kernels: Kernels, sign: float) -> None:
    """Levels of 12 and 127 everywhere: sums of products in 16 bits must not saturate."""
    x = torch.full((3, 256), 127.0)
    blocks, scales = quantize_to_mxfp4(torch.full((3, 256), 6.0 * sign))
    matrix = compiled_kernels.pack_mxfp4_blocks(blocks, scales)
    expected = torch.full((3, 3), 6.0 * sign * 127 * 256)
    assert torch.equal(compiled_kernels.multiply(x, matrix), expected)
    assert torch.equal(compiled_kernels.multiply(-x[:1], matrix), -expected[:1])


def test_non_finite_inputs_stay_non_finite_and_zeros_give_the_bias(compiled_kernels: Kernels) -> None:
    matrix = compiled_kernels.pack_mxfp4_blocks(*make_random_blocks(20, 2))
    bias, x = make_random_matrix(20, seed=2), make_random_matrix(40, 64, seed=3)
    expected = compiled_kernels.multiply(x, matrix, bias)
    x[0], x[1, 5], x[2, 7], x[3], x[20, 63] = 0.0, NAN, INF, 1e-42, -INF
    y = compiled_kernels.multiply(x, matrix, bias)
    assert torch.equal(y[0], bias) and y[3].isfinite().all()
    assert not y[[1, 2, 20]].isfinite().any()
    assert torch.equal(y[4:20], expected[4:20]) and torch.equal(y[21:], expected[21:])


def test_all_instruction_sets_give_the_same_bits(tmp_path_factory: pytest.TempPathFactory) -> None:
    x, bias = make_random_matrix(70, 224), make_random_matrix(90, seed=3)
    results = []
    for flags in BUILD_FLAGS:
        kernels = build_kernels(flags, tmp_path_factory)
        results.append(kernels.multiply(x, kernels.pack_mxfp4_blocks(*make_random_blocks(90, 7)), bias))
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize(("outputs", "groups"), [(1, 1), (37, 3), (64, 4), (1000, 20)])
def test_compiled_code_packs_blocks_as_torch_does(compiled_kernels: Kernels, outputs: int, groups: int) -> None:
    blocks, scales = make_random_blocks(outputs, groups)
    packed = compiled_kernels.pack_mxfp4_blocks(blocks, scales)
    expected = pack_mxfp4_blocks(blocks, scales, compiled_kernels.lanes)
    assert packed[:2] == expected[:2]
    assert all(torch.equal(part, other) for part, other in zip(packed[2:], expected[2:], strict=True))


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize(("outputs", "groups"), [(32, 2), (37, 3)])
def test_unpacked_blocks_equal_those_of_transformers(lanes: int, outputs: int, groups: int) -> None:
    blocks, scales = make_random_blocks(outputs, groups)
    scales[0, 0], scales[1, 0] = 0, 254  # the least and the largest power
    expected = convert_moe_packed_tensors(blocks[None], scales[None], dtype=torch.float32)[0].T
    assert torch.equal(unpack_weight(pack_mxfp4_blocks(blocks, scales, lanes)), expected)


def test_packed_weight_takes_the_size_of_its_blocks_and_scales() -> None:
    blocks, scales = make_random_blocks(256, 16)
    packed = pack_mxfp4_blocks(blocks, scales, 16)
    assert packed.weights.nbytes == blocks.nbytes and packed.group_scales.nbytes == scales.nbytes


def test_every_number_of_the_form_is_quantized_to_itself_and_others_to_the_nearest() -> None:
    numbers = torch.tensor(E2M1_VALUES).repeat(2) * 2.0**-9
    assert torch.equal(unpack_weight(pack_mxfp4_blocks(*quantize_to_mxfp4(numbers[None]), 8)), numbers[None])
    weight = make_random_matrix(10, 64)
    unpacked = unpack_weight(pack_mxfp4_blocks(*quantize_to_mxfp4(weight), 8))
    assert 0.08 < float((unpacked - weight).norm() / weight.norm()) < 0.15
