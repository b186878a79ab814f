"""Keys of published config.json files, so that a row's file has no field that is convenient and that real ones lack.

A file of a family that is not listed has the fields that its configuration class declares, as `save_pretrained` writes
them now. Those listed were published by earlier versions of transformers, or by their authors.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers.models.auto.configuration_auto import CONFIG_MAPPING

BOOKKEEPING = frozenset(("architectures", "model_type", "quantization_config", "auto_map"))
"""Keys that every file may have."""

IDS = "bos_token_id eos_token_id"
SIZES = (
    "hidden_size intermediate_size max_position_embeddings num_attention_heads num_hidden_layers vocab_size use_cache "
    f"initializer_range hidden_act {IDS}"
)
LLAMA_2024 = f"{SIZES} attention_dropout num_key_value_heads rms_norm_eps rope_theta tie_word_embeddings"
LLAMA_31 = f"{LLAMA_2024} attention_bias mlp_bias pretraining_tp rope_scaling"
QWEN2 = f"{LLAMA_2024} max_window_layers sliding_window use_sliding_window"
QWEN3 = f"{QWEN2} attention_bias head_dim rope_scaling"
GEMMA = (
    f"{SIZES} attention_bias attention_dropout head_dim hidden_activation num_key_value_heads pad_token_id "
    "rms_norm_eps rope_theta"
)
GEMMA_2 = (
    f"{GEMMA} attn_logit_softcapping cache_implementation final_logit_softcapping query_pre_attn_scalar sliding_window"
)
GLM = f"{LLAMA_2024} attention_bias head_dim pad_token_id partial_rotary_factor"
OLMO = f"{LLAMA_2024} attention_bias pad_token_id rope_scaling"
PHI_1 = (
    f"{SIZES} attention_dropout embd_pdrop layer_norm_eps num_key_value_heads partial_rotary_factor qk_layernorm "
    "resid_pdrop rope_scaling rope_theta tie_word_embeddings"
)
GRANITE = (
    f"{LLAMA_2024} attention_bias attention_multiplier embedding_multiplier logits_scaling mlp_bias pad_token_id "
    "residual_multiplier rope_scaling"
)
GPT_2 = (
    f"activation_function attn_pdrop embd_pdrop resid_pdrop initializer_range layer_norm_epsilon n_embd n_head n_layer "
    f"n_positions vocab_size {IDS}"
)
GPT_J = f"{GPT_2} n_inner rotary_dim scale_attn_weights tie_word_embeddings use_cache"
LATENT = "kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim"
DEEPSEEK = (
    f"{LLAMA_2024} {LATENT} attention_bias first_k_dense_replace moe_intermediate_size n_group n_routed_experts "
    "n_shared_experts norm_topk_prob num_experts_per_tok rope_scaling routed_scaling_factor scoring_func topk_group "
    "topk_method"
)
INDEXER = "index_head_dim index_n_heads index_topk"
MAMBA = (
    f"conv_kernel expand hidden_act hidden_size initializer_range layer_norm_epsilon num_hidden_layers pad_token_id "
    f"rescale_prenorm_residual residual_in_fp32 state_size time_step_floor time_step_max time_step_min time_step_rank "
    f"use_bias use_cache use_conv_bias vocab_size {IDS}"
)
HYBRID_MAMBA_2 = "mamba_chunk_size mamba_conv_bias mamba_d_conv mamba_d_head mamba_d_state mamba_expand mamba_n_groups"
HYBRID_MAMBA_2 += " mamba_n_heads mamba_proj_bias"
QWEN2_MOE = f"{QWEN2} decoder_sparse_step mlp_only_layers moe_intermediate_size norm_topk_prob num_experts"
QWEN2_MOE += " num_experts_per_tok output_router_logits router_aux_loss_coef"

PUBLISHED_KEYS = {
    "bloom": "apply_residual_connection_post_layernorm attention_dropout hidden_dropout initializer_range "
    f"layer_norm_epsilon n_embed n_layer num_attention_heads pretraining_tp slow_but_exact use_cache vocab_size {IDS}",
    "codegen": GPT_J + " n_ctx",
    "cohere": LLAMA_2024.replace("rms_norm_eps", "layer_norm_eps logit_scale pad_token_id use_qk_norm attention_bias"),
    "cohere2": f"{LLAMA_2024.replace('rms_norm_eps', 'layer_norm_eps logit_scale')} attention_bias head_dim pad_token_id "
    "sliding_window sliding_window_pattern",
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
    "deepseek_v32": f"{DEEPSEEK} {INDEXER}",
    "exaone4": f"{LLAMA_2024} head_dim layer_types pad_token_id rope_scaling sliding_window sliding_window_pattern",
    "falcon": "alibi apply_residual_connection_post_layernorm attention_dropout bias hidden_dropout hidden_size "
    "initializer_range layer_norm_epsilon multi_query new_decoder_architecture num_attention_heads num_hidden_layers "
    f"parallel_attn use_cache vocab_size {IDS}",
    "falcon_mamba": MAMBA,
    "gemma": GEMMA,
    "gemma2": GEMMA_2,
    "gemma3_text": f"{GEMMA_2} rope_local_base_freq rope_scaling sliding_window_pattern",
    "glm": GLM,
    "glm4": GLM,
    "glm_moe_dsa": f"{DEEPSEEK} {INDEXER} head_dim pad_token_id".replace("rope_theta", "rope_parameters").replace(
        " rope_scaling", ""
    ),
    "gpt2": GPT_2 + " n_ctx",
    "gpt_bigcode": GPT_2 + " attention_softmax_in_fp32 multi_query n_inner scale_attention_softmax_in_fp32 use_cache",
    "gpt_neo": "activation_function attention_dropout attention_types embed_dropout hidden_size initializer_range "
    f"intermediate_size layer_norm_epsilon max_position_embeddings num_heads num_layers use_cache vocab_size window_size {IDS}",
    "gpt_neox": f"{SIZES} layer_norm_eps rotary_emb_base rotary_pct tie_word_embeddings use_parallel_residual",
    "gptj": GPT_J,
    "granite": GRANITE,
    "granitemoe": f"{GRANITE} num_experts_per_tok num_local_experts output_router_logits router_aux_loss_coef".replace(
        " mlp_bias", ""
    ),
    "jamba": f"{LLAMA_2024} attn_layer_offset attn_layer_period expert_layer_offset expert_layer_period mamba_conv_bias "
    "mamba_d_conv mamba_d_state mamba_dt_rank mamba_expand mamba_proj_bias num_experts num_experts_per_tok pad_token_id "
    "router_aux_loss_coef output_router_logits sliding_window use_mamba_kernels".replace("rope_theta", ""),
    "llama": LLAMA_31,
    "mamba": MAMBA,
    "mamba2": f"{MAMBA} chunk_size head_dim n_groups num_heads rms_norm tie_word_embeddings time_step_limit",
    "mistral": f"{LLAMA_2024} sliding_window",
    "mixtral": f"{LLAMA_2024} num_experts_per_tok num_local_experts output_router_logits router_aux_loss_coef "
    "sliding_window",
    "mpt": "attn_config d_model emb_pdrop embedding_fraction expansion_ratio init_device learned_pos_emb logit_scale "
    "max_seq_len n_heads n_layers no_bias norm_type resid_pdrop use_cache vocab_size",
    "nemotron": f"{LLAMA_2024} attention_bias head_dim mlp_bias norm_eps partial_rotary_factor".replace(
        "rms_norm_eps", ""
    ),
    "olmo": f"{OLMO} clip_qkv".replace("rms_norm_eps", ""),
    "olmo2": OLMO,
    "olmo3": f"{OLMO} layer_types sliding_window",
    "olmoe": f"{OLMO} clip_qkv norm_topk_prob num_experts num_experts_per_tok output_router_logits router_aux_loss_coef",
    "opt": "activation_dropout activation_function attention_dropout do_layer_norm_before dropout ffn_dim hidden_size "
    "init_std layerdrop max_position_embeddings num_attention_heads num_hidden_layers pad_token_id use_cache vocab_size "
    f"word_embed_proj_dim {IDS}",
    "persimmon": f"{PHI_1} hidden_dropout".replace("num_key_value_heads", ""),
    "phi": PHI_1,
    "phi3": f"{LLAMA_2024} attention_bias embd_pdrop original_max_position_embeddings pad_token_id "
    "partial_rotary_factor resid_pdrop rope_scaling sliding_window",
    "qwen2": QWEN2,
    "qwen2_moe": f"{QWEN2_MOE} shared_expert_intermediate_size",
    "qwen3": QWEN3,
    "qwen3_moe": f"{QWEN2_MOE} attention_bias head_dim rope_scaling",
    "qwen3_next": f"{QWEN2_MOE} attention_bias full_attention_interval head_dim linear_conv_kernel_dim linear_key_head_dim "
    "linear_num_key_heads linear_num_value_heads linear_value_head_dim partial_rotary_factor rope_scaling "
    "shared_expert_intermediate_size",
    "recurrent_gemma": "attention_bias attention_dropout attention_window_size conv1d_width head_dim hidden_activation "
    "hidden_size intermediate_size logits_soft_cap lru_width num_attention_heads num_hidden_layers num_key_value_heads "
    f"pad_token_id partial_rotary_factor rms_norm_eps rope_theta use_cache vocab_size {IDS}",
    "rwkv": "attention_hidden_size context_length hidden_size intermediate_size layer_norm_epsilon num_hidden_layers "
    f"rescale_every tie_word_embeddings use_cache vocab_size {IDS}",
    "stablelm": f"{LLAMA_2024} hidden_dropout layer_norm_eps partial_rotary_factor rope_scaling use_qkv_bias".replace(
        "rms_norm_eps", ""
    ),
    "starcoder2": f"{LLAMA_2024} embedding_dropout norm_epsilon residual_dropout sliding_window use_bias".replace(
        "rms_norm_eps", ""
    ).replace("tie_word_embeddings", ""),
    "bamba": f"{LLAMA_2024} {HYBRID_MAMBA_2} attn_layer_indices attn_rotary_emb pad_token_id partial_rotary_factor "
    "rope_scaling",
    "xglm": "activation_dropout activation_function attention_dropout attention_heads d_model dropout ffn_dim init_std "
    f"layerdrop max_position_embeddings num_layers pad_token_id scale_embedding use_cache vocab_size {IDS}",
}
"""Keys by model type, as the first models of each family were published with them."""


ALIASES = {
    "n_embed": "hidden_size",
    "n_ctx": "n_positions",
    "rotary_emb_base": "rope_theta",
    "rotary_pct": "partial_rotary_factor",
}
"""Keys of older files by the names that transformers has for them now."""


def find_keys(model_type: str) -> frozenset[str]:
    """Returns the keys of a published file of this model type, without bookkeeping."""
    listed = PUBLISHED_KEYS.get(model_type)
    if listed is not None:
        return frozenset(listed.split())
    config_class: Any = CONFIG_MAPPING[model_type]
    return frozenset(field.name for field in dataclasses.fields(config_class))


def keep_published(model_type: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that a published file has, under the names that it has for them."""
    keys, names = find_keys(model_type), CONFIG_MAPPING[model_type].attribute_map
    older = {name: key for key, name in ALIASES.items() if key in keys}
    kept = {}
    for key, value in settings.items():
        written = next((name for name in (key, names.get(key), older.get(key)) if name in keys), None)
        if written is not None:
            kept[written] = value
    return kept


