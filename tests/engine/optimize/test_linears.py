"""Packed linear layers: right, and for every row the same bits whatever rows come along."""

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.kernels.library import load_kernels
from antiphon.engine.optimize.linears import (
    CompiledInt8Linear,
    FbgemmInt8Linear,
    MergedLinear,
    MergedLinearSlice,
    OneDnnLinear,
    PackedLinear,
    UnusableKernelError,
    build_int8_linear,
)

torch.set_num_threads(1)

SHAPES = [(16, 8), (37, 50), (256, 256), (100, 1024), (96, 1025), (64, 3072)]
COUNTS = [1, 2, 3, 7, 8, 16, 17, 33, 64, 65, 100]


def compiled(weight: Any, bias: Any) -> CompiledInt8Linear:
    found = load_kernels()
    if found is None or not found.supports_int8_linear(torch.ones(1, 1)):
        pytest.skip("no compiled kernel for int8")
    return CompiledInt8Linear(weight, bias, found)


KINDS = [OneDnnLinear, FbgemmInt8Linear, compiled]


def weights(outputs: int, inputs: int, seed: int = 0) -> tuple[Any, Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(shape, generator=generator) for shape in ((outputs, inputs), (outputs,), (100, inputs)))


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize(("kind", "most"), [(OneDnnLinear, 1e-6), (FbgemmInt8Linear, 0.02), (compiled, 0.02)])
def test_rows_are_right_and_bit_identical_alone_and_among_others(
    kind: Any, most: float, outputs: int, inputs: int
) -> None:
    weight, bias, x = weights(outputs, inputs)
    for offset in (None, bias):
        kernel = kind(weight, offset)
        truth = torch.nn.functional.linear(x.double(), weight.double(), None if offset is None else offset.double())
        together = kernel(x)
        assert (together - truth).norm() / truth.norm() < most
        alone = torch.cat([kernel(row[None]) for row in x])
        assert torch.equal(alone, together)
        for count in COUNTS:
            assert torch.equal(kernel(x[-count:]), together[-count:])
            assert torch.equal(kernel(x[None, :count])[0], together[:count])


@pytest.mark.parametrize("kind", [FbgemmInt8Linear, compiled])
def test_one_large_row_does_not_make_the_others_coarse(kind: Any) -> None:
    weight, _, x = weights(64, 128)
    kernel = kind(weight, None)
    quiet = kernel(x)
    x[3] *= 1000
    loud = kernel(x)
    others = [row for row in range(100) if row != 3]
    assert torch.equal(loud[others], quiet[others])


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_stay_zeros_and_what_is_no_number_stays_none(kind: Any) -> None:
    weight, bias, x = weights(20, 64)
    kernel = kind(weight, bias)
    x[0], x[1, 5], x[2, 7], x[3] = 0.0, float("nan"), float("inf"), 1e-42
    y = kernel(x)
    assert torch.equal(y[0], bias)
    assert not y[1].isfinite().any() and not y[2].isfinite().any()
    assert y[3:].isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_of_zeros_can_be_packed(kind: Any) -> None:
    assert not kind(torch.zeros(4, 8), None)(torch.randn(3, 8)).any()


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_give_no_rows(kind: Any) -> None:
    weight, bias, _ = weights(16, 8)
    assert PackedLinear(kind(weight, bias), 8, 16)(torch.empty(1, 0, 8)).shape == (1, 0, 16)


def test_siblings_compute_once_for_one_input_and_hold_nothing_afterwards() -> None:
    weight, bias, x = weights(24, 8)
    calls = []

    def kernel(x: Any) -> Any:
        calls.append(len(x))
        return torch.nn.functional.linear(x, weight, bias)

    group = MergedLinear(PackedLinear(kernel, 8, 24), [8, 16])
    first, second = MergedLinearSlice(group, 0, 8, 8), MergedLinearSlice(group, 1, 8, 16)
    for rows in (x[:3], x[:5]):
        truth = torch.nn.functional.linear(rows, weight, bias)
        assert torch.equal(second(rows), truth[:, 8:]) and torch.equal(first(rows), truth[:, :8])
        assert group._input is None
    assert calls == [3, 5]
    first(x[:2])
    after = first(x[:4])  # the pass before broke off
    assert torch.allclose(after, torch.nn.functional.linear(x[:4], weight[:8], bias[:8]), atol=1e-5)


def test_a_kernel_that_computes_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, _, _ = weights(16, 8)
    monkeypatch.setattr(FbgemmInt8Linear, "__call__", lambda self, x: torch.zeros(len(x), 16))
    with pytest.raises(UnusableKernelError, match="off by"):
        FbgemmInt8Linear(weight, None)
    monkeypatch.setattr(OneDnnLinear, "__call__", lambda self, x: nn.functional.linear(x, weight) + 1e-7 * len(x))
    with pytest.raises(UnusableKernelError, match="depends on the other rows"):
        OneDnnLinear(weight, None)


def test_int8_is_compiled_where_there_are_kernels_and_torchs_where_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    weight, bias, x = weights(16, 8)
    assert isinstance(build_int8_linear(weight, bias, None), FbgemmInt8Linear)
    made = compiled(weight, bias)
    assert isinstance(build_int8_linear(weight, bias, load_kernels()), CompiledInt8Linear)
    assert torch.allclose(made(x), FbgemmInt8Linear(weight, bias)(x), rtol=0.05, atol=0.1)
    monkeypatch.setattr(Kernels, "supports_int8_linear", lambda self, weight: False)
    assert isinstance(build_int8_linear(weight, bias, load_kernels()), FbgemmInt8Linear)
    assert not caplog.messages
    monkeypatch.undo()
    monkeypatch.setattr(CompiledInt8Linear, "__call__", lambda self, x: torch.zeros(len(x), 16))
    assert isinstance(build_int8_linear(weight, bias, load_kernels()), FbgemmInt8Linear)
    assert "off by" in caplog.text
