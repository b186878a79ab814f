"""Rows of the table of models: mixtures of experts with attention in every layer."""

from tests.models.rows import ModelRow
from tests.models.rows_dense import GEMMA4, LATENT, WINDOWS, YARN

EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
ROUTED = {
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
LOCAL = {"num_local_experts": 8, "num_experts_per_tok": 2}
INDEXER = {"index_topk": 16, "index_n_heads": 16, "index_head_dim": 16}  # with few heads, many scores would be 0
E2B = {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 512, "num_kv_shared_layers": 2}

MIXTURE_ROWS = (
    ModelRow("mixtral", config=LOCAL),
    ModelRow("qwen2_moe", config=EXPERTS | {"shared_expert_intermediate_size": 48}),
    ModelRow("qwen3_moe", config=EXPERTS | {"decoder_sparse_step": 1, "norm_topk_prob": True}),
    ModelRow("olmoe", config=EXPERTS),
    ModelRow("flex_olmo", config=EXPERTS),
    ModelRow(
        "gpt_oss",
        config=LOCAL
        | {
            "sliding_window": 24,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
            "layer_types": WINDOWS,
        },
    ),
    ModelRow("deepseek_v2", config=LATENT | ROUTED | {"topk_method": "group_limited_greedy"}),
    ModelRow("deepseek_v2", "Lite", LATENT | ROUTED | {"q_lora_rank": None, "topk_method": "greedy"}),
    ModelRow("deepseek_v3", config=LATENT | ROUTED),
    ModelRow("deepseek_v3", "YaRN", LATENT | ROUTED | {"rope_parameters": YARN}),
    ModelRow("deepseek_v32", config=LATENT | ROUTED | INDEXER, without=("head_dim",)),
    ModelRow(
        "deepseek_v4",
        config=EXPERTS
        | {
            "q_lora_rank": 32,
            "o_groups": 2,
            "o_lora_rank": 16,
            "num_key_value_heads": 1,
            "n_routed_experts": 8,
            "num_local_experts": 8,
            "sliding_window": 24,
            "index_topk": 8,
            "index_n_heads": 2,
            "index_head_dim": 16,
        },
    ),
    ModelRow("glm4_moe", config=ROUTED | {"use_qk_norm": True}),
    ModelRow("glm4_moe_lite", config=LATENT | ROUTED),
    ModelRow("glm_moe_dsa", config=LATENT | ROUTED | INDEXER, without=("head_dim",), seed=8),
    ModelRow("minimax_m2", config=LOCAL | {"rotary_dim": 8}),
    ModelRow(
        "minimax_m3_vl_text",
        config=LOCAL
        | {"dense_intermediate_size": 128, "shared_intermediate_size": 64, "intermediate_size": 64}
        | {"index_n_heads": 2, "index_head_dim": 16, "index_block_size": 8, "index_topk_blocks": 3}
        | {"layer_types": ["full_attention", "minimax_m3_sparse"] * 2},
    ),
    ModelRow("granitemoe", config=LOCAL | {"embedding_multiplier": 3.0, "logits_scaling": 0.5}),
    ModelRow("granitemoeshared", config=LOCAL | {"shared_intermediate_size": 32}),
    ModelRow("ernie4_5_moe", config={"moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 64}),
    ModelRow("hunyuan_v1_moe", config={"num_experts": 8, "moe_topk": 2}),
    ModelRow("dots1", config=ROUTED),
    ModelRow(
        "longcat_flash",
        config=LATENT
        | {"num_layers": 2, "n_routed_experts": 8, "zero_expert_num": 2, "moe_topk": 2}
        | {"ffn_hidden_size": 128, "expert_ffn_hidden_size": 64},
    ),
    ModelRow("phimoe", config=LOCAL),
    ModelRow("exaone_moe", config=EXPERTS | {"sliding_window": 24, "layer_types": WINDOWS, "n_group": 1}),
    ModelRow(
        "llama4_text",
        config=LOCAL
        | {"intermediate_size_mlp": 128, "attention_chunk_size": 24, "num_experts_per_tok": 1, "moe_layers": [1, 3]}
        | {"no_rope_layers": [1, 1, 1, 0], "interleave_moe_layer_step": 2, "floor_scale": 32},
    ),
    ModelRow("solar_open", config=ROUTED),
    ModelRow("mimo_v2_flash", config=ROUTED | {"sliding_window": 24, "v_head_dim": 16}),
    ModelRow("afmoe", config=EXPERTS | {"sliding_window": 24, "layer_types": WINDOWS, "num_dense_layers": 1}),
    ModelRow("hy_v3", config=EXPERTS),
    ModelRow("jetmoe", config={"kv_channels": 16} | LOCAL, without=("num_key_value_heads",)),
    ModelRow("cohere2_moe", config=EXPERTS | {"sliding_window": 24, "layer_types": WINDOWS}),
    ModelRow("mellum", config=EXPERTS),
    ModelRow("laguna", config=EXPERTS),
    ModelRow(
        "gemma4_text",
        "mixture",
        GEMMA4
        | {"sliding_window": 24, "layer_types": WINDOWS, "enable_moe_block": True}
        | {"num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 64},
    ),
    ModelRow("gemma4_text", "E2B", GEMMA4 | E2B | {"sliding_window": 24, "layer_types": WINDOWS}),
    ModelRow(
        "gemma3n_text",
        config=E2B
        | {"sliding_window": 24, "layer_types": WINDOWS, "activation_sparsity_pattern": [0.9, 0.0, 0.9, 0.0]}
        | {"laurel_rank": 8, "intermediate_size": [128] * 4},
    ),
)
