"""Python binding of `row_major_gemm.c`: products with 16-bit weights that lie row by row, as in a file."""

import ctypes

import torch
from torch import Tensor

from antiphon.engine.kernels.half_linear import HALF_DTYPES
from antiphon.engine.kernels.native_calls import count_threads, int64_fields, load_function, read_constant


class RowMajorArgs(ctypes.Structure):
    """`struct row_major_args` of `row_major_gemm.c`."""

    _fields_ = int64_fields("x count inputs weights weight_stride outputs out out_stride is_fp16 threads")


class RowMajorLinearKernel:
    """The product of a loaded library. Raises `AttributeError` if the library lacks it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._lanes = read_constant(library, "lanes")
        self._multiply = load_function(library, "row_major_linear", RowMajorArgs)

    def supports(self, dtype: torch.dtype, inputs: int) -> bool:
        """Tells whether `multiply` accepts weights of this type with rows of this length."""
        return dtype in HALF_DTYPES and inputs % self._lanes == 0

    def multiply(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """Writes the product of contiguous rows x (…, inputs) and a weight (outputs, inputs) to out (…, outputs).

        x and out are fp32. The elements of a row of `weight` and `out` are contiguous, and the rows of `out`
        equally far apart: `out` may be some of the outputs of a larger result.
        """
        args = RowMajorArgs(
            x.data_ptr(),
            x.numel() // x.shape[-1],
            x.shape[-1],
            weight.data_ptr(),
            weight.stride(0),
            len(weight),
            out.data_ptr(),
            out.stride(-2) if out.dim() > 1 else 0,
            weight.dtype == torch.float16,
            count_threads(),
        )
        self._multiply(args)
