"""Compares a packed linear layer with its weight, before the layer replaces a model's own."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from antiphon.engine.kernels.int4_layout import PackedInt4Weight, unpack_int4_outputs
from antiphon.engine.kernels.weight_rows import WeightRows

LINEAR_PROBE_ROW_COUNTS = (1, 2, 5, 16)
"""Numbers of rows whose product with a packed weight must have the same bits as in a batch of PROBE_BATCH_ROWS."""

PROBE_BATCH_ROWS, LARGE_PROBE_BATCH_ROWS = 33, 17
"""Rows of the batch on which a packed weight is verified, and a large one, whose products take much memory."""

LARGE_OUTPUTS = 1 << 16

KNOWN_SHAPE_ROW_COUNTS = (1,)
"""The same for a weight whose kernel has been verified with another weight of the same shape."""

SAMPLE_RUNS, SAMPLE_RUN_OUTPUTS = 8, 32
"""Runs of consecutive outputs on which a large weight is verified: from the first output to the last."""

MIN_NORM = torch.finfo(torch.float32).tiny


class UnusableKernelError(Exception):
    """The kernel is missing on this machine, or its results differ."""


def verify_linear(
    kernel: Callable[[Tensor], Tensor],
    weight: Tensor | WeightRows | PackedInt4Weight,
    bias: Tensor | None,
    max_error: float,
    row_counts: tuple[int, ...] = LINEAR_PROBE_ROW_COUNTS,
) -> None:
    """Raises `UnusableKernelError` unless the layer computes a product with this weight.

    A row must have the same bits in batches of all `row_counts` sizes.

    The product of a large weight is compared in a sample of its outputs: computing all of them in fp32 would take most
    of the time of packing.
    """
    if isinstance(weight, PackedInt4Weight):
        outputs, inputs = weight.outputs, weight.inputs
        sample = choose_outputs(outputs)
        expected_weight = unpack_int4_outputs(weight, sample)
    else:
        rows = WeightRows.join([weight]) if isinstance(weight, Tensor) else weight
        outputs, inputs = rows.shape
        sample = choose_outputs(outputs)
        expected_weight = rows.take(sample)
    x = probe_rows(PROBE_BATCH_ROWS if outputs < LARGE_OUTPUTS else LARGE_PROBE_BATCH_ROWS, inputs)
    expected = functional.linear(x, expected_weight, None if bias is None else bias[sample])
    verify_kernel(kernel, x, expected, max_error, sample, row_counts)


def choose_outputs(count: int) -> Tensor:
    """Returns the outputs to verify of a weight with `count` outputs: all of a small one, a sample of a large one."""
    if count <= SAMPLE_RUNS * SAMPLE_RUN_OUTPUTS:
        return torch.arange(count)
    firsts = torch.linspace(0, count - SAMPLE_RUN_OUTPUTS, SAMPLE_RUNS).long()
    return (firsts[:, None] + torch.arange(SAMPLE_RUN_OUTPUTS)).flatten()


def probe_rows(count: int, inputs: int) -> Tensor:
    """Returns fixed random rows to verify a weight (outputs, inputs) with."""
    return torch.randn(count, inputs, generator=torch.Generator().manual_seed(count))


def verify_kernel(
    kernel: Callable[[Tensor], Tensor],
    x: Tensor,
    expected: Tensor,
    max_error: float,
    sample: Tensor | slice = slice(None),
    row_counts: tuple[int, ...] = LINEAR_PROBE_ROW_COUNTS,
) -> None:
    """Raises `UnusableKernelError` unless the error is at most `max_error` and a row's bits are fixed.

    `expected` holds the outputs of the `sample`. A row must have the same bits in batches of all `row_counts`
    sizes.
    """
    batched = kernel(x)
    error = float((batched[:, sample] - expected).norm() / expected.norm().clamp_min(MIN_NORM))
    if not error <= max_error:
        raise UnusableKernelError(f"its relative error is {error:.2g}")
    if not all(torch.equal(kernel(x[:count]), batched[:count]) for count in row_counts):
        raise UnusableKernelError("a row's result depends on the other rows")
