"""Packed linear layers: accurate, and bit-identical for every row in any batch."""

from typing import Any

import pytest
import torch
from torch import nn

from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.kernels.half_linear import HALF_DTYPES
from antiphon.engine.kernels.library import load_kernels
from antiphon.engine.kernels.weight_rows import WeightRows
from antiphon.engine.optimize.linears import (
    CompiledLinear,
    FbgemmInt8Linear,
    MergedLinear,
    MergedLinearSlice,
    OneDnnLinear,
    PackedLinear,
    build_exact_linear,
    build_int4_linear,
    build_int8_linear,
)
from antiphon.engine.optimize.torch_int4_linear import TorchInt4Linear
from antiphon.engine.optimize.verification import UnusableKernelError
from tests.engine.kernel_builds import require_kernels

torch.set_num_threads(1)

WEIGHT_SHAPES = [(16, 8), (37, 50), (256, 256), (100, 1024), (96, 1025), (64, 3072)]
ROW_COUNTS = [1, 2, 3, 7, 8, 16, 17, 33, 64, 65, 100]


def build_compiled_linear(weight: Any, bias: Any) -> CompiledLinear:
    kernels = require_kernels()
    return CompiledLinear(kernels.pack_int8_weight(weight), bias, kernels)


def build_compiled_int4_linear(weight: Any, bias: Any) -> CompiledLinear:
    kernels = require_kernels()
    return CompiledLinear(kernels.pack_int4_weight(weight), bias, kernels)


INT4_KERNELS = [build_compiled_int4_linear, TorchInt4Linear]
LINEAR_KERNELS = [OneDnnLinear, FbgemmInt8Linear, build_compiled_linear, *INT4_KERNELS]


def make_tensors(outputs: int, inputs: int, seed: int = 0) -> tuple[Any, Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(shape, generator=generator) for shape in ((outputs, inputs), (outputs,), (100, inputs)))


@pytest.mark.parametrize(("outputs", "inputs"), WEIGHT_SHAPES)
@pytest.mark.parametrize(
    ("kernel_type", "max_error"),
    [
        (OneDnnLinear, 1e-6),
        (FbgemmInt8Linear, 0.02),
        (build_compiled_linear, 0.02),
        *((kernel_type, 0.11) for kernel_type in INT4_KERNELS),
    ],
)
def test_rows_are_accurate_and_bit_identical_in_any_batch(
    kernel_type: Any, max_error: float, outputs: int, inputs: int
) -> None:
    weight, bias, x = make_tensors(outputs, inputs)
    for layer_bias in (None, bias):
        kernel = kernel_type(weight, layer_bias)
        expected = torch.nn.functional.linear(
            x.double(), weight.double(), None if layer_bias is None else layer_bias.double()
        )
        batch_outputs = kernel(x)
        assert (batch_outputs - expected).norm() / expected.norm() < max_error
        row_outputs = torch.cat([kernel(row[None]) for row in x])
        assert torch.equal(row_outputs, batch_outputs)
        for count in ROW_COUNTS:
            assert torch.equal(kernel(x[-count:]), batch_outputs[-count:])
            assert torch.equal(kernel(x[None, :count])[0], batch_outputs[:count])


@pytest.mark.parametrize("kernel_type", LINEAR_KERNELS[1:])
def test_large_row_does_not_change_the_precision_of_other_rows(kernel_type: Any) -> None:
    weight, _, x = make_tensors(64, 128)
    kernel = kernel_type(weight, None)
    before = kernel(x)
    x[3] *= 1000
    after = kernel(x)
    others = [row for row in range(100) if row != 3]
    assert torch.equal(after[others], before[others])


@pytest.mark.parametrize("kernel_type", LINEAR_KERNELS)
def test_zero_rows_give_the_bias_and_non_finite_rows_stay_non_finite(kernel_type: Any) -> None:
    weight, bias, x = make_tensors(20, 64)
    kernel = kernel_type(weight, bias)
    x[0], x[1, 5], x[2, 7], x[3] = 0.0, float("nan"), float("inf"), 1e-42
    y = kernel(x)
    assert torch.equal(y[0], bias)
    assert not y[1].isfinite().any() and not y[2].isfinite().any()
    assert y[3:].isfinite().all()


@pytest.mark.parametrize("kernel_type", LINEAR_KERNELS)
def test_zero_weight_can_be_packed(kernel_type: Any) -> None:
    assert not kernel_type(torch.zeros(4, 8), None)(torch.randn(3, 8)).any()


@pytest.mark.parametrize("kernel_type", LINEAR_KERNELS)
def test_empty_input_gives_empty_output(kernel_type: Any) -> None:
    weight, bias, _ = make_tensors(16, 8)
    assert PackedLinear(kernel_type(weight, bias), 8, 16)(torch.empty(1, 0, 8)).shape == (1, 0, 16)


