"""Replaces decoder layers of the Llama structure by one kernel call each.

The structure is: norm, attention with rotary positions, sum, norm, gated layer, sum. In a step of a small model, the
time between the kernels exceeds the time that the hardware needs for a third of the work. A replacement is compared
with the original on the loaded model before it is used. Inputs that the kernel does not support still run through the
original layer.
"""

import logging
from array import array
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from antiphon.engine.cache.contiguous import ContiguousKVCache
from antiphon.engine.fallbacks import report_fallback
from antiphon.engine.forward.attention import AttentionMetadata, SequenceSpan
from antiphon.engine.forward.replace import relative_error, replace_modules
from antiphon.engine.kernels.bindings import (
    MAX_HEAD_DIM,
    MAX_QUERY_GROUPS,
    DecoderLayerArgs,
    Kernels,
)
from antiphon.engine.kernels.quantized_linear import GEMM_TILE_ROWS
from antiphon.engine.optimize.fuse import FusedSwiGLU
from antiphon.engine.optimize.linears import CompiledLinear, MergedLinearSlice, PackedLinear
from antiphon.engine.optimize.rms_norm import FusedRMSNorm

log = logging.getLogger(__name__)

LAYER_CHILDREN = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
ATTENTION_CHILDREN = {"q_proj", "k_proj", "v_proj", "o_proj"}
QK_NORMS = {"q_norm", "k_norm"}
"""Optional norms of queries and keys."""

DECODER_LAYER_RTOL = 1e-5
PROBE_TOKENS = 21
"""Number of tokens on which a replacement is compared with the original."""


class LayerWeights(NamedTuple):
    """Weights and sizes of a layer, by the kernel's names. `qkv` computes queries, keys and values."""

    input_norm: FusedRMSNorm
    qkv: CompiledLinear
    q_norm: FusedRMSNorm | None
    k_norm: FusedRMSNorm | None
    o_proj: CompiledLinear
    post_attention_norm: FusedRMSNorm
    gate_up: CompiledLinear
    down: CompiledLinear
    heads: int
    kv_heads: int
    head_dim: int


