"""A model folder as a GGUF file, for llama.cpp. Runs in llama.cpp's environment, which has `gguf` and no torch:

.bench/envs/llama/bin/python tests/bench/gguf_file.py FOLDER FILE [q8_0|f16|f32]
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

KINDS = {
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "f32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
}


def tensors(file: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Name and float32 values of every bfloat16 tensor of a safetensors file."""
    raw = np.memmap(file, mode="r", dtype=np.uint8)
    size = int(raw[:8].view(np.uint64)[0])
    head = json.loads(raw[8 : 8 + size].tobytes())
    for name, told in head.items():
        if name == "__metadata__":
            continue
        begin, end = told["data_offsets"]
        halves = raw[8 + size + begin : 8 + size + end].view(np.uint16)
        yield name, (halves.astype(np.uint32) << 16).view(np.float32).reshape(told["shape"])


def describe(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """The hyperparameters."""
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])


def vocabulary(writer: gguf.GGUFWriter, folder: Path, config: dict[str, Any]) -> None:
    """The tokens, their merges and the chat template."""
    told = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokens = {place: (token, gguf.TokenType.NORMAL) for token, place in told["model"]["vocab"].items()}
    for added in told["added_tokens"]:
        kind = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
        tokens[added["id"]] = (added["content"], kind)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([tokens[place][0] for place in range(len(tokens))])
    writer.add_token_types([tokens[place][1] for place in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in told["model"]["merges"]])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(value=False)
    writer.add_chat_template((folder / "chat_template.jinja").read_text(encoding="utf-8"))


def main(folder: Path, file: Path, kind: str) -> None:
    """Write the file; it appears under its name only when it is whole."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    quantized, told = KINDS[kind]
    fresh = file.with_suffix(".new")
    writer = gguf.GGUFWriter(fresh, "qwen3")
    describe(writer, config)
    writer.add_file_type(told)
    vocabulary(writer, folder, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config["num_hidden_layers"])
    for name, values in tensors(folder / "model.safetensors"):
        plain = values.ndim == 1  # norms stay as they are
        chosen = gguf.GGMLQuantizationType.F32 if plain else quantized
        written = names.get_name(name, try_suffixes=(".weight",))
        writer.add_tensor(f"{written}", gguf.quants.quantize(values, chosen), raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    fresh.rename(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "q8_0")
