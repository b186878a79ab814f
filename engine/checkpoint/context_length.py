"""Reads the context length of a model from its configuration. Needs no torch."""

from collections.abc import Callable
from typing import Any

CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
DEFAULT_CONTEXT_TOKENS = 131_072
"""Context length in tokens of a model whose configuration has none, such as a recurrent one."""


def read_context_length(read_setting: Callable[[str], Any]) -> int | None:
    """Returns the context length in tokens; None if there is none. `read_setting` returns a setting or None."""
    lengths = [read_setting(name) for name in CONTEXT_NAMES]
    context = next((int(length) for length in lengths if length), None)
    # Files of older versions of transformers call the rotary parameters `rope_scaling`.
    extended = max(_yarn_context(read_setting(name)) for name in ("rope_parameters", "rope_scaling"))
    return max(context or DEFAULT_CONTEXT_TOKENS, extended) if context or extended else None


def _yarn_context(rope_parameters: Any) -> int:
    """Returns the context in tokens to which YaRN extends a model, 0 without YaRN. Layer types may have their own.

    Models are published with YaRN switched off and `max_position_embeddings` without it; switching it on, as their
    documentation says, changes only the rotary parameters.
    """
    if not isinstance(rope_parameters, dict):
        return 0
    nested = max((_yarn_context(value) for value in rope_parameters.values()), default=0)
    factor, original = (rope_parameters.get(name) for name in ("factor", "original_max_position_embeddings"))
    kind = rope_parameters.get("rope_type", rope_parameters.get("type"))
    if kind != "yarn" or not factor or not original:
        return nested
    return max(nested, int(factor * original))
