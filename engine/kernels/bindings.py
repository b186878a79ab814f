"""Python bindings of the compiled CPU kernels, for torch tensors. `engine/kernels/library.py` loads the library.

The kernels compute in fp32; without them, torch computes the same in more steps. A row is the last dimension of a
tensor. A kernel computes each row in a fixed order, so its bits do not depend on the batch or on the number of threads.
"""

import ctypes
from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from antiphon.engine.kernels.expert_layer import ExpertLayerKernel
from antiphon.engine.kernels.half_linear import HalfLinearKernel
from antiphon.engine.kernels.lora import LoraKernel
from antiphon.engine.kernels.native_calls import count_threads, int64_fields, load_function, read_constant
from antiphon.engine.kernels.quantized_linear import QuantizedLinearKernels
from antiphon.engine.kernels.row_major_linear import RowMajorLinearKernel

MAX_QUERY_GROUPS = 64
"""Largest number of query heads per key head; `MAX_ITEM_ROWS` in `attention.c`."""

MAX_HEAD_DIM = 512
"""Largest size of a key or value; `attention.c` has a stack buffer of this size."""

SOFTMAX_BLOCK = 128
"""Scores per block in `Kernels.block_softmax_sums`; the same constant as in `rowwise.c`."""

SPAN_FIELDS = 9
"""Fields of `struct span` in `kernels.h`: a span table is a flat list of this many integers per sequence."""


class RowArgs(ctypes.Structure):
    """`struct row_args` of `kernels.h`."""

    _fields_ = int64_fields("x count size inner outer_stride inner_stride out factors sines threads")


class AttentionArgs(ctypes.Structure):
    """`struct attention_args` of `kernels.h`."""

    _fields_ = int64_fields("""
        num_spans kv_heads groups dim value_dim threads fp16_cache window
        query query_token_stride query_head_stride key key_token_stride key_head_stride
        value value_token_stride value_head_stride sinks out spans softcap
    """)


class DecoderLayerArgs(ctypes.Structure):
    """`struct decoder_layer_args` of `decoder_layer.c`; each weight is a `struct packed_weight`."""

    _fields_ = int64_fields("""
        hidden heads kv_heads dim inner input_norm post_norm q_norm k_norm
        qkv_weights qkv_scales qkv_zeros qkv_group_scales qkv_bias qkv_is_fp16
        o_proj_weights o_proj_scales o_proj_zeros o_proj_group_scales o_proj_bias o_proj_is_fp16
        gate_up_weights gate_up_scales gate_up_zeros gate_up_group_scales gate_up_bias gate_up_is_fp16
        down_weights down_scales down_zeros down_group_scales down_bias down_is_fp16
        constants count threads x out cosines sines num_spans spans fp16_cache window workspace
    """)


