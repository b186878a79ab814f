"""Compiled products in int8: the same whole numbers by whatever instructions, and no row knows another."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor
from torch.nn import functional

from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.kernels.compiler import CompilationError, load_library
from antiphon.engine.kernels.int8_layout import OUTPUTS_PER_CHUNK, pack_int8_weight
from antiphon.engine.kernels.library import SOURCES, verify_kernels

LESS = [
    "",
    "-mno-amx-int8",
    "-mno-amx-int8 -mno-avx512vnni",
    "-mno-amx-int8 -mno-avx512f",
    "-mno-amx-int8 -mno-avx512f -mno-avxvnni",
]
"""What is taken from the CPU, step by step; where it never had it, two of them are the same."""

NAN, INF = float("nan"), float("inf")


def made(less: str, folder: Path) -> Kernels:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.setenv("CC", f"cc {less}")
        try:
            found = verify_kernels(load_library(*SOURCES))
        except CompilationError as failure:
            pytest.skip(f"not compiled: {failure}")
    if not found.supports_int8_linear(torch.ones(1, 1)):
        pytest.skip("there is no such kernel for this CPU")
    return found


@pytest.fixture(scope="module", params=LESS)
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return made(request.param, tmp_path_factory.mktemp("compiled"))


def table(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def rounded(x: Tensor, most: int) -> Tensor:
    """What 8 bits keep of each row."""
    worth = x.abs().amax(-1, keepdim=True) / most
    return (x / worth).round() * worth


@pytest.mark.parametrize(
    ("outputs", "inputs"), [(1, 1), (16, 8), (37, 50), (33, 64), (256, 256), (100, 1024), (96, 1025), (64, 3072)]
)
@pytest.mark.parametrize("threads", [1, 2])
def test_products_are_those_of_rounded_numbers_and_know_no_neighbours(
    compiled: Kernels, outputs: int, inputs: int, threads: int
) -> None:
    weight, x, bias = table(outputs, inputs), table(100, inputs, seed=2), table(outputs, seed=3)
    matrix = compiled.pack_int8_weight(weight)
    truth = functional.linear(rounded(x, compiled.activation_levels).double(), rounded(weight, 127).double())
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = compiled.int8_linear(x, matrix, bias)
        assert ((together - truth - bias).norm() / truth.norm()) < 2e-3  # ties may be rounded the other way
        assert torch.allclose(compiled.int8_linear(x, matrix) + bias, together, rtol=1e-5, atol=1e-5)
        for count in (1, 2, 3, 5, 12, 13, 16, 17, 31, 32, 33, 49):
            for first in (0, 7, 50):
                assert torch.equal(
                    compiled.int8_linear(x[first : first + count], matrix, bias), together[first : first + count]
                )
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("count", [0, 1, 5, 40])
def test_a_gate_before_it_changes_nothing_but_its_input(compiled: Kernels, count: int) -> None:
    x, matrix, bias = table(2, count, 160), compiled.pack_int8_weight(table(40, 80, seed=2)), table(40, seed=3)
    truth = compiled.int8_linear(compiled.silu_mul(x), matrix, bias)
    assert torch.equal(compiled.int8_linear(x, matrix, bias, gated=True), truth)


def test_the_largest_sums_there_are(compiled: Kernels) -> None:
    """Pairs of products fill 16 bits, and all of them 32: nothing is cut off."""
    signs = table(3, 65536).sign()
    matrix = compiled.pack_int8_weight(signs)
    assert torch.equal(compiled.int8_linear(signs, matrix), functional.linear(signs, signs))
    assert torch.equal(compiled.int8_linear(-signs[:1], matrix), -functional.linear(signs[:1], signs))


def test_what_is_no_number_stays_none_and_zeros_give_the_bias(compiled: Kernels) -> None:
    weight, bias, x = table(20, 64), table(20, seed=2), table(40, 64, seed=3)
    matrix = compiled.pack_int8_weight(weight)
    sound = compiled.int8_linear(x, matrix, bias)
    x[0], x[1, 5], x[2, 7], x[3], x[20, 63] = 0.0, NAN, INF, 1e-42, -INF
    for first in (0, 1, 2, 3, 20):
        alone = compiled.int8_linear(x[first : first + 1], matrix, bias)
        assert torch.equal(alone, bias[None]) if first == 0 else alone.isfinite().all() == (first == 3)
    y = compiled.int8_linear(x, matrix, bias)
    assert torch.equal(y[0], bias) and y[3].isfinite().all()
    assert not y[[1, 2, 20]].isfinite().any()
    assert torch.equal(y[4:20], sound[4:20]) and torch.equal(y[21:], sound[21:])


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
def test_rows_may_lie_anyhow(compiled: Kernels, view: Any) -> None:
    x, matrix = view(table(1920)), compiled.pack_int8_weight(table(40, 64, seed=2))
    product = compiled.int8_linear(x, matrix)
    assert product.shape == (*x.shape[:-1], 40)
    assert torch.equal(product, compiled.int8_linear(x.clone(memory_format=torch.contiguous_format), matrix))


def test_other_instructions_give_the_same_bits(tmp_path: Path) -> None:
    x, weight, bias = table(70, 200), table(90, 200, seed=2), table(90, seed=3)
    results = {}
    for less in LESS:
        found = made(less, tmp_path)
        result = found.int8_linear(x, found.pack_int8_weight(weight), bias)
        assert torch.equal(result, results.setdefault(found.activation_levels, result))
    assert results.keys() <= {63, 127}


def test_a_matrix_of_many_outputs_is_laid_out_as_in_one_piece() -> None:
    weight = table(2 * OUTPUTS_PER_CHUNK + 5, 12)
    whole = pack_int8_weight(weight, 8, 128)
    for first in (0, OUTPUTS_PER_CHUNK, 2 * OUTPUTS_PER_CHUNK):
        part = pack_int8_weight(weight[first : first + 5], 8, 128)
        for one, two in ((whole.scales, part.scales), (whole.zeros, part.zeros)):
            assert torch.equal(one[first : first + 5], two[:5])
        assert torch.equal(whole.weights[first // 8, :, :5], part.weights[0, :, :5])
    assert not whole.weights[-1].any() and len(whole.scales) % 16 == 0
