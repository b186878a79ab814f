"""Converts a model folder to a GGUF file for llama.cpp. Runs in llama.cpp's environment, which has `gguf` and no torch:

.bench/envs/llama/bin/python bench/gguf_file.py FOLDER FILE [q4_0|q8_0|mxfp4|f16|f32]

Tensors are converted and written one after another. `q4_0` has the input and output embeddings in q8_0, and `mxfp4`, which
is for gpt-oss, everything but the experts: these keep the bits of the checkpoint.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np

FORMATS = {
    "q4_0": (gguf.GGMLQuantizationType.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0),
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "mxfp4": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_MXFP4_MOE),
    "f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "f32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
}
"""Type of the matrices that are no experts in MXFP4, and type of the file, by name."""

ARCHITECTURES = {"qwen3": gguf.MODEL_ARCH.QWEN3, "gpt_oss": gguf.MODEL_ARCH.GPT_OSS}
"""llama.cpp's architecture by `model_type`."""

EMBEDDING_NAMES = ("token_embd.weight", "output.weight")
FP32_MATRICES = ("ffn_gate_inp.weight",)
"""Matrices that llama.cpp wants in fp32: routers."""

ROWS_PER_CHUNK = 4096
"""Rows of a matrix that are converted at a time."""


class GgufTensor(NamedTuple):
    """A tensor to write. `shape` counts the bytes of `kind`'s blocks, or elements if it has none."""

    name: str
    shape: tuple[int, ...]
    dtype: type[np.generic]
    kind: gguf.GGMLQuantizationType
    convert: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


def map_tensors(file: Path) -> dict[str, np.ndarray]:
    """Returns the tensors of a safetensors file by name, mapped: bfloat16 as 16-bit integers, others as bytes."""
    data = np.memmap(file, mode="r", dtype=np.uint8)
    size = int(data[:8].view(np.uint64)[0])
    header = json.loads(data[8 : 8 + size].tobytes())
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            stored = data[8 + size + begin : 8 + size + end]
            tensors[name] = (stored.view(np.uint16) if entry["dtype"] == "BF16" else stored).reshape(entry["shape"])
    return tensors


def widen_bfloat16(halves: np.ndarray) -> np.ndarray:
    """Returns the values in float32."""
    return (halves.astype(np.uint32) << 16).view(np.float32)


def describe_tensor(name: str, halves: np.ndarray, kind: gguf.GGMLQuantizationType) -> GgufTensor:
    """Returns a tensor to convert from bfloat16. Vectors, biases and routers become float32."""
    if halves.ndim == 1 or name.endswith("bias") or name.endswith(FP32_MATRICES):
        kind = gguf.GGMLQuantizationType.F32
    elements, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    dtype: type[np.generic] = np.uint8
    shape = (*halves.shape[:-1], halves.shape[-1] // elements * block_bytes)
    if elements == 1:
        dtype, shape = (np.float16 if kind == gguf.GGMLQuantizationType.F16 else np.float32), halves.shape

    def convert() -> np.ndarray:
        if halves.ndim == 1:
            return widen_bfloat16(halves)
        result = np.empty(shape, dtype)
        for first in range(0, len(halves), ROWS_PER_CHUNK):
            rows = widen_bfloat16(halves[first : first + ROWS_PER_CHUNK])
            result[first : first + ROWS_PER_CHUNK] = gguf.quants.quantize(rows, kind)
        return result

    return GgufTensor(name, shape, dtype, kind, convert)


def describe_experts(name: str, blocks: np.ndarray, scales: np.ndarray) -> GgufTensor:
    """Returns experts (experts, outputs, groups, 16) with scales (experts, outputs, groups) that stay in MXFP4.

    A block of GGUF is its scale and 16 bytes, which hold a weight and the one that is 16 inputs further on. In a byte
    of the checkpoint are two neighbours.
    """
    kind = gguf.GGMLQuantizationType.MXFP4
    experts, outputs, groups, half = blocks.shape

    def convert() -> np.ndarray:
        result = np.empty((experts, outputs, groups, 1 + half), np.uint8)
        for expert in range(experts):
            levels = np.stack([blocks[expert] & 15, blocks[expert] >> 4], -1).reshape(outputs, groups, 2, half)
            result[expert, ..., 0] = scales[expert]
            result[expert, ..., 1:] = levels[:, :, 0] | levels[:, :, 1] << 4
        return result.reshape(experts, outputs, groups * (1 + half))

    return GgufTensor(name, (experts, outputs, groups * (1 + half)), np.uint8, kind, convert)


def describe_tensors(
    stored: dict[str, np.ndarray], config: dict[str, Any], matrix_kind: gguf.GGMLQuantizationType
) -> Iterator[GgufTensor]:
    """Yields every tensor of the GGUF file."""
    names = gguf.get_tensor_name_map(ARCHITECTURES[config["model_type"]], config["num_hidden_layers"])

    def rename(name: str) -> str:
        stem, _, suffix = name.rpartition(".")
        found = names.get_name(stem) if suffix in ("weight", "bias") else None
        return f"{found}.{suffix}" if found else f"{names.get_name(name)}.weight"

    q8_0, q4_0 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0
    for name, tensor in stored.items():
        if ".mlp.experts." in name:
            layer = name.split(".")[2]
            yield from describe_expert_part(f"blk.{layer}", name, tensor, stored)
        else:
            new_name = rename(name)
            is_embedding = new_name in EMBEDDING_NAMES and matrix_kind == q4_0
            yield describe_tensor(new_name, tensor, q8_0 if is_embedding else matrix_kind)


def describe_expert_part(
    block: str, name: str, tensor: np.ndarray, stored: dict[str, np.ndarray]
) -> Iterator[GgufTensor]:
    """Yields the tensors that a tensor of experts becomes. Rows of gate and up alternate in the checkpoint."""
    stem, _, part = name.rpartition("_")
    parts = (("gate", slice(0, None, 2)), ("up", slice(1, None, 2))) if "gate_up" in stem else (("down", slice(None)),)
    for new_name, rows in parts:
        if part == "bias":
            yield describe_tensor(f"{block}.ffn_{new_name}_exps.bias", tensor[:, rows], gguf.GGMLQuantizationType.F32)
        elif part == "blocks":
            scales = stored[f"{stem}_scales"]
            yield describe_experts(f"{block}.ffn_{new_name}_exps.weight", tensor[:, rows], scales[:, rows])


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
    if "num_local_experts" in config:
        writer.add_expert_count(config["num_local_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["intermediate_size"])
        writer.add_sliding_window(config["sliding_window"])


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


def convert_folder(folder: Path, file: Path, format_name: str) -> None:
    """Writes the file. It appears under its name only when it is complete."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    matrix_kind, file_type = FORMATS[format_name]
    unfinished = file.with_suffix(".new")
    writer = gguf.GGUFWriter(unfinished, gguf.MODEL_ARCH_NAMES[ARCHITECTURES[config["model_type"]]])
    write_hyperparameters(writer, config)
    writer.add_file_type(file_type)
    write_vocabulary(writer, folder, config)
    tensors = list(describe_tensors(map_tensors(folder / "model.safetensors"), config, matrix_kind))
    for tensor in tensors:
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(tensor.dtype), tensor.nbytes, tensor.kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors:
        writer.write_tensor_data(tensor.convert())
    writer.close()
    unfinished.rename(file)


def main() -> None:
    """Converts what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("format_name", nargs="?", choices=FORMATS, default="q8_0")
    convert_folder(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
