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

from antiphon.engine.cache.contiguous import Contiguous
from antiphon.engine.kernels.bindings import HEIGHT, MOST_DIM, MOST_GROUPS, Kernels
from antiphon.engine.model.attention import Pack, Span
from antiphon.engine.optimize.fuse import Gated
from antiphon.engine.optimize.linears import CompiledInt8, Linear, Sibling
from antiphon.engine.optimize.replace import error, replace
from antiphon.engine.optimize.rms_norm import RMSNorm

LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
NORMS = {"q_norm", "k_norm"}
"""Of queries and keys, if there are any."""

SAME = 1e-5
TRIAL = 21
"""Tokens that a replacement is tried with."""


class Parts(NamedTuple):
    """What a layer is made of, under the kernel's names. ``seen`` makes queries, keys and values."""

    before: RMSNorm
    seen: CompiledInt8
    query: RMSNorm | None
    key: RMSNorm | None
    said: CompiledInt8
    after: RMSNorm
    gates: CompiledInt8
    last: CompiledInt8
    heads: int
    kv_heads: int
    dim: int


class Room:
    """Memory that all layers of a model use one after the other, and the next step again."""

    def __init__(self) -> None:
        self._held = torch.empty(0)

    def address(self, numbers: int) -> int:
        """Of so many numbers."""
        if numbers > len(self._held):
            self._held = torch.empty(numbers)
        return self._held.data_ptr()


