"""The compiled int4 GEMM: the same integers with every instruction set, and rows that do not affect each other."""

import numpy as np
import pytest
import torch
from torch import Tensor

from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.kernels.int4_layout import (
    INT4_GROUP_INPUTS,
    WEIGHTS_PER_CHUNK,
    PackedInt4Weight,
    pack_int4_weight,
    unpack_int4_weight,
)
from tests.engine.kernel_builds import INSTRUCTION_SET_FLAGS, build_kernels
from tests.engine.kernels.random_matrices import make_random_matrix

NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module", params=INSTRUCTION_SET_FLAGS)
def compiled_kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return build_kernels(request.param, tmp_path_factory)


def compute_reference(x: Tensor, packed: PackedInt4Weight, bias: Tensor | None = None) -> Tensor:
    """Returns the product, computed group by group from integers, as the kernel defines it.

    numpy has no fused multiply-add: float64 holds the product of two float32 exactly, and their sum is rounded to
    float32 from 53 bits. That differs from one rounding only in rare ties of the first.
    """
    blocks, groups, _, lanes, _ = packed.weights.shape
    bits = packed.weights.numpy()
    levels = np.stack([bits & 15, bits >> 4]).astype(np.int64) - 8
    weight = levels.transpose(1, 4, 2, 0, 3, 5).reshape(blocks * lanes, groups, INT4_GROUP_INPUTS)[: packed.outputs]
    group_scales = packed.group_scales.numpy().transpose(0, 2, 1).reshape(blocks * lanes, groups)[: packed.outputs]
    row_max = x.abs().amax(-1, keepdim=True)
    padded = torch.nn.functional.pad((x * (127 / row_max)).round_(), (0, packed.padded_inputs - packed.inputs))
    rows = padded.numpy().astype(np.int64).reshape(len(x), groups, INT4_GROUP_INPUTS)
    result = np.zeros((len(x), packed.outputs), np.float32)
    for group in range(groups):
        sums = (rows[:, group] @ weight[:, group].T).astype(np.float64)
        result = (sums * group_scales[:, group].astype(np.float64) + result).astype(np.float32)
    scale = (row_max / 127).numpy() * packed.scales[: packed.outputs].numpy()
    offset = 0.0 if bias is None else bias.numpy().astype(np.float64)
    return torch.from_numpy((result.astype(np.float64) * scale.astype(np.float64) + offset).astype(np.float32))


@pytest.mark.parametrize(
    ("outputs", "inputs"), [(1, 1), (16, 8), (37, 50), (33, 64), (256, 256), (100, 1024), (96, 1025), (64, 3072)]
)
@pytest.mark.parametrize("threads", [1, 2])
def test_products_equal_integer_arithmetic_in_any_batch(
    compiled_kernels: Kernels, outputs: int, inputs: int, threads: int
) -> None:
    weight, x, bias = (
        make_random_matrix(outputs, inputs),
        make_random_matrix(100, inputs, seed=2),
        make_random_matrix(outputs, seed=3),
    )
    matrix = compiled_kernels.pack_int4_weight(weight)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        product = compiled_kernels.multiply(x, matrix, bias)
        difference = (product - compute_reference(x, matrix, bias)).abs()
        # A level on the border between two may be rounded to the other one; every other result has the same bits.
        assert float((difference > 1e-5).float().mean()) < 0.02 and float(difference.max()) < 0.1
        assert float((difference == 0).float().mean()) > 0.9
        for count in (1, 2, 3, 5, 6, 7, 11, 12, 13, 16, 17, 31, 32, 33, 49, 64):
            for first in (0, 7, 36):
                rows = compiled_kernels.multiply(x[first : first + count], matrix, bias)
                assert torch.equal(rows, product[first : first + count])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_largest_possible_sums_are_exact(compiled_kernels: Kernels, sign: float) -> None:
    """Levels of -8 and 127 everywhere: pairs of products need more than 8 bits, and no sum may saturate."""
    x, weight = torch.full((3, 65536), 127.0), torch.full((3, 65536), -8.0 * sign)
    matrix = compiled_kernels.pack_int4_weight(weight)
    expected = torch.full((3, 3), -8.0 * sign * 127 * 65536)
    assert torch.equal(compiled_kernels.multiply(x, matrix), expected)
    assert torch.equal(compiled_kernels.multiply(-x[:1], matrix), -expected[:1])


@pytest.mark.parametrize("lanes", [8, 16])
def test_unpacked_weight_is_the_nearest_of_sixteen_levels(lanes: int) -> None:
    weight = make_random_matrix(37, 150)
    packed = pack_int4_weight(weight, lanes)
    unpacked = unpack_int4_weight(packed)
    assert 0.05 < float((unpacked - weight).norm() / weight.norm()) < 0.1
    for output in unpacked:
        for group in output.split(INT4_GROUP_INPUTS):
            assert len(group.unique()) <= 16
    assert torch.allclose(unpack_int4_weight(pack_int4_weight(unpacked, lanes)), unpacked, atol=1e-2)


def test_packed_weight_takes_four_bits_and_a_scale_for_each_group() -> None:
    packed = pack_int4_weight(make_random_matrix(256, 512), 16)
    assert packed.weights.nbytes == 256 * 512 // 2
    assert packed.group_scales.nbytes == 2 * 256 * 512 // INT4_GROUP_INPUTS
    assert packed.scales.nbytes == 4 * 256


def test_weights_of_any_magnitude_keep_their_relative_error() -> None:
    weight = make_random_matrix(20, 128)
    weight[3:6] *= 1e-12
    weight[6:9] *= 1e12
    weight[9] = 0.0
    unpacked = unpack_int4_weight(pack_int4_weight(weight, 8))
    errors = (unpacked - weight).norm(dim=1) / weight.norm(dim=1)
    assert float(errors.nan_to_num().max()) < 0.13 and not unpacked[9].any()


def test_weight_packed_in_chunks_equals_one_packed_at_once() -> None:
    inputs = WEIGHTS_PER_CHUNK // 16
    weight = make_random_matrix(16, inputs).repeat(3, 1)[:37]  # three chunks of 16 outputs
    unpacked = unpack_int4_weight(pack_int4_weight(weight, 8))
    assert torch.equal(unpacked[:16], unpacked[16:32]) and torch.equal(unpacked[:5], unpacked[32:])
