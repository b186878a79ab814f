"""Verification of packed layers: the sample of outputs, and layers that compute something else."""

from typing import Any

import pytest
import torch
from torch import Tensor

from antiphon.engine.kernels.int4_layout import pack_int4_weight, unpack_int4_outputs, unpack_int4_weight
from antiphon.engine.kernels.weight_rows import WeightRows
from antiphon.engine.optimize.linears import build_int4_linear
from antiphon.engine.optimize.verification import (
    KNOWN_SHAPE_ROW_COUNTS,
    LINEAR_PROBE_ROW_COUNTS,
    PROBE_BATCH_ROWS,
    UnusableKernelError,
    choose_outputs,
    verify_linear,
)
from tests.engine.kernel_builds import require_kernels


def make_weight(outputs: int, inputs: int) -> Tensor:
    return torch.randn((outputs, inputs), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("count", [1, 255, 256, 257, 1000, 151_936])
def test_sample_has_the_first_and_the_last_output(count: int) -> None:
    outputs = choose_outputs(count)
    assert outputs[0] == 0 and outputs[-1] == count - 1
    assert len(outputs) == min(count, 256) and bool((outputs.diff() > 0).all())


def test_rows_of_several_tensors_are_taken_in_order() -> None:
    weight, outputs = make_weight(1000, 8), choose_outputs(1000)
    rows = WeightRows.join([weight[:100], weight[100:110], weight[110:]])
    assert torch.equal(rows.take(outputs), weight[outputs])


@pytest.mark.parametrize("lanes", [8, 16])
def test_outputs_of_a_packed_weight_are_unpacked_alone(lanes: int) -> None:
    packed, outputs = pack_int4_weight(make_weight(700, 130), lanes), choose_outputs(700)
    assert torch.equal(unpack_int4_outputs(packed, outputs), unpack_int4_weight(packed)[outputs])


@pytest.mark.parametrize("outputs", [40, 1000])
def test_layer_with_another_weight_or_bias_is_refused(outputs: int) -> None:
    weight, bias = make_weight(outputs, 16), make_weight(1, outputs)[0]
    verify_linear(lambda x: (x[:, None] * weight).sum(-1) + bias, weight, bias, 1e-3)
    with pytest.raises(UnusableKernelError, match="relative error is"):
        verify_linear(lambda x: torch.nn.functional.linear(x, weight.roll(1, 0), bias), weight, bias, 1e-3)
    with pytest.raises(UnusableKernelError, match="relative error is"):
        verify_linear(lambda x: torch.nn.functional.linear(x, weight), weight, bias, 1e-3)


def test_rows_that_depend_on_the_batch_are_refused_also_for_a_known_shape() -> None:
    weight = make_weight(40, 16)

    def add_in_another_order_alone(x: Tensor) -> Tensor:
        return (x[:, None] * weight).flip(-1).cumsum(-1)[..., -1] if len(x) == 1 else (x[:, None] * weight).sum(-1)

    for row_counts in (LINEAR_PROBE_ROW_COUNTS, KNOWN_SHAPE_ROW_COUNTS):
        with pytest.raises(UnusableKernelError, match="depends on the other rows"):
            verify_linear(add_in_another_order_alone, weight, None, 1e-3, row_counts)


def test_weights_of_a_known_shape_are_multiplied_by_fewer_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels, counts = require_kernels(), []
    monkeypatch.setattr(kernels, "verified_shapes", set())
    multiply = kernels.multiply

    def count_rows(x: Tensor, *args: Any) -> Tensor:
        counts.append(len(x))
        return multiply(x, *args)

    monkeypatch.setattr(kernels, "multiply", count_rows)
    for bias in (None, None, torch.ones(48)):
        build_int4_linear(make_weight(48, 64), bias, kernels)
    batch = PROBE_BATCH_ROWS
    assert counts == [batch, *LINEAR_PROBE_ROW_COUNTS, batch, *KNOWN_SHAPE_ROW_COUNTS, batch, *LINEAR_PROBE_ROW_COUNTS]