class Layer(nn.Module):
    """In the place of a model's own layer, which it keeps for what it does not know."""

    def __init__(self, original: Any, parts: Parts, kernels: Kernels, room: Room) -> None:
        super().__init__()
        self.original = original
        self._kernels, self._room = kernels, room
        self._parts = parts  # which hold what the addresses below lead to
        self._layer = int(original.self_attn.layer_idx)
        self._like = torch.empty((1, parts.kv_heads, 0, parts.dim))
        norms = (parts.before, parts.after, parts.query, parts.key)
        self._numbers = array("f", [0.0 if norm is None else norm.eps for norm in norms] + [original.self_attn.scaling])
        matrices = (parts.seen, parts.said, parts.gates, parts.last)
        self._fixed = array(
            "q",
            (
                len(parts.before.weight),
                parts.heads,
                parts.kv_heads,
                parts.dim,
                parts.last.inputs,
                *(0 if norm is None else norm.weight.data_ptr() for norm in norms),
                *(address for matrix in matrices for address in matrix.addresses),
                self._numbers.buffer_info()[0],
            ),
        )
        self._each = kernels.room(self._fixed.buffer_info()[0])

    def forward(
        self,
        hidden_states: Tensor,
        *more: Any,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        pack: Pack | None = None,
        **named: Any,
    ) -> Any:
        """(1, n, hidden) → (1, n, hidden)."""
        if (
            pack is None
            or more
            or position_embeddings is None
            or not self._known(hidden_states, *position_embeddings, pack)
        ):
            own = named if pack is None else {**named, "pack": pack}
            return self.original(hidden_states, *more, position_embeddings=position_embeddings, **own)
        return self._at_once(hidden_states, *position_embeddings, pack)

    def _known(self, x: Tensor, cosines: Tensor, sines: Tensor, pack: Pack) -> bool:
        kernels = pack.kernels is not None and not pack.batches and len(x) == 1
        plain = x.dtype is cosines.dtype is sines.dtype is torch.float32
        alike = cosines.shape == sines.shape == (1, x.shape[1], self._parts.dim)
        return kernels and plain and alike and x.is_contiguous() and cosines.is_contiguous() and sines.is_contiguous()

    def _at_once(self, x: Tensor, cosines: Tensor, sines: Tensor, pack: Pack) -> Tensor:
        count = x.shape[1]
        listed, halves = pack.table(self._layer, self._like, self._like)
        table = array("q", listed)
        out = torch.empty_like(x)
        words = self._fixed + array(
            "q",
            (
                count,
                torch.get_num_threads(),
                x.data_ptr(),
                out.data_ptr(),
                cosines.data_ptr(),
                sines.data_ptr(),
                len(pack.spans),
                table.buffer_info()[0],
                halves,
                pack.windows.get(self._layer, 0),
                self._room.address(-(-count // HEIGHT) * HEIGHT * self._each),
            ),
        )
        self._kernels.layer(words.buffer_info()[0])
        return out


@torch.inference_mode()
def fuse_layers(model: nn.Module, kernels: Kernels) -> int:
    """Replace those that can be; how many they were."""
    room = Room()
    return replace(model, lambda layer: _twin(layer, kernels, room))


def _twin(layer: Any, kernels: Kernels, room: Room) -> Layer | None:
    """The same in one call; None if it is something else."""
    try:
        parts = _parts(layer, kernels)
        if parts is None:
            return None
        twin = Layer(layer, parts, kernels, room)
        one, two = _tried(twin, parts, kernels), _tried(layer, parts, kernels)
        return twin if error(one, two) <= SAME else None
    except Exception:  # noqa: BLE001  one that wants something else stays as it is
        return None


def _tried(layer: nn.Module, parts: Parts, kernels: Kernels) -> Tensor:
    """What it makes of some tokens, cut in two."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn((1, TRIAL, len(parts.before.weight)), generator=generator)
    angles = torch.randn((1, TRIAL, parts.dim // 2), generator=generator).repeat(1, 1, 2)
    kv, results = Contiguous(), []
    for first, end in ((0, TRIAL - 1), (TRIAL - 1, TRIAL)):
        pack = Pack([Span(kv, [(0, end - first)])], {}, (), kernels)
        turn = (angles[:, first:end].cos(), angles[:, first:end].sin())
        results.append(layer(x[:, first:end], attention_mask=None, position_embeddings=turn, pack=pack))
        kv.commit(end - first)
    return torch.cat(results, 1)


def _parts(layer: Any, kernels: Kernels) -> Parts | None:
    """Of a layer as it is known; None of any other."""
    if not _is(layer, LAYER) or not _is(layer.self_attn, ATTENTION, NORMS):
        return None
    attention, gated = layer.self_attn, layer.mlp
    siblings = [attention.q_proj, attention.k_proj, attention.v_proj]
    if not isinstance(gated, Gated) or not all(isinstance(one, Sibling) for one in siblings):
        return None
    group = attention.q_proj.group
    if [(one.group is group, one.place) for one in siblings] != [(True, 0), (True, 1), (True, 2)]:
        return None
    norms = [layer.input_layernorm, layer.post_attention_layernorm]
    norms += [getattr(attention, name, None) for name in sorted(NORMS, reverse=True)]
    linears = [group.linear, attention.o_proj, gated.gate_up, gated.down_proj]
    if not all(isinstance(one, Linear) and isinstance(one.kernel, CompiledInt8) for one in linears):
        return None
    if not all(one is None or (isinstance(one, RMSNorm) and one.compiled) for one in norms) or None in norms[:2]:
        return None
    before, after, query, key = norms
    seen, said, gates, last = (one.kernel for one in linears)
    dim = int(attention.head_dim)
    wide, keys, values = (one.out_features for one in siblings)
    if keys != values or keys % dim or wide % keys or wide // keys > MOST_GROUPS:
        return None
    if dim % 2 or dim > MOST_DIM or not kernels.fit(dim // 2):
        return None
    return Parts(before, seen, query, key, said, after, gates, last, wide // dim, keys // dim, dim)


def _is(module: Any, names: set[str], possible: AbstractSet[str] = frozenset()) -> bool:
    """Whether it has these children, and at most the possible ones besides, and nothing of its own."""
    found = dict(module.named_children()).keys()
    plain = not (module._parameters or module._buffers or module._forward_hooks or module._forward_pre_hooks)
    return names <= found <= names | possible and plain
