"""A layer of a decoder in one call of a kernel, where a model's own is one that the kernel knows.

That is what Llama made usual: norm, attention with rotary positions, sum, norm, gated layer, sum. A step of a small
model spends more time between the kernels than the hardware needs for a third of its work. As everywhere, a replacement
is compared with the original on the loaded model before it stays, and the original serves whatever it was not made for.
"""

from array import array
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from antiphon.engine.cache.contiguous import ContiguousKVCache
from antiphon.engine.kernels.bindings import (
    GEMM_TILE_ROWS,
    MAX_HEAD_DIM,
    MAX_QUERY_GROUPS,
    DecoderLayerArgs,
    Kernels,
)
from antiphon.engine.model.attention import AttentionMetadata, SequenceSpan
from antiphon.engine.optimize.fuse import FusedSwiGLU
from antiphon.engine.optimize.linears import CompiledInt8Linear, MergedLinearSlice, PackedLinear
from antiphon.engine.optimize.replace import relative_error, replace_modules
from antiphon.engine.optimize.rms_norm import FusedRMSNorm

LAYER_CHILDREN = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
ATTENTION_CHILDREN = {"q_proj", "k_proj", "v_proj", "o_proj"}
QK_NORMS = {"q_norm", "k_norm"}
"""Of queries and keys, if there are any."""

LAYER_RTOL = 1e-5
PROBE_TOKENS = 21
"""Tokens that a replacement is tried with."""


class LayerWeights(NamedTuple):
    """What a layer is made of, under the kernel's names. ``seen`` makes queries, keys and values."""

    input_norm: FusedRMSNorm
    qkv: CompiledInt8Linear
    q_norm: FusedRMSNorm | None
    k_norm: FusedRMSNorm | None
    o_proj: CompiledInt8Linear
    post_attention_norm: FusedRMSNorm
    gate_up: CompiledInt8Linear
    down: CompiledInt8Linear
    heads: int
    kv_heads: int
    head_dim: int


class Workspace:
    """Memory that all layers of a model use one after the other, and the next step again."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0)

    def ensure_address(self, numbers: int) -> int:
        """Of so many numbers."""
        if numbers > len(self._buffer):
            self._buffer = torch.empty(numbers)
        return self._buffer.data_ptr()


class FusedDecoderLayer(nn.Module):
    """In the place of a model's own layer, which it keeps for what it does not know."""

    def __init__(self, original: Any, weights: LayerWeights, kernels: Kernels, workspace: Workspace) -> None:
        super().__init__()
        self.original = original
        self._kernels, self._workspace = kernels, workspace
        self._weights = weights  # which hold what the addresses below lead to
        self._layer = int(original.self_attn.layer_idx)
        self._like = torch.empty((1, weights.kv_heads, 0, weights.head_dim))
        norms = (weights.input_norm, weights.post_attention_norm, weights.q_norm, weights.k_norm)
        self._constants = array(
            "f", [0.0 if norm is None else norm.eps for norm in norms] + [original.self_attn.scaling]
        )
        matrices = (weights.qkv, weights.o_proj, weights.gate_up, weights.down)
        self._args = DecoderLayerArgs(
            len(weights.input_norm.weight),
            weights.heads,
            weights.kv_heads,
            weights.head_dim,
            weights.down.inputs,
            *(0 if norm is None else norm.weight.data_ptr() for norm in norms),
            *(address for matrix in matrices for address in matrix.addresses),
            self._constants.buffer_info()[0],
        )
        self._workspace_per_token = kernels.decoder_layer_workspace(self._args)

    def forward(
        self,
        hidden_states: Tensor,
        *more: Any,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attn_metadata: AttentionMetadata | None = None,
        **named: Any,
    ) -> Any:
        """(1, n, hidden) → (1, n, hidden)."""
        if (
            attn_metadata is None
            or more
            or position_embeddings is None
            or not self._can_fuse(hidden_states, *position_embeddings, attn_metadata)
        ):
            own = named if attn_metadata is None else {**named, "attn_metadata": attn_metadata}
            return self.original(hidden_states, *more, position_embeddings=position_embeddings, **own)
        return self._run_fused(hidden_states, *position_embeddings, attn_metadata)

    def _can_fuse(self, x: Tensor, cosines: Tensor, sines: Tensor, attn_metadata: AttentionMetadata) -> bool:
        kernels = attn_metadata.kernels is not None and not attn_metadata.batches and len(x) == 1
        plain = x.dtype is cosines.dtype is sines.dtype is torch.float32
        alike = cosines.shape == sines.shape == (1, x.shape[1], self._weights.head_dim)
        return kernels and plain and alike and x.is_contiguous() and cosines.is_contiguous() and sines.is_contiguous()

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
    """Replace those that can be; how many they were."""
    room = Workspace()
    return replace_modules(model, lambda layer: _make_fused_layer(layer, kernels, room))


