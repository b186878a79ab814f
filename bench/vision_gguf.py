"""Writes a tiny model that sees pictures for llama.cpp, with random weights: a Qwen3 text part and Gemma 3's tower.

.bench/envs/xllamacpp/bin/python bench/vision_gguf.py FOLDER

The folder has the model's `tokenizer.json`. The files are `text.gguf` and `mmproj.gguf`.
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np

SIZE, NUM_LAYERS, NUM_HEADS, NUM_KV_HEADS, HEAD_SIZE, HIDDEN = 64, 2, 4, 2, 32, 128
VISION_SIZE, VISION_LAYERS, VISION_HIDDEN = 32, 2, 64
PATCH, SIDE = 8, 128
"""16 patches a side, of which the projector joins 4 by 4: 16 rows a picture."""
CONTROL_TOKEN, ORDINARY_TOKEN = 3, 1
_random = np.random.default_rng(1)


def add_random(writer: gguf.GGUFWriter, name: str, *shape: int) -> None:
    """Adds a matrix, or the bias of one."""
    writer.add_tensor(name, (_random.standard_normal(shape) * 0.1).astype(np.float32))


def add_ones(writer: gguf.GGUFWriter, name: str, size: int) -> None:
    """Adds the weight of a norm."""
    writer.add_tensor(name, np.ones(size, np.float32))


def finish(writer: gguf.GGUFWriter) -> None:
    """Writes the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_text_part(folder: Path) -> None:
    """Writes `text.gguf`."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    added = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    texts = {index: text for text, index in {**vocabulary, **added}.items()}
    writer = gguf.GGUFWriter(folder / "text.gguf", "qwen3")
    writer.add_context_length(4096)
    writer.add_embedding_length(SIZE)
    writer.add_block_count(NUM_LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv(NUM_KV_HEADS)
    writer.add_key_length(HEAD_SIZE)
    writer.add_value_length(HEAD_SIZE)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10_000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([texts[index] for index in range(len(texts))])
    writer.add_token_types([CONTROL_TOKEN if texts[index] in added else ORDINARY_TOKEN for index in range(len(texts))])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(added["<|im_end|>"])
    writer.add_add_bos_token(False)
    add_random(writer, "token_embd.weight", len(texts), SIZE)
    add_random(writer, "output.weight", len(texts), SIZE)
    add_ones(writer, "output_norm.weight", SIZE)
    for layer in range(NUM_LAYERS):
        name = f"blk.{layer}"
        for norm, size in (
            ("attn_norm", SIZE),
            ("ffn_norm", SIZE),
            ("attn_q_norm", HEAD_SIZE),
            ("attn_k_norm", HEAD_SIZE),
        ):
            add_ones(writer, f"{name}.{norm}.weight", size)
        for matrix, rows, columns in (
            ("attn_q", NUM_HEADS * HEAD_SIZE, SIZE),
            ("attn_k", NUM_KV_HEADS * HEAD_SIZE, SIZE),
            ("attn_v", NUM_KV_HEADS * HEAD_SIZE, SIZE),
            ("attn_output", SIZE, NUM_HEADS * HEAD_SIZE),
            ("ffn_gate", HIDDEN, SIZE),
            ("ffn_up", HIDDEN, SIZE),
            ("ffn_down", SIZE, HIDDEN),
        ):
            add_random(writer, f"{name}.{matrix}.weight", rows, columns)
    finish(writer)


def write_tower(folder: Path) -> None:
    """Writes `mmproj.gguf`."""
    writer = gguf.GGUFWriter(folder / "mmproj.gguf", "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "gemma3")
    writer.add_bool("clip.use_gelu", True)
    numbers = {
        "image_size": SIDE,
        "patch_size": PATCH,
        "embedding_length": VISION_SIZE,
        "feed_forward_length": VISION_HIDDEN,
        "projection_dim": SIZE,
        "block_count": VISION_LAYERS,
        "attention.head_count": 2,
    }
    for key, number in numbers.items():
        writer.add_uint32(f"clip.vision.{key}", number)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    for key in ("image_mean", "image_std"):
        writer.add_array(f"clip.vision.{key}", [0.5] * 3)
    add_random(writer, "v.patch_embd.weight", VISION_SIZE, 3, PATCH, PATCH)
    add_random(writer, "v.patch_embd.bias", VISION_SIZE)
    add_random(writer, "v.position_embd.weight", (SIDE // PATCH) ** 2, VISION_SIZE)
    add_random(writer, "mm.input_projection.weight", VISION_SIZE, SIZE)
    add_ones(writer, "mm.soft_emb_norm.weight", VISION_SIZE)
    norms = ["v.post_ln", *(f"v.blk.{layer}.ln{number}" for layer in range(VISION_LAYERS) for number in (1, 2))]
    for norm in norms:
        add_ones(writer, f"{norm}.weight", VISION_SIZE)
        add_random(writer, f"{norm}.bias", VISION_SIZE)
    for layer in range(VISION_LAYERS):
        shapes = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_out"), (VISION_SIZE, VISION_SIZE))
        shapes |= {"ffn_up": (VISION_HIDDEN, VISION_SIZE), "ffn_down": (VISION_SIZE, VISION_HIDDEN)}
        for name, shape in shapes.items():
            add_random(writer, f"v.blk.{layer}.{name}.weight", *shape)
            add_random(writer, f"v.blk.{layer}.{name}.bias", shape[0])
    finish(writer)


if __name__ == "__main__":
    write_text_part(Path(sys.argv[1]))
    write_tower(Path(sys.argv[1]))