def test_merged_slices_compute_once_and_keep_no_input() -> None:
    weight, bias, x = make_tensors(24, 8)
    calls = []

    def kernel(x: Any) -> Any:
        calls.append(len(x))
        return torch.nn.functional.linear(x, weight, bias)

    group = MergedLinear(PackedLinear(kernel, 8, 24), [8, 16])
    first, second = MergedLinearSlice(group, 0, 8, 8), MergedLinearSlice(group, 1, 8, 16)
    for rows in (x[:3], x[:5]):
        expected = torch.nn.functional.linear(rows, weight, bias)
        assert torch.equal(second(rows), expected[:, 8:]) and torch.equal(first(rows), expected[:, :8])
        assert group._input is None
    assert calls == [3, 5]
    first(x[:2])
    output = first(x[:4])  # the previous pass was interrupted
    assert torch.allclose(output, torch.nn.functional.linear(x[:4], weight[:8], bias[:8]), atol=1e-5)


def test_kernel_with_wrong_results_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, _, _ = make_tensors(16, 8)
    monkeypatch.setattr(FbgemmInt8Linear, "__call__", lambda self, x: torch.zeros(len(x), 16))
    with pytest.raises(UnusableKernelError, match="relative error is"):
        FbgemmInt8Linear(weight, None)
    monkeypatch.setattr(OneDnnLinear, "__call__", lambda self, x: nn.functional.linear(x, weight) + 1e-7 * len(x))
    with pytest.raises(UnusableKernelError, match="depends on the other rows"):
        OneDnnLinear(weight, None)


def test_int8_linear_uses_compiled_kernels_or_falls_back_to_fbgemm(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    weight, bias, x = make_tensors(16, 8)
    assert isinstance(build_int8_linear(weight, bias, None), FbgemmInt8Linear)
    compiled_linear = build_compiled_linear(weight, bias)
    assert isinstance(build_int8_linear(weight, bias, load_kernels()), CompiledLinear)
    assert torch.allclose(compiled_linear(x), FbgemmInt8Linear(weight, bias)(x), rtol=0.05, atol=0.1)
    monkeypatch.setattr(Kernels, "supports_weight", lambda self, weight: False)
    assert isinstance(build_int8_linear(weight, bias, load_kernels()), FbgemmInt8Linear)
    assert not caplog.messages
    monkeypatch.undo()
    monkeypatch.setattr(CompiledLinear, "__call__", lambda self, x: torch.zeros(len(x), 16))
    assert isinstance(build_int8_linear(weight, bias, load_kernels()), FbgemmInt8Linear)
    assert "relative error is" in caplog.text


def test_int4_linear_uses_compiled_kernels_or_falls_back_to_torch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    weight, bias, x = make_tensors(37, 150)
    compiled_linear, torch_linear = build_compiled_int4_linear(weight, bias), build_int4_linear(weight, bias, None)
    assert isinstance(torch_linear, TorchInt4Linear)
    assert isinstance(build_int4_linear(weight, bias, load_kernels()), CompiledLinear)
    assert torch.allclose(compiled_linear(x), torch_linear(x), rtol=0.02, atol=0.02)
    assert not caplog.messages
    monkeypatch.setattr(CompiledLinear, "__call__", lambda self, x: torch.zeros(len(x), 37))
    assert isinstance(build_int4_linear(weight, bias, load_kernels()), TorchInt4Linear)
    assert "relative error is" in caplog.text


@pytest.mark.parametrize("dtype", HALF_DTYPES)
def test_weights_of_16_bits_are_computed_exactly_and_stay_so_with_compiled_kernels(dtype: torch.dtype) -> None:
    weight, bias, x = make_tensors(100, 1024)
    stored = WeightRows.join([weight[:30].to(dtype), weight[30:].to(dtype)])
    expected = nn.functional.linear(x, stored.to_fp32(), bias)
    layer, fp32_layer = (build_exact_linear(stored, bias, kernels) for kernels in (require_kernels(), None))
    assert isinstance(layer, CompiledLinear) and layer.packed.weights.dtype is dtype
    assert isinstance(fp32_layer, OneDnnLinear)
    for kernel in (layer, fp32_layer):
        assert float((kernel(x) - expected).norm() / expected.norm()) < 1e-6
    assert isinstance(build_exact_linear(WeightRows.join([weight]), bias, require_kernels()), OneDnnLinear)


def test_linear_with_wrong_results_in_16_bits_is_computed_in_fp32(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stored = WeightRows.join([make_tensors(37, 50)[0].bfloat16()])
    multiply = CompiledLinear.__call__
    monkeypatch.setattr(CompiledLinear, "__call__", lambda self, x: multiply(self, x) * 1.0001)
    assert isinstance(build_exact_linear(stored, None, require_kernels()), OneDnnLinear)
    assert "the compiled 16-bit kernel is not used: its relative error is" in caplog.text