class Workspace:
    """Scratch memory that all layers of a model share, since they run one after the other."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0)

    def ensure_address(self, numbers: int) -> int:
        """Returns the address of a buffer of at least `numbers` fp32 elements."""
        if numbers > len(self._buffer):
            self._buffer = torch.empty(numbers)
        return self._buffer.data_ptr()


class FusedDecoderLayer(nn.Module):
    """Replaces a model's own layer, and calls it for inputs that the kernel does not support."""

    def __init__(self, original: Any, weights: LayerWeights, kernels: Kernels, workspace: Workspace) -> None:
        super().__init__()
        self.original = original
        self._kernels, self._workspace = kernels, workspace
        self._weights = weights  # owns the memory at the addresses below
        self._layer = int(original.self_attn.layer_idx)
        self._like = torch.empty((1, weights.kv_heads, 0, weights.head_dim))
        norms = (weights.input_norm, weights.post_attention_norm, weights.q_norm, weights.k_norm)
        self._constants = array(
            "f", [0.0 if norm is None else norm.eps for norm in norms] + [original.self_attn.scaling]
        )
        linears = (weights.qkv, weights.o_proj, weights.gate_up, weights.down)
        self._args = DecoderLayerArgs(
            len(weights.input_norm.weight),
            weights.heads,
            weights.kv_heads,
            weights.head_dim,
            weights.down.inputs,
            *(0 if norm is None else norm.weight.data_ptr() for norm in norms),
            *(field for linear in linears for field in linear.fields),
            self._constants.buffer_info()[0],
        )
        self._workspace_per_token = kernels.decoder_layer_workspace(self._args)

    def forward(
        self,
        hidden_states: Tensor,
        *args: Any,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attn_metadata: AttentionMetadata | None = None,
        **kwargs: Any,
    ) -> Any:
        """Computes the layer: (1, n, hidden) → (1, n, hidden)."""
        if (
            attn_metadata is None
            or args
            or position_embeddings is None
            or not self._can_fuse(hidden_states, *position_embeddings, attn_metadata)
        ):
            kwargs = kwargs if attn_metadata is None else {**kwargs, "attn_metadata": attn_metadata}
            return self.original(hidden_states, *args, position_embeddings=position_embeddings, **kwargs)
        return self._run_fused(hidden_states, *position_embeddings, attn_metadata)

    def _can_fuse(self, x: Tensor, cosines: Tensor, sines: Tensor, attn_metadata: AttentionMetadata) -> bool:
        has_kernels = attn_metadata.kernels is not None and not attn_metadata.is_unfused
        is_supported = has_kernels and not attn_metadata.batches and len(x) == 1
        is_fp32 = x.dtype is cosines.dtype is sines.dtype is torch.float32
        shapes_match = cosines.shape == sines.shape == (1, x.shape[1], self._weights.head_dim)
        return (
            is_supported
            and is_fp32
            and shapes_match
            and x.is_contiguous()
            and cosines.is_contiguous()
            and sines.is_contiguous()
        )

    def _run_fused(self, x: Tensor, cosines: Tensor, sines: Tensor, attn_metadata: AttentionMetadata) -> Tensor:
        count, args = x.shape[1], self._args
        span_table, fp16_cache = attn_metadata.build_span_table(self._layer, self._like, self._like)
        table = array("q", span_table)
        out = torch.empty_like(x)
        padded_tokens = -(-count // GEMM_TILE_ROWS) * GEMM_TILE_ROWS
        args.count, args.threads = count, torch.get_num_threads()
        args.x, args.out = x.data_ptr(), out.data_ptr()
        args.cosines, args.sines = cosines.data_ptr(), sines.data_ptr()
        args.num_spans, args.spans = len(attn_metadata.spans), table.buffer_info()[0]
        args.fp16_cache, args.window = fp16_cache, attn_metadata.windows.get(self._layer, 0)
        args.workspace = self._workspace.ensure_address(padded_tokens * self._workspace_per_token)
        self._kernels.decoder_layer(args)
        return out


@torch.inference_mode()
def fuse_decoder_layers(model: nn.Module, kernels: Kernels) -> int:
    """Replaces every decoder layer that the kernel supports. Returns the number replaced."""
    workspace = Workspace()
    return replace_modules(model, lambda layer: _make_fused_layer(layer, kernels, workspace))


def _make_fused_layer(layer: Any, kernels: Kernels, workspace: Workspace) -> FusedDecoderLayer | None:
    """Returns the fused form of a module; None if the module is no such layer or the results differ."""
    try:
        weights = _extract_weights(layer, kernels)
        if weights is None:
            return None
        fused = FusedDecoderLayer(layer, weights, kernels, workspace)
        result, expected = _probe_output(fused, weights, kernels), _probe_output(layer, weights, kernels)
        error = relative_error(result, expected)
    except Exception:  # noqa: BLE001  a layer that needs other inputs stays unchanged
        return None
    if error <= DECODER_LAYER_RTOL:
        return fused
    report_fallback(log, "decoder_layers", "%s is not fused: its results differ by %.2g", type(layer).__name__, error)
    return None


def _probe_output(layer: nn.Module, weights: LayerWeights, kernels: Kernels) -> Tensor:
    """Returns the layer's output for random tokens, in two chunks, the second of one token that reads the cache."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn((1, PROBE_TOKENS, len(weights.input_norm.weight)), generator=generator)
    angles = torch.randn((1, PROBE_TOKENS, weights.head_dim // 2), generator=generator).repeat(1, 1, 2)
    kv, results = ContiguousKVCache(), []
    for first, end in ((0, PROBE_TOKENS - 1), (PROBE_TOKENS - 1, PROBE_TOKENS)):
        attn_metadata = AttentionMetadata([SequenceSpan(kv, [(0, end - first)])], {}, (), kernels)
        rotary = (angles[:, first:end].cos(), angles[:, first:end].sin())
        results.append(
            layer(x[:, first:end], attention_mask=None, position_embeddings=rotary, attn_metadata=attn_metadata)
        )
        kv.commit(end - first)
    return torch.cat(results, 1)


def _extract_weights(layer: Any, kernels: Kernels) -> LayerWeights | None:
    """Returns the weights of a layer with the supported structure; None for any other module."""
    is_llama = _has_only_children(layer, LAYER_CHILDREN)
    if not is_llama or not _has_only_children(layer.self_attn, ATTENTION_CHILDREN, QK_NORMS):
        return None
    attention, mlp = layer.self_attn, layer.mlp
    merged, heads = _find_merged_linear(attention), _count_heads(attention, kernels)
    if merged is None or heads is None or not isinstance(mlp, FusedSwiGLU):
        return None
    linears: list[Any] = [merged, attention.o_proj, mlp.gate_up, mlp.down_proj]
    if not all(isinstance(module, PackedLinear) and isinstance(module.kernel, CompiledLinear) for module in linears):
        return None
    input_norm, post_norm = layer.input_layernorm, layer.post_attention_layernorm
    q_norm, k_norm = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
    norms = [input_norm, post_norm, *(norm for norm in (q_norm, k_norm) if norm is not None)]
    if not all(isinstance(norm, FusedRMSNorm) and norm.uses_kernels for norm in norms):
        return None
    qkv, o_proj, gate_up, down = (module.kernel for module in linears)
    return LayerWeights(input_norm, qkv, q_norm, k_norm, o_proj, post_norm, gate_up, down, *heads)


def _find_merged_linear(attention: Any) -> nn.Module | None:
    """Returns the linear layer that computes queries, keys and values, in this order; None if there is none."""
    slices = [attention.q_proj, attention.k_proj, attention.v_proj]
    if not all(isinstance(module, MergedLinearSlice) for module in slices):
        return None
    group = slices[0].merged
    is_whole = all(module.merged is group and module.index == index for index, module in enumerate(slices))
    return group.linear if is_whole else None


def _count_heads(attention: Any, kernels: Kernels) -> tuple[int, int, int] | None:
    """Returns the numbers of heads and of heads of keys, and the size of a head; None if the kernel lacks them."""
    dim = int(attention.head_dim)
    q_size, k_size, v_size = (getattr(attention, name).out_features for name in ("q_proj", "k_proj", "v_proj"))
    if k_size != v_size or k_size % dim or q_size % k_size or q_size // k_size > MAX_QUERY_GROUPS:
        return None
    if dim % 2 or dim > MAX_HEAD_DIM or not kernels.is_row_aligned(dim // 2):
        return None
    return q_size // dim, k_size // dim, dim


def _has_only_children(module: Any, required: set[str], optional: AbstractSet[str] = frozenset()) -> bool:
    """Tells whether a module has all `required` children, no others than `optional` ones, and no state or hooks."""
    children = dict(module.named_children()).keys()
    is_bare = not (module._parameters or module._buffers or module._forward_hooks or module._forward_pre_hooks)
    return required <= children <= required | optional and is_bare