def rewrite_config(folder: Path, model_type: str, own_keys: frozenset[str]) -> None:
    """Rewrites a saved config.json with the published keys of its model type, and a row's `own_keys`.

    Files of families that are not listed stay as `save_pretrained` has written them.
    """
    if model_type not in PUBLISHED_KEYS:
        return
    file = folder / "config.json"
    saved: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    keys = find_keys(model_type) | own_keys
    saved["torch_dtype"] = saved.pop("dtype")
    if "rope_parameters" not in find_keys(model_type):
        saved |= split_rope(saved.pop("rope_parameters", None) or {})
        keys |= {"rope_scaling"} if saved.get("rope_scaling") else frozenset()
    names = CONFIG_MAPPING[model_type].attribute_map | ALIASES
    saved |= {key: saved[names[key]] for key in keys - set(saved) if names.get(key) in saved}
    published = {key: value for key, value in saved.items() if key in keys | BOOKKEEPING | {"torch_dtype"}}
    file.write_text(json.dumps(published, indent=2), encoding="utf-8")


def split_rope(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the rotary parameters as files were written before they had one field."""
    if "sliding_attention" in parameters:
        local = parameters["sliding_attention"]["rope_theta"]
        return split_rope(parameters["full_attention"]) | {"rope_local_base_freq": local}
    named = {name: value for name, value in parameters.items() if name in ("rope_theta", "partial_rotary_factor")}
    scaling = {name: value for name, value in parameters.items() if name not in named}
    return named | {"rope_scaling": scaling if scaling.get("rope_type", "default") != "default" else None}
