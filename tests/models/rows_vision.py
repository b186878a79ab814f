"""Rows of the table of models: vision-language models."""

from tests.engine.vision_models import VISION_CONFIG, make_mrope
from tests.models.rows import ModelRow
from tests.models.rows_dense import LATENT, WINDOWS
from tests.models.rows_hybrid import DELTA
from tests.models.rows_mixture import E2B, EXPERTS, ROUTED

TOWER = VISION_CONFIG | {"out_hidden_size": 64}
GEMMA4_TOWER = TOWER | {"head_dim": 16, "num_key_value_heads": 2, "pooling_kernel_size": 2}
GEMMA4 = {"global_head_dim": 32, "hidden_size_per_layer_input": 0}
WINDOWED = {"sliding_window": 24}
OCR_TOWER = {
    "sam_config": {
        "hidden_size": 32,
        "output_channels": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "downsample_channels": [24, 32],
        "mlp_ratio": 2.0,
    },
    "encoder_config": {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    },
}
PIXTRAL = TOWER | {"model_type": "pixtral"}


VISION_ROWS = (
    ModelRow("mistral3", config={"model_type": "mistral"}, vision=PIXTRAL),
    ModelRow("mistral3", "Ministral 3", {"model_type": "ministral3"}, vision=PIXTRAL, pictures="ministral3"),
    ModelRow("qwen2_vl", config=make_mrope(2, 3, 3), vision=TOWER),
    ModelRow("qwen2_5_vl", config=make_mrope(2, 3, 3), vision=TOWER),
    ModelRow("qwen3_vl", config=make_mrope(2, 3, 3), vision=TOWER | {"deepstack_visual_indexes": [0]}),
    ModelRow("qwen3_vl_moe", config=make_mrope(2, 3, 3) | EXPERTS, vision=TOWER | {"deepstack_visual_indexes": [0]}),
    ModelRow("qwen3_5", config=DELTA, vision=TOWER),
    ModelRow("qwen3_5_moe", config=DELTA | EXPERTS | {"shared_expert_intermediate_size": 32}, vision=TOWER),
    ModelRow("gemma3", config=WINDOWED, vision=TOWER),
    ModelRow("kimi_k25", config={"model_type": "deepseek_v3"} | LATENT | ROUTED, vision=TOWER),
    ModelRow("glm4v_moe", config=make_mrope(1, 2, 1, partial_rotary_factor=0.5) | ROUTED | EXPERTS, vision=TOWER),
    ModelRow("internvl", config={"model_type": "qwen2"}, vision=TOWER),
    ModelRow(
        "llava",
        config={"model_type": "llama"},
        vision=TOWER | {"model_type": "clip_vision_model", "projection_dim": 64},
    ),
    ModelRow("llava", "Pixtral", {"model_type": "mistral"}, vision=PIXTRAL, pictures="pixtral"),
    ModelRow("smolvlm", config={"model_type": "llama"}, vision=TOWER),
    ModelRow("glm4v", config=make_mrope(2, 3, 3, partial_rotary_factor=1.0), vision=TOWER),
    ModelRow("gemma4", config=GEMMA4 | WINDOWED, vision=GEMMA4_TOWER),
    ModelRow(
        "gemma4",
        "two-way pictures",
        GEMMA4 | WINDOWED | {"use_bidirectional_attention": "vision"},
        vision=GEMMA4_TOWER,
        pictures="gemma4_two_way",
    ),
    ModelRow(
        "gemma4",
        "E2B",
        GEMMA4 | WINDOWED | E2B | {"layer_types": WINDOWS},
        vision=GEMMA4_TOWER,
        pictures="gemma4_per_layer",
    ),
    ModelRow("llava_onevision", config={"model_type": "qwen2"}, vision=TOWER | {"model_type": "siglip_vision_model"}),
    ModelRow("idefics3", config={"model_type": "llama"}, vision=TOWER),
    ModelRow("deepseek_ocr2", config=ROUTED | {"mlp_layer_types": ["dense", *["sparse"] * 3]}, vision=OCR_TOWER),
)
