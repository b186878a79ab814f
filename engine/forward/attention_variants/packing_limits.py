"""Reasons why a model cannot run all sequences in one pass, in words for its operator."""

from typing import Any

from transformers import PreTrainedModel

from antiphon.engine.checkpoint.context_length import DEFAULT_CONTEXT_TOKENS, read_context_length
from antiphon.engine.forward.attention_variants.indexers import INDEXED_KINDS, find_indexers
from antiphon.engine.forward.attention_variants.layer_variants import ATTENTION_KINDS, find_layer_kinds
from antiphon.engine.forward.attention_variants.long_rope import RECOMPUTING_TYPES, find_rope_limit

OWN_ATTENTION = "its code in transformers computes attention by itself instead of through the attention interface"

REASONS_BY_KIND = {
    "indexed_attention": "its layers select single keys by an index",
    "minimax_m3_sparse": "its layers select keys by an index that is not known here",
    "compressed_sparse_attention": "its layers attend to compressed keys",
    "heavily_compressed_attention": "its layers attend to compressed keys",
    "linear_attention": "its linear attention keeps a state that cannot be packed",
    "conv": "its convolutions keep a state that cannot be packed",
    "hybrid": "its layers keep a state that cannot be packed",
    "hybrid_sliding": "its layers keep a state that cannot be packed",
    "dummy": "some of its layers are not known here",
}
"""Reasons by the type of layer that transformers' caches know."""


def explain_unpackable(model: PreTrainedModel, more_kinds: set[str], rope_limit: int | None) -> str | None:
    """Returns the reason why sequences of this model cannot be packed, judged from its configuration; None if none.

    `more_kinds` are types of layers that can be packed besides attention; `rope_limit` is that of
    `exceeds_rope_limit`.
    """
    config = model.config.get_text_config(decoder=True)
    if not model._can_set_attn_implementation():
        return OWN_ATTENTION
    indexed_kinds = INDEXED_KINDS if find_indexers(model) else set()
    unsupported = sorted(set(find_layer_kinds(config)) - ATTENTION_KINDS - indexed_kinds - more_kinds)
    if unsupported:
        reasons = dict.fromkeys(
            REASONS_BY_KIND.get(kind, f"layers of type {kind} are not known") for kind in unsupported
        )
        return ", and ".join(reasons)
    if rope_limit is not None and config.model_type not in RECOMPUTING_TYPES:
        return (
            f"its rotary scaling changes when a sequence exceeds {rope_limit} tokens "
            f"(--max-model-len {rope_limit} serves shorter ones in one pass)"
        )
    return None


def exceeds_rope_limit(config: Any, context: int | None) -> int | None:
    """Returns the limit of LongRoPE if sequences may exceed it; None if all are shorter or the model has none."""
    limit = find_rope_limit(config)
    if limit is None:
        return None
    longest = read_context_length(lambda name: getattr(config, name, None)) or DEFAULT_CONTEXT_TOKENS
    return limit if min(context or longest, longest) > limit else None
