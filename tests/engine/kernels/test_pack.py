"""Packing by compiled code: the same bits as torch computes, from every stored type and with every instruction set."""

from typing import Any

import pytest
import torch
from torch import Tensor

from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.kernels.int4_layout import pack_int4_weight
from antiphon.engine.kernels.int8_layout import pack_int8_weight
from antiphon.engine.kernels.pack import OUTPUTS_PER_CALL
from antiphon.engine.kernels.weight_rows import WeightRows
from tests.engine.kernel_builds import build_kernels

BUILD_FLAGS = ["", "-mno-amx-int8 -mno-avx512f", "-mno-amx-int8 -mno-avx512f -mno-avx2 -mno-fma -mno-f16c"]
"""Compiler flags for vectors of 16 lanes, of 8 lanes, and for portable C; other tests use the same builds."""

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(1, 1), (37, 50), (33, 64), (100, 200), (40, 1025)]


@pytest.fixture(scope="module", params=BUILD_FLAGS)
def built_kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return build_kernels(request.param, tmp_path_factory)


def make_weight(kind: str, outputs: int, inputs: int) -> Tensor:
    """Returns random weights, weights of very different magnitudes, or small whole numbers, which often tie."""
    generator = torch.Generator().manual_seed(outputs + inputs)
    if kind == "ties":
        return torch.randint(-9, 9, (outputs, inputs), generator=generator).float()
    weight = torch.randn((outputs, inputs), generator=generator) * 0.02
    if kind == "magnitudes":
        weight[::3] *= 1e-4
        weight[:, ::7] *= 1e-4
        weight[1::5] = 0.0
        weight[::2, :64] = 0.0
        weight[::4, ::5] = -0.0
    return weight


def assert_same_bits(packed: Any, expected: Any) -> None:
    assert type(packed) is type(expected)
    for field, value in expected._asdict().items():
        other = getattr(packed, field)
        if isinstance(value, Tensor):
            assert other.dtype is value.dtype and other.shape == value.shape, field
            assert torch.equal(other.view(torch.uint8), value.view(torch.uint8)), field
        else:
            assert other == value, field


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["random", "magnitudes", "ties"])
def test_packed_bits_equal_those_of_torch(built_kernels: Kernels, dtype: torch.dtype, kind: str) -> None:
    lanes = built_kernels.lanes
    for shape in SHAPES:
        weight = make_weight(kind, *shape).to(dtype)
        assert_same_bits(built_kernels.pack_int8_weight(weight), pack_int8_weight(weight, lanes))
        assert_same_bits(built_kernels.pack_int4_weight(weight), pack_int4_weight(weight, lanes))


def test_every_fp16_value_is_widened_exactly(built_kernels: Kernels) -> None:
    halves = torch.arange(1 << 16).to(torch.uint16).view(torch.float16)
    weight = halves[halves.isfinite()].view(-1, 16)
    assert_same_bits(built_kernels.pack_int4_weight(weight), built_kernels.pack_int4_weight(weight.float()))


def test_rows_of_several_tensors_pack_as_one_weight(compiled_kernels: Kernels) -> None:
    weight = make_weight("random", OUTPUTS_PER_CALL + 300, 70)
    parts = (weight[:5], weight[5 : OUTPUTS_PER_CALL + 100], weight[OUTPUTS_PER_CALL + 100 :])
    released: list[tuple[int, int, int]] = []
    rows = WeightRows(parts, lambda *released_rows: released.append(released_rows))
    assert_same_bits(compiled_kernels.pack_int4_weight(rows), compiled_kernels.pack_int4_weight(weight))
    assert_same_bits(compiled_kernels.pack_int8_weight(rows), compiled_kernels.pack_int8_weight(weight))
    counts = [sum(end - first for part, first, end in released if part == index) for index in range(3)]
    assert counts == [2 * len(part) for part in parts]


def test_weights_that_are_not_finite_give_no_finite_product(built_kernels: Kernels) -> None:
    weight = make_weight("random", 40, 64)
    weight[3, 5], weight[8, 0], weight[9, 63] = float("nan"), float("inf"), -float("inf")
    product = built_kernels.multiply(torch.ones(2, 64), built_kernels.pack_int4_weight(weight))
    assert product[:, [3, 8, 9]].isfinite().sum() == 0 and product.isfinite().sum() == 2 * 37


def test_number_of_threads_does_not_change_the_bits(compiled_kernels: Kernels) -> None:
    weight, before = make_weight("random", 300, 256), torch.get_num_threads()
    packed = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        packed.append(compiled_kernels.pack_int4_weight(weight))
    torch.set_num_threads(before)
    assert_same_bits(packed[0], packed[1])
