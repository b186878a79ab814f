"""Tiny random models with recurrent layers, built from a fixed seed."""

import functools
from typing import Any, cast

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.engine.tiny_models import DEVICE

VOCAB_SIZE = 512
BASE_CONFIG = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.3,
}
LINEAR_TYPES = ["linear_attention", "full_attention", "linear_attention"]
DELTA_NET = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "head_dim": 16,
    "layer_types": LINEAR_TYPES,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 2, "mamba_expand": 2}

HYBRID_CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_next": ("Qwen3NextConfig", DELTA_NET | EXPERTS | {"shared_expert_intermediate_size": 32}),
    "qwen3_5_text": ("Qwen3_5TextConfig", DELTA_NET),
    "lfm2": ("Lfm2Config", {"layer_types": ["conv", "full_attention", "conv"]}),
    "granitemoehybrid": (
        "GraniteMoeHybridConfig",
        MAMBA2
        | {
            "layer_types": ["mamba", "attention", "mamba"],
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 32,
            "position_embedding_type": "rope",
        },
    ),
    "falcon_h1": ("FalconH1Config", MAMBA2 | {"mamba_d_ssm": 128, "head_dim": 16, "num_hidden_layers": 2}),
    "jamba": (
        "JambaConfig",
        EXPERTS
        | {
            "attn_layer_period": 3,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "mamba_d_state": 8,
            "mamba_dt_rank": 8,
        },
    ),
    "nemotron_h": (
        "NemotronHConfig",
        {
            "hybrid_override_pattern": "M*M-",
            "num_hidden_layers": 4,
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "ssm_state_size": 16,
            "n_groups": 2,
            "head_dim": 16,
        },
    ),
    "minimax": (
        "MiniMaxConfig",
        {
            "layer_types": LINEAR_TYPES,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "head_dim": 16,
            "block_size": 16,
        },
    ),
    "zamba": ("ZambaConfig", {"layers_block_type": ["hybrid", "mamba", "hybrid"], "n_mamba_heads": 2}),
    "zaya": ("ZayaConfig", {"num_experts": 4, "moe_intermediate_size": 32, "router_hidden_size": 32}),
}


@functools.cache
def hybrid_model(family: str) -> PreTrainedModel:
    """Returns the family's model as transformers builds it. All tests share it and must not modify it."""
    class_name, overrides = HYBRID_CONFIGS[family]
    torch.manual_seed(7)
    model: Any = AutoModelForCausalLM.from_config(getattr(transformers, class_name)(**BASE_CONFIG | overrides))  # type: ignore[no-untyped-call]
    return cast("PreTrainedModel", model.eval().to(DEVICE))


def generate_with_hybrid(family: str, prompt: list[int], count: int) -> list[int]:
    """Returns the output of transformers' own greedy `generate`."""
    return _generate_once(family, tuple(prompt), count)


@functools.cache
@torch.inference_mode()
def _generate_once(family: str, prompt: tuple[int, ...], count: int) -> list[int]:
    ids = torch.tensor([prompt], device=DEVICE)
    model: Any = hybrid_model(family)
    output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False)
    return output[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


def make_hybrid_prompts(*lengths: int) -> list[list[int]]:
    """Returns fixed prompts of these lengths."""
    return [
        [3 + (5 * n + 11 * index + index * index * (n + 1)) % (VOCAB_SIZE - 3) for index in range(length)]
        for n, length in enumerate(lengths)
    ]
