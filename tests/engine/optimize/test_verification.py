"""Verification of packed layers: the sample of outputs, and layers that compute something else."""

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor

from antiphon.engine.kernels.int4_layout import pack_int4_weight, unpack_int4_outputs, unpack_int4_weight
from antiphon.engine.kernels.weight_rows import WeightRows
from antiphon.engine.optimize.verification import UnusableKernelError, choose_outputs, verify_linear


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
