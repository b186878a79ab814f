"""Rows of the table of models: architectures with a state per sequence beside, or instead of, attention."""

from tests.models.rows import ModelRow
from tests.models.rows_dense import LATENT
from tests.models.rows_mixture import EXPERTS, LOCAL, ROUTED

DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
}
MAMBA2 = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_n_groups": 2,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
}
QWEN4_EXP = {
    "shared_expert_intermediate_size": 32,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "indexed_attention"],
    "hc_count": 2,
    "hc_lowrank": 16,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 16,
    "indexer_compress_ratio": 4,
}
ATTENTION_AT_2 = ["mamba", "mamba", "attention", "mamba"]
SSM = {"state_size": 16, "num_heads": 8, "head_dim": 16, "n_groups": 2, "expand": 2, "chunk_size": 16}

HYBRID_ROWS = (
    ModelRow("qwen3_next", config=DELTA | EXPERTS | {"shared_expert_intermediate_size": 32}),
    ModelRow("qwen3_5_text", config=DELTA),
    ModelRow("qwen3_5_moe_text", config=DELTA | EXPERTS | {"shared_expert_intermediate_size": 32}),
    ModelRow(
        "granitemoehybrid",
        config=MAMBA2 | LOCAL | {"shared_intermediate_size": 32, "layer_types": ATTENTION_AT_2},
    ),
    ModelRow(
        "granitemoehybrid",
        "dense, attention only",
        {"num_local_experts": 0, "shared_intermediate_size": 128, "layer_types": ["attention"] * 4},
    ),
    ModelRow("falcon_h1", config=MAMBA2 | {"mamba_d_ssm": 128}),
    ModelRow("mamba", config={"state_size": 8}, without=("head_dim",)),
    ModelRow("falcon_mamba", config={"state_size": 8}, without=("head_dim",)),
    ModelRow("mamba2", config=SSM),
    ModelRow(
        "jamba",
        config={"num_experts": 4, "num_experts_per_tok": 2, "attn_layer_period": 2, "attn_layer_offset": 1}
        | {"expert_layer_period": 2, "expert_layer_offset": 1, "use_mamba_kernels": False}
        | {"mamba_d_state": 8, "mamba_dt_rank": 4},
    ),
    ModelRow(
        "nemotron_h",
        config={"layers_block_type": ["mamba", "moe", "attention", "mlp"]}
        | {"mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2, "chunk_size": 16}
        | ROUTED
        | {"moe_shared_expert_intermediate_size": 32},
        without=("num_hidden_layers",),
    ),
    ModelRow("bamba", config=MAMBA2 | {"attn_layer_indices": [2]}),
    ModelRow("lfm2", config={"layer_types": ["conv", "full_attention", "conv", "full_attention"]}),
    ModelRow(
        "lfm2_moe",
        config=EXPERTS | {"layer_types": ["conv", "full_attention", "conv", "full_attention"], "num_dense_layers": 1},
    ),
    ModelRow("lfm3"),
    ModelRow("zamba2", config=MAMBA2 | {"layers_block_type": ["mamba", "hybrid", "mamba", "mamba"]}),
    ModelRow("zamba"),
    ModelRow(
        "kimi_linear",
        config=LATENT
        | ROUTED
        | {"linear_head_dim": 16, "linear_num_heads": 4, "layer_types": DELTA["layer_types"], "num_local_experts": 8}
        | {"q_lora_rank": None, "n_group": 1},
        without=("head_dim",),
    ),
    ModelRow("minimax", config=LOCAL | {"layer_types": ["linear_attention", "full_attention"] * 2, "block_size": 16}),
    ModelRow("olmo_hybrid", config=DELTA),
    ModelRow(
        "recurrent_gemma",
        config={"block_types": ["recurrent", "recurrent", "attention", "recurrent"]}
        | {"attention_window_size": 24, "lru_width": 64, "num_key_value_heads": 1},
    ),
    ModelRow("rwkv", config={"attention_hidden_size": 64}),
    ModelRow("bailing_hybrid", config=LATENT | ROUTED | {"layer_types": DELTA["layer_types"], "num_local_experts": 8}),
    ModelRow("zaya", config={"num_experts": 8, "moe_intermediate_size": 64, "router_hidden_size": 32}),
    ModelRow("qwen4_exp_text", config=DELTA | EXPERTS | QWEN4_EXP),
)
