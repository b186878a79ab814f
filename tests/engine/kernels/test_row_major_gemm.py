"""The compiled product with 16-bit weights that lie row by row: the error of fp32, and rows that affect only themselves."""

import pytest
import torch
from torch import Tensor, nn

from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.kernels.half_linear import HALF_DTYPES
from tests.engine.kernel_builds import INSTRUCTION_SET_FLAGS, build_kernels
from tests.engine.kernels.random_matrices import make_random_matrix


@pytest.fixture(scope="module", params=["", *INSTRUCTION_SET_FLAGS[-2:]])
def compiled_kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return build_kernels(request.param, tmp_path_factory)


def multiply(kernels: Kernels, x: Tensor, weight: Tensor) -> Tensor:
    out = torch.full((*x.shape[:-1], len(weight)), float("nan"))
    kernels.row_major.multiply(x, weight, out)
    return out


@pytest.mark.parametrize("dtype", HALF_DTYPES)
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 16), (37, 48), (64, 256), (101, 1024)])
def test_error_is_that_of_fp32(compiled_kernels: Kernels, dtype: torch.dtype, outputs: int, inputs: int) -> None:
    weight, x = make_random_matrix(outputs, inputs).to(dtype), make_random_matrix(50, inputs, seed=2)
    exact = nn.functional.linear(x.double(), weight.double())
    error, fp32_error = (
        float((product - exact).norm() / exact.norm())
        for product in (multiply(compiled_kernels, x, weight), nn.functional.linear(x, weight.float()))
    )
    assert error < 1.5 * fp32_error + 1e-8 and error < 5e-7


@pytest.mark.parametrize("dtype", HALF_DTYPES)
def test_rows_have_the_same_bits_in_any_batch(compiled_kernels: Kernels, dtype: torch.dtype) -> None:
    x, weight = make_random_matrix(40, 336, seed=2), make_random_matrix(201, 336).to(dtype)
    product = multiply(compiled_kernels, x, weight)
    for count in range(1, 34):
        for first in (0, 7):
            assert torch.equal(multiply(compiled_kernels, x[first : first + count], weight), product[first:][:count])


def test_part_of_the_outputs_is_written_and_nothing_else(compiled_kernels: Kernels) -> None:
    """The rows of the weight and of the result may be farther apart than they are long, and begin at any element."""
    x, stored = make_random_matrix(2, 5, 64), make_random_matrix(30, 77, seed=2).bfloat16()
    weight, out = stored[3:24, 5:69], torch.zeros(2, 5, 90)
    compiled_kernels.row_major.multiply(x, weight, out[..., 40:61])
    assert torch.equal(out[..., 40:61], multiply(compiled_kernels, x, weight.contiguous()))
    assert not out[..., :40].any() and not out[..., 61:].any() and out[..., 40:61].all()


def test_rows_of_other_lengths_and_types_are_not_supported(compiled_kernels: Kernels) -> None:
    supports = compiled_kernels.row_major.supports
    assert supports(torch.bfloat16, 64) and supports(torch.float16, 64)
    assert not supports(torch.bfloat16, 65) and not supports(torch.float32, 64)
