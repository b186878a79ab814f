"""Tiny random mixtures of experts, one for each way in which transformers stores and applies experts."""

import json
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from antiphon.engine.kernels.mxfp4_layout import quantize_to_mxfp4

VOCAB_SIZE = 96
BASE_CONFIG = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}
FAMILY_CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt_oss": (
        "GptOssConfig",
        {
            "num_local_experts": 4,
            "sliding_window": 8,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4}),
    "qwen3_moe": ("Qwen3MoeConfig", {"num_experts": 6, "mlp_only_layers": [0]}),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        {"num_experts": 6, "shared_expert_intermediate_size": 96, "decoder_sparse_step": 1, "sliding_window": None},
    ),
    "deepseek_v3": (
        "DeepseekV3Config",
        {
            "n_routed_experts": 8,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "kv_lora_rank": 16,
            "q_lora_rank": 24,
            "qk_rope_head_dim": 16,
            "qk_nope_head_dim": 16,
            "v_head_dim": 32,
            "head_dim": 16,
            "num_key_value_heads": 4,
        },
    ),
}
"""`gpt_oss`: transposed, interleaved gate and up, biases, clamped; `qwen2_moe`: a shared expert
with a gate; `deepseek_v3`: shared experts, groups."""


def _make_config(family: str, **changes: Any) -> Any:
    class_name, overrides = FAMILY_CONFIGS[family]
    return getattr(transformers, class_name)(**BASE_CONFIG | overrides | changes)


def make_mixture(family: str, **changes: Any) -> PreTrainedModel:
    """Returns the family's model with random weights; always the same ones. Biases are random, too.

    `changes` are entries of the configuration.
    """
    torch.manual_seed(7)
    model: Any = AutoModelForCausalLM.from_config(_make_config(family, **changes))  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        if name.endswith("_bias"):
            parameter.data.normal_()
    return cast("PreTrainedModel", model.eval())


def save_mixture(family: str, folder: Path) -> Path:
    """Saves the family's model in bf16."""
    make_mixture(family).bfloat16().save_pretrained(folder)
    return folder


def save_mxfp4_checkpoint(folder: Path, **changes: Any) -> Path:
    """Saves a gpt-oss model as it is published: experts in MXFP4, everything else in bf16.

    `changes` are entries of the configuration.
    """
    model = make_mixture("gpt_oss", **changes)
    tensors: dict[str, Tensor] = {}
    for name, weight in model.state_dict().items():
        if weight.ndim == 3:
            blocks, scales = quantize_to_mxfp4(weight.transpose(1, 2).contiguous())
            tensors |= {f"{name}_blocks": blocks.contiguous(), f"{name}_scales": scales}
        else:
            tensors[name] = weight.bfloat16().contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    config = model.config.to_dict() | {"architectures": [type(model).__name__], "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


ROUNDING_ERROR = 2e-2
"""Largest relative error against rounded weights in fp32: that of 8-bit activations in two products."""


def choose_routes(rows: int, experts: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Returns two different experts and their weights for each row."""
    generator = torch.Generator().manual_seed(seed)
    indices = torch.rand(rows, experts, generator=generator).argsort(-1)[:, :2]
    return indices, torch.rand(rows, 2, generator=generator)


def make_rows(count: int, width: int = 64) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(3))
