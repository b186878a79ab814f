"""Converts a model folder to a GGUF file for llama.cpp. Runs in llama.cpp's environment, which has `gguf` and no torch:

.bench/envs/llama/bin/python tests/bench/gguf_file.py FOLDER FILE [q8_0|f16|f32]
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

FORMATS = {
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "f32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
}
"""Type of the matrices and type of the file, by name."""


def read_tensors(file: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the name and the float32 values of every bfloat16 tensor of a safetensors file."""
    data = np.memmap(file, mode="r", dtype=np.uint8)
    size = int(data[:8].view(np.uint64)[0])
    header = json.loads(data[8 : 8 + size].tobytes())
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        halves = data[8 + size + begin : 8 + size + end].view(np.uint16)
        yield name, (halves.astype(np.uint32) << 16).view(np.float32).reshape(entry["shape"])


def write_hyperparameters(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Writes the hyperparameters of config.json."""
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


def write_vocabulary(writer: gguf.GGUFWriter, folder: Path, config: dict[str, Any]) -> None:
    """Writes the tokens, their merges and the chat template."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokens = {index: (token, gguf.TokenType.NORMAL) for token, index in tokenizer["model"]["vocab"].items()}
    for added in tokenizer["added_tokens"]:
        token_type = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
        tokens[added["id"]] = (added["content"], token_type)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([tokens[index][0] for index in range(len(tokens))])
    writer.add_token_types([tokens[index][1] for index in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(value=False)
    writer.add_chat_template((folder / "chat_template.jinja").read_text(encoding="utf-8"))


def main(folder: Path, file: Path, format_name: str) -> None:
    """Writes the file. It appears under its name only when it is complete."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    matrix_type, file_type = FORMATS[format_name]
    unfinished = file.with_suffix(".new")
    writer = gguf.GGUFWriter(unfinished, "qwen3")
    write_hyperparameters(writer, config)
    writer.add_file_type(file_type)
    write_vocabulary(writer, folder, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config["num_hidden_layers"])
    for name, values in read_tensors(folder / "model.safetensors"):
        is_norm = values.ndim == 1  # norms are not quantized
        tensor_type = gguf.GGMLQuantizationType.F32 if is_norm else matrix_type
        gguf_name = names.get_name(name, try_suffixes=(".weight",))
        writer.add_tensor(f"{gguf_name}", gguf.quants.quantize(values, tensor_type), raw_dtype=tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.rename(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "q8_0")
