"""Writes a model that sees pictures for llama.cpp, with random weights: a Qwen3 text part and Gemma 3's tower.

.bench/envs/xllamacpp/bin/python bench/vision_gguf.py FOLDER [tiny|large]

The folder has the model's `tokenizer.json`. The files are `text.gguf` and `mmproj.gguf`. `tiny` is for tests; `large` has
the sizes of `python -m bench.pictures`.
"""

import argparse
import json
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np


class ModelShape(NamedTuple):
    """Sizes of both parts. The projector joins 4 by 4 patches to a row."""

    size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    hidden: int
    vision_size: int
    vision_layers: int
    vision_heads: int
    vision_hidden: int
    patch: int
    side: int
    """Side of a prepared picture in pixels."""


SHAPES = {
    "tiny": ModelShape(64, 2, 4, 2, 32, 128, 32, 2, 2, 64, 8, 128),
    "large": ModelShape(512, 8, 8, 4, 64, 1536, 768, 12, 12, 3072, 16, 768),
}
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


def write_text_part(folder: Path, shape: ModelShape) -> None:
    """Writes `text.gguf`."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    added = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    texts = {index: text for text, index in {**vocabulary, **added}.items()}
    writer = gguf.GGUFWriter(folder / "text.gguf", "qwen3")
    writer.add_context_length(4096)
    writer.add_embedding_length(shape.size)
    writer.add_block_count(shape.num_layers)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10_000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([texts[index] for index in range(len(texts))])
    writer.add_token_types([CONTROL_TOKEN if texts[index] in added else ORDINARY_TOKEN for index in range(len(texts))])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(added["<|im_end|>"])
    writer.add_add_bos_token(False)
    add_random(writer, "token_embd.weight", len(texts), shape.size)
    add_random(writer, "output.weight", len(texts), shape.size)
    add_ones(writer, "output_norm.weight", shape.size)
    for layer in range(shape.num_layers):
        name = f"blk.{layer}"
        for norm, size in (
            ("attn_norm", shape.size),
            ("ffn_norm", shape.size),
            ("attn_q_norm", shape.head_size),
            ("attn_k_norm", shape.head_size),
        ):
            add_ones(writer, f"{name}.{norm}.weight", size)
        for matrix, rows, columns in (
            ("attn_q", shape.num_heads * shape.head_size, shape.size),
            ("attn_k", shape.num_kv_heads * shape.head_size, shape.size),
            ("attn_v", shape.num_kv_heads * shape.head_size, shape.size),
            ("attn_output", shape.size, shape.num_heads * shape.head_size),
            ("ffn_gate", shape.hidden, shape.size),
            ("ffn_up", shape.hidden, shape.size),
            ("ffn_down", shape.size, shape.hidden),
        ):
            add_random(writer, f"{name}.{matrix}.weight", rows, columns)
    finish(writer)


def write_tower(folder: Path, shape: ModelShape) -> None:
    """Writes `mmproj.gguf`."""
    writer = gguf.GGUFWriter(folder / "mmproj.gguf", "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "gemma3")
    writer.add_bool("clip.use_gelu", True)
    numbers = {
        "image_size": shape.side,
        "patch_size": shape.patch,
        "embedding_length": shape.vision_size,
        "feed_forward_length": shape.vision_hidden,
        "projection_dim": shape.size,
        "block_count": shape.vision_layers,
        "attention.head_count": shape.vision_heads,
    }
    for key, number in numbers.items():
        writer.add_uint32(f"clip.vision.{key}", number)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    for key in ("image_mean", "image_std"):
        writer.add_array(f"clip.vision.{key}", [0.5] * 3)
    add_random(writer, "v.patch_embd.weight", shape.vision_size, 3, shape.patch, shape.patch)
    add_random(writer, "v.patch_embd.bias", shape.vision_size)
    add_random(writer, "v.position_embd.weight", (shape.side // shape.patch) ** 2, shape.vision_size)
    add_random(writer, "mm.input_projection.weight", shape.vision_size, shape.size)
    add_ones(writer, "mm.soft_emb_norm.weight", shape.vision_size)
    norms = ["v.post_ln", *(f"v.blk.{layer}.ln{number}" for layer in range(shape.vision_layers) for number in (1, 2))]
    for norm in norms:
        add_ones(writer, f"{norm}.weight", shape.vision_size)
        add_random(writer, f"{norm}.bias", shape.vision_size)
    for layer in range(shape.vision_layers):
        shapes = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_out"), (shape.vision_size, shape.vision_size))
        shapes |= {
            "ffn_up": (shape.vision_hidden, shape.vision_size),
            "ffn_down": (shape.vision_size, shape.vision_hidden),
        }
        for name, sides in shapes.items():
            add_random(writer, f"v.blk.{layer}.{name}.weight", *sides)
            add_random(writer, f"v.blk.{layer}.{name}.bias", sides[0])
    finish(writer)


def main() -> None:
    """Writes both files to the folder that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("shape", nargs="?", choices=SHAPES, default="tiny")
    options = parser.parse_args()
    write_text_part(options.folder, SHAPES[options.shape])
    write_tower(options.folder, SHAPES[options.shape])


if __name__ == "__main__":
    main()