def _make_fused_layer(layer: Any, kernels: Kernels, room: Workspace) -> FusedDecoderLayer | None:
    """The same in one call; None if it is something else."""
    try:
        parts = _extract_weights(layer, kernels)
        if parts is None:
            return None
        twin = FusedDecoderLayer(layer, parts, kernels, room)
        one, two = _probe_output(twin, parts, kernels), _probe_output(layer, parts, kernels)
        return twin if relative_error(one, two) <= LAYER_RTOL else None
    except Exception:  # noqa: BLE001  one that wants something else stays as it is
        return None


def _probe_output(layer: nn.Module, parts: LayerWeights, kernels: Kernels) -> Tensor:
    """What it makes of some tokens, cut in two."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn((1, PROBE_TOKENS, len(parts.input_norm.weight)), generator=generator)
    angles = torch.randn((1, PROBE_TOKENS, parts.head_dim // 2), generator=generator).repeat(1, 1, 2)
    kv, results = ContiguousKVCache(), []
    for first, end in ((0, PROBE_TOKENS - 1), (PROBE_TOKENS - 1, PROBE_TOKENS)):
        attn_metadata = AttentionMetadata([SequenceSpan(kv, [(0, end - first)])], {}, (), kernels)
        turn = (angles[:, first:end].cos(), angles[:, first:end].sin())
        results.append(
            layer(x[:, first:end], attention_mask=None, position_embeddings=turn, attn_metadata=attn_metadata)
        )
        kv.commit(end - first)
    return torch.cat(results, 1)


def _extract_weights(layer: Any, kernels: Kernels) -> LayerWeights | None:
    """Of a layer as it is known; None of any other."""
    if not _has_only_children(layer, LAYER_CHILDREN) or not _has_only_children(
        layer.self_attn, ATTENTION_CHILDREN, QK_NORMS
    ):
        return None
    attention, gated = layer.self_attn, layer.mlp
    siblings = [attention.q_proj, attention.k_proj, attention.v_proj]
    if not isinstance(gated, FusedSwiGLU) or not all(isinstance(one, MergedLinearSlice) for one in siblings):
        return None
    group = attention.q_proj.merged
    if [(one.merged is group, one.index) for one in siblings] != [(True, 0), (True, 1), (True, 2)]:
        return None
    norms = [layer.input_layernorm, layer.post_attention_layernorm]
    norms += [getattr(attention, name, None) for name in sorted(QK_NORMS, reverse=True)]
    linears = [group.linear, attention.o_proj, gated.gate_up, gated.down_proj]
    if not all(isinstance(one, PackedLinear) and isinstance(one.kernel, CompiledInt8Linear) for one in linears):
        return None
    if (
        not all(one is None or (isinstance(one, FusedRMSNorm) and one.uses_kernels) for one in norms)
        or None in norms[:2]
    ):
        return None
    before, after, query, key = norms
    seen, said, gates, last = (one.kernel for one in linears)
    dim = int(attention.head_dim)
    wide, keys, values = (one.out_features for one in siblings)
    if keys != values or keys % dim or wide % keys or wide // keys > MAX_QUERY_GROUPS:
        return None
    if dim % 2 or dim > MAX_HEAD_DIM or not kernels.is_row_aligned(dim // 2):
        return None
    return LayerWeights(before, seen, query, key, said, after, gates, last, wide // dim, keys // dim, dim)


def _has_only_children(module: Any, names: set[str], possible: AbstractSet[str] = frozenset()) -> bool:
    """Whether it has these children, and at most the possible ones besides, and nothing of its own."""
    found = dict(module.named_children()).keys()
    plain = not (module._parameters or module._buffers or module._forward_hooks or module._forward_pre_hooks)
    return names <= found <= names | possible and plain
