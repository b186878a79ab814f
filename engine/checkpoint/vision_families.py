"""Models that take pictures, and the layers in which their text part attends to one both ways."""

from collections.abc import Callable
from typing import Any

VERIFIED_TYPES = frozenset(
    {
        *("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"),
        *("glm4v", "glm4v_moe", "gemma3", "gemma4", "mistral3", "internvl", "llava", "llava_onevision"),
        *("idefics3", "smolvlm", "deepseek_ocr2"),
    }
)
"""Model types whose output with pictures was compared with transformers' `generate`."""

REFUSED_TYPES = {
    "paligemma": "its whole prompt attends both ways, so that no part of it can be computed or reused alone",
    "molmo2": "all pictures of a prompt attend to each other both ways",
    "mllama": "its pictures are read by cross-attention",
    "llama4": "its features are projected outside of its encoder",
    "phi4_multimodal": "its forward pass takes no encoded pictures",
    "idefics": "its forward pass takes no encoded pictures",
    "blip": "its forward pass takes no encoded pictures",
    "git": "its forward pass takes no encoded pictures",
    "ernie4_5_vl_moe": "its experts depend on the kind of each token",
}
"""Reasons why models of these types take no pictures."""

SOFT_ID_NAMES = tuple(f"{kind}_token_{end}" for kind in ("image", "video", "audio") for end in ("id", "index"))
"""Entries of a config.json with the ids that stand for pictures, video and audio."""


def read_soft_ids(get: Callable[[str], Any]) -> tuple[int, ...]:
    """Returns the ids that stand for pictures, video or audio, that of pictures first.

    `get` returns an entry of a model's config.json, or None.
    """
    ids = [get(name) for name in SOFT_ID_NAMES]
    return tuple(dict.fromkeys(token for token in ids if isinstance(token, int) and token >= 0))


def find_two_way_layers(config: Any) -> frozenset[int]:
    """Returns the layers in which the tokens of a picture see all of it, also what comes after them."""
    text = config.get_text_config(decoder=True)
    layers = range(text.num_hidden_layers)
    if config.model_type == "gemma3":
        return frozenset(layers)
    if config.model_type == "gemma4" and getattr(text, "use_bidirectional_attention", None) == "vision":
        return frozenset(layer for layer in layers if text.layer_types[layer] == "sliding_attention")
    return frozenset()


def explain_refusal(model_type: str) -> str | None:
    """Returns the reason why models of this type take no pictures, in one line; None if they do."""
    if model_type in VERIFIED_TYPES:
        return None
    reason = REFUSED_TYPES.get(model_type, "its output with pictures was not compared with that of transformers")
    return f"{model_type} takes no pictures here: {reason}"
