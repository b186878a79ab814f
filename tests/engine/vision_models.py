"""Tiny random vision-language models, of which the engine serves the text part."""

from typing import Any, cast

import torch
from transformers import AutoModelForImageTextToText, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.engine.tiny_models import BASE_CONFIG

IMAGE_TOKEN_ID = 90

VISION_CONFIG = {
    "hidden_size": 32,
    "out_hidden_size": 32,
    "embed_dim": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "depth": 1,
    "num_attention_heads": 2,
    "num_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT_ATTENTION = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 32,
    "head_dim": 16,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}


def make_mrope(*sections: int, **parameters: Any) -> dict[str, Any]:
    """Returns rotary parameters with sections for time, height and width."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(sections)}
    return {"rope_parameters": rope | parameters}


VISION_FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "mistral3": ("mistral3", {"model_type": "mistral", "head_dim": 32}, {"model_type": "pixtral"}),
    "ministral3": (
        "mistral3",
        {
            "model_type": "ministral3",
            "head_dim": 32,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "llama_4_scaling_beta": 0.1,
            },
        },
        {"model_type": "pixtral"},
    ),
    "qwen2_vl": ("qwen2_vl", make_mrope(1, 1, 2), {}),
    "qwen2_5_vl": ("qwen2_5_vl", make_mrope(1, 1, 2), {}),
    "qwen3_vl": ("qwen3_vl", make_mrope(4, 6, 6) | {"head_dim": 32}, {"deepstack_visual_indexes": [0]}),
    "qwen3_vl_moe": (
        "qwen3_vl_moe",
        make_mrope(4, 6, 6) | MOE | {"head_dim": 32},
        {"deepstack_visual_indexes": [0]},
    ),
    "kimi_k25": ("kimi_k25", {"model_type": "deepseek_v3"} | LATENT_ATTENTION, {}),
    "glm4v_moe": (
        "glm4v_moe",
        make_mrope(2, 3, 3, partial_rotary_factor=0.5)
        | MOE
        | {"head_dim": 32, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
        {},
    ),
    "internvl": ("internvl", {"model_type": "qwen2"}, {}),
    "llava": ("llava", {"model_type": "llama"}, {"model_type": "clip_vision_model", "projection_dim": 32}),
    "smolvlm": ("smolvlm", {"model_type": "llama"}, {}),
}
"""Model type, text configuration and vision configuration of each family."""


def build_vision_model(family: str) -> PreTrainedModel:
    """Returns the family's model, built from a fixed seed."""
    torch.manual_seed(7)
    ids = {name: BASE_CONFIG[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    if family == "mistral4":
        config = CONFIG_MAPPING["mistral4"](**BASE_CONFIG | LATENT_ATTENTION | {"head_dim": 32})
    else:
        model_type, text, vision = VISION_FAMILIES[family]
        config = CONFIG_MAPPING[model_type](
            text_config=BASE_CONFIG | {"tie_word_embeddings": False} | text,
            vision_config=VISION_CONFIG | vision,
            tie_word_embeddings=False,
            image_token_id=IMAGE_TOKEN_ID,
            **ids,
        )
    model: Any = AutoModelForImageTextToText.from_config(config)  # type: ignore[no-untyped-call]
    return cast("PreTrainedModel", model.eval())
