"""A gpt-oss checkpoint with random weights, experts in MXFP4 as in openai/gpt-oss-20b, written a few MiB at a time.

`oss20b` has 20b's shapes and all of its 24 layers, `oss20b-N` has N of them; `osstiny` is small. The vocabulary is the
benchmark's own, of the same size as gpt-oss's, so that every server reads the same prompts.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

OSS_SHAPES: dict[str, dict[str, Any]] = {
    "oss20b": {
        "num_hidden_layers": 24,
        "vocab_size": 201_088,
        "hidden_size": 2880,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "intermediate_size": 2880,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
    },
    "osstiny": {
        "num_hidden_layers": 4,
        "vocab_size": 151_936,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "intermediate_size": 256,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": 128,
    },
}

GROUP_WEIGHTS = 32
"""Weights that share a scale."""

EXPERT_SCALE = 120
"""Exponent of all scales, plus 127: random levels times 2 ** -7 have a standard deviation of 0.02."""

CHUNK_ELEMENTS = 1 << 22
STANDARD_DEVIATION = 0.02


class StoredTensor(NamedTuple):
    """Name, type and shape of a tensor of the checkpoint."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.size * (2 if self.dtype == "BF16" else 1)


def find_oss_shape(name: str) -> dict[str, Any] | None:
    """Returns the shape of a model of `OSS_SHAPES`, with N layers for `NAME-N`; None for another name."""
    base, _, layers = name.partition("-")
    shape = OSS_SHAPES.get(base)
    if shape is None or name == base:
        return shape
    return shape | {"num_hidden_layers": int(layers)} if layers.isdecimal() and int(layers) else None


def build_gpt_oss_config(shape: dict[str, Any], eos_token_id: int) -> dict[str, Any]:
    """Returns the content of config.json."""
    layers = shape["num_hidden_layers"]
    return shape | {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "layer_types": ["full_attention" if index % 2 else "sliding_attention" for index in range(layers)],
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 150_000.0,
        "attention_bias": True,
        "hidden_act": "silu",
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "eos_token_id": eos_token_id,
        "pad_token_id": eos_token_id - 2,
        "quantization_config": {
            "quant_method": "mxfp4",
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
        },
    }


def list_tensors(config: dict[str, Any]) -> Iterator[StoredTensor]:
    """Yields every tensor of the checkpoint, in the order of the file."""
    hidden, inner, experts = config["hidden_size"], config["intermediate_size"], config["num_local_experts"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    yield StoredTensor("model.embed_tokens.weight", "BF16", (config["vocab_size"], hidden))
    for layer in range(config["num_hidden_layers"]):
        dense = {
            "input_layernorm.weight": (hidden,),
            "self_attn.sinks": (config["num_attention_heads"],),
            "self_attn.o_proj.weight": (hidden, queries),
            "self_attn.o_proj.bias": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
            "mlp.router.weight": (experts, hidden),
            "mlp.router.bias": (experts,),
            "mlp.experts.gate_up_proj_bias": (experts, 2 * inner),
            "mlp.experts.down_proj_bias": (experts, hidden),
        }
        for name, size in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            dense |= {f"self_attn.{name}.weight": (size, hidden), f"self_attn.{name}.bias": (size,)}
        for name, shape in dense.items():
            yield StoredTensor(f"model.layers.{layer}.{name}", "BF16", shape)
        for name, outputs, inputs in (("gate_up_proj", 2 * inner, hidden), ("down_proj", hidden, inner)):
            groups = (experts, outputs, inputs // GROUP_WEIGHTS)
            prefix = f"model.layers.{layer}.mlp.experts.{name}"
            yield StoredTensor(f"{prefix}_blocks", "U8", (*groups, GROUP_WEIGHTS // 2))
            yield StoredTensor(f"{prefix}_scales", "U8", groups)
    yield StoredTensor("model.norm.weight", "BF16", (hidden,))
    yield StoredTensor("lm_head.weight", "BF16", (config["vocab_size"], hidden))


def write_checkpoint(file: Path, config: dict[str, Any], seed: int) -> None:
    """Writes the safetensors file, tensor by tensor."""
    tensors = list(list_tensors(config))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": [end, end + tensor.nbytes],
        }
        end += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(seed)
    with file.open("wb") as output:
        output.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            for first in range(0, tensor.size, CHUNK_ELEMENTS):
                output.write(_make_values(tensor, min(CHUNK_ELEMENTS, tensor.size - first), rng))


def _make_values(tensor: StoredTensor, count: int, rng: np.random.Generator) -> bytes:
    """Returns `count` elements: norms are 1, scales equal, levels uniform, all others normal."""
    if tensor.name.endswith("_scales"):
        return bytes([EXPERT_SCALE]) * count
    if tensor.dtype == "U8":
        return rng.bytes(count)
    if tensor.name.endswith("norm.weight"):
        values = np.ones(count, np.float32)
    else:
        values = rng.standard_normal(count, np.float32) * np.float32(STANDARD_DEVIATION)
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