class Kernels(QuantizedLinearKernels):
    """Functions of a loaded library. Raises `AttributeError` if the library lacks one of them.

    `verified_shapes` are the layers whose rows were found to have the same bits in any batch: the form of the weight,
    its outputs and inputs, and whether there is no bias. A kernel computes weights of one shape in one way.

    `supports_fp16_cache` tells whether `attend` can read KV caches in fp16. `decoder_layer` runs
    a `DecoderLayerArgs`; `decoder_layer_workspace` returns its workspace per token, in fp32 elements.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        super().__init__(library)
        self.lora = LoraKernel(library)
        self.half = HalfLinearKernel(library)
        self.row_major = RowMajorLinearKernel(library)
        self.verified_shapes: set[tuple[str, int, int, bool]] = set()
        self.supports_fp16_cache = bool(read_constant(library, "has_fp16"))
        self._rms_norm = load_function(library, "rms_norm", RowArgs, ctypes.c_float)
        self._silu_mul = load_function(library, "silu_mul", RowArgs)
        self._rope = load_function(library, "rope", RowArgs)
        self._block_softmax = load_function(library, "block_softmax", RowArgs)
        self.expert_layer = ExpertLayerKernel(library)
        self._attend = load_function(library, "attend", AttentionArgs, ctypes.c_float)
        self.decoder_layer = load_function(library, "decoder_layer", DecoderLayerArgs)
        self.decoder_layer_workspace = load_function(library, "decoder_layer_workspace", DecoderLayerArgs)
        self.decoder_layer_workspace.restype = ctypes.c_int64

    def is_row_aligned(self, size: int) -> bool:
        """Tells whether the row-wise kernels accept rows of this length."""
        return size % self.lanes == 0

    def explain_unsupported_attention(
        self, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None
    ) -> str | None:
        """Returns the reason why `attend` does not accept these tensors; None if it does."""
        if not query.dtype is key.dtype is value.dtype is torch.float32:
            return f"attention is computed in {str(query.dtype).removeprefix('torch.')}"
        for size in (query.shape[3], value.shape[3]):
            if size > MAX_HEAD_DIM or not self.is_row_aligned(size):
                return (
                    f"heads of {size} elements are not computed by the kernels, which need a multiple of {self.lanes} "
                    f"up to {MAX_HEAD_DIM}"
                )
        if query.shape[1] // key.shape[1] > MAX_QUERY_GROUPS:
            return f"more than {MAX_QUERY_GROUPS} query heads share a key"
        is_contiguous = query.stride(3) == key.stride(3) == value.stride(3) == 1
        if sinks is not None:
            is_contiguous &= sinks.dtype is torch.float32 and sinks.is_contiguous()
        return None if is_contiguous else "the layout of the model's heads is not one that the kernels read"

    def attend(  # noqa: PLR0913  each is a property of the layer
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        span_table: Sequence[int],
        scale: float,
        *,
        window: int | None = None,
        sinks: Tensor | None = None,
        softcap: float | None = None,
        fp16_cache: bool = False,
    ) -> Tensor:
        """Attention of queries (1, heads, n, dim), each over the KV cache of its sequence → (1, n, heads, value_dim).

        The kernel first stores `key` and `value` (1, kv_heads, n, …) in the caches. `span_table` holds
        `SPAN_FIELDS` integers per sequence: its first token in the batch, its number of tokens, the addresses of
        its keys and its values (kv_heads, capacity, …), their strides from head to head, the number of keys including
        the new ones, an output field, and the address of the number of keys that each token sees, or 0. `sinks` holds
        one score per head; `window` limits the visible keys, `softcap` the scores.
        """
        table, limit = array("q", span_table), ctypes.c_float(softcap or 0)
        kv_heads = key.shape[1]
        out = query.new_empty((1, query.shape[2], query.shape[1], value.shape[3]))
        args = AttentionArgs(
            len(table) // SPAN_FIELDS,
            kv_heads,
            query.shape[1] // kv_heads,
            query.shape[3],
            value.shape[3],
            count_threads(),
            fp16_cache,
            window or 0,
            *_address_and_strides(query),
            *_address_and_strides(key),
            *_address_and_strides(value),
            0 if sinks is None else sinks.data_ptr(),
            out.data_ptr(),
            table.buffer_info()[0],
            ctypes.addressof(limit) if softcap else 0,
        )
        self._attend(args, scale)
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Returns x / √(mean(x²) + eps) · weight for each row x."""
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        x, args = _row_args(x, out, weight)
        self._rms_norm(args, eps)
        return out

    def silu_mul(self, x: Tensor) -> Tensor:
        """Returns `silu(x[..., :n]) * x[..., n:]` for a contiguous x (…, 2n)."""
        *shape, double = x.shape
        size = double // 2
        out = x.new_empty((*shape, size))
        self._silu_mul(
            RowArgs(
                x=x.data_ptr(),
                count=x.numel() // double,
                size=size,
                inner=1,
                outer_stride=double,
                out=out.data_ptr(),
                threads=count_threads(),
            )
        )
        return out

    def supports_rotary(self, x: Tensor, cosines: Tensor, sines: Tensor) -> bool:
        """Tells whether `apply_rotary` accepts tensors of these types and shapes."""
        if (
            x.dim() != 4
            or len(x) != 1
            or x.shape[3] % 2
            or x.stride(3) != 1
            or not self.is_row_aligned(x.shape[3] // 2)
        ):
            return False
        fp32 = x.dtype is cosines.dtype is sines.dtype is torch.float32 and x.is_cpu
        shapes_match = cosines.shape == sines.shape == (1, *x.shape[2:])
        return fp32 and shapes_match and cosines.is_contiguous() and sines.is_contiguous()

    def apply_rotary(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """Rotary embedding of x (1, heads, n, dim) by contiguous tables (1, n, dim) → the shape of x.

        As in transformers, the two halves of a row are rotated against each other.
        """
        _, heads, length, size = x.shape
        out = x.new_empty((1, length, heads, size))
        _, inner_stride, outer_stride, _ = x.stride()
        self._rope(
            RowArgs(
                x=x.data_ptr(),
                count=heads * length,
                size=size,
                inner=heads,
                outer_stride=outer_stride,
                inner_stride=inner_stride,
                out=out.data_ptr(),
                factors=cosines.data_ptr(),
                sines=sines.data_ptr(),
                threads=count_threads(),
            )
        )
        return out.transpose(1, 2)

    def block_softmax_sums(self, x: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
        """Sums of e^((x - max) · factor) over blocks of `SOFTMAX_BLOCK` scores, and the maxima.

        x (rows, n), factors (rows) → (rows, blocks), (rows, 1). The maximum of a row that contains NaN is NaN.
        """
        count, size = x.shape
        out = torch.empty(count, -(-size // SOFTMAX_BLOCK) + 1)
        x, args = _row_args(x, out, factors)
        self._block_softmax(args)
        return out[:, :-1], out[:, -1:]


def _address_and_strides(x: Tensor) -> tuple[int, int, int]:
    """Returns the address of x (1, heads, n, dim), and its strides from token to token and from head to head."""
    _, head_stride, token_stride, _ = x.stride()
    return x.data_ptr(), token_stride, head_stride


def _row_args(x: Tensor, out: Tensor, factors: Tensor) -> tuple[Tensor, RowArgs]:
    """Returns the tensor that a row-wise kernel over x reads, and the arguments, which hold its address.

    The caller must keep the tensor until the kernel returns. It is x itself, or a contiguous copy if two strides are
    not enough to step from row to row.
    """
    size = x.shape[-1]
    inner, outer_stride, inner_stride = 1, size, 0
    if not x.is_contiguous():
        if x.dim() == 4 and len(x) == 1 and x.stride(3) == 1:
            inner, (_, outer_stride, inner_stride, _) = x.shape[2], x.stride()
        else:
            x = x.contiguous()
    return x, RowArgs(
        x.data_ptr(),
        x.numel() // size,
        size,
        inner,
        outer_stride,
        inner_stride,
        out.data_ptr(),
        factors.data_ptr(),
        0,  # sines
        count_threads(),
    )
