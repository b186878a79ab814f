"""Writes tiny GGUF files by the documented layout, and the model that they stand for."""

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, Lfm2Config, PreTrainedModel, Qwen3Config

from tests.engine.tiny_models import BASE_CONFIG

ALIGNMENT = 32
F32, Q8_0 = 0, 8
BLOCK = 32
VOCAB_SIZE = 300
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)

NAMES = {
    "model.embed_tokens": "token_embd",
    "lm_head": "output",
    "model.norm": "output_norm",
    "model.embedding_norm": "token_embd_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.out_proj": "attn_output",
    "operator_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down",
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
    "conv.conv": "shortconv.conv",
}
"""GGUF's names of modules."""


def pack_string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def pack_value(value: Any) -> bytes:
    """Returns the type of a value and its bytes."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + pack_string(value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    elements = b"".join(pack_value(element)[4:] for element in value)
    return struct.pack("<I", 9) + pack_value(value[0])[:4] + struct.pack("<Q", len(value)) + elements


def quantize_q8_0(weight: Tensor) -> tuple[bytes, Tensor]:
    """Returns blocks of a scale in fp16 and 32 levels, and the rounded weight."""
    blocks = weight.reshape(-1, BLOCK)
    scales = (blocks.abs().amax(1, keepdim=True) / 127).half()
    levels = (blocks / scales.float()).round().clamp(-127, 127).to(torch.int8)
    data = torch.cat([scales.view(torch.uint8).view(-1, 2), levels.view(torch.uint8)], 1)
    return data.numpy().tobytes(), (levels * scales.float()).view(weight.shape)


def rename(name: str) -> str:
    module, _, leaf = name.rpartition(".")
    prefix = ""
    if module.startswith("model.layers."):
        _, _, layer, module = module.split(".", 3)
        prefix = f"blk.{layer}."
    return f"{prefix}{NAMES[module]}.{leaf}"


def make_model(kind: str) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Returns a model, and the metadata of its file besides the tokenizer."""
    torch.manual_seed(5)
    shared = BASE_CONFIG | {"hidden_size": 64, "intermediate_size": 96, "vocab_size": VOCAB_SIZE}
    metadata = {"context_length": 256, "embedding_length": 64, "feed_forward_length": 96, "block_count": 2}
    metadata |= {"attention.head_count": 4, "attention.head_count_kv": 2, "rope.freq_base": 10000.0}
    if kind == "qwen3":  # transformers does not read the size of a head
        config: Any = Qwen3Config(**shared | {"head_dim": 128, "rms_norm_eps": 1e-6})
    else:
        types = ["conv", "full_attention"]
        config = Lfm2Config(**shared | {"layer_types": types, "block_auto_adjust_ff_dim": False, "norm_eps": 1e-6})
        config.rope_parameters = {"rope_type": "default", "rope_theta": 10000.0}
        metadata |= {"attention.head_count_kv": [0, 2], "shortconv.l_cache": config.conv_L_cache}
    metadata["attention.layer_norm_rms_epsilon"] = 1e-6
    model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    return model.eval(), {f"{kind}.{key}": value for key, value in metadata.items()}


def write_gguf(path: Path, kind: str) -> PreTrainedModel:
    """Writes a file whose matrices are in Q8_0, and returns the model with their values."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    model, metadata = make_model(kind)
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *bytes_to_unicode().values(), "ab"]
    tokens += [f"<{index}>" for index in range(VOCAB_SIZE - len(tokens))]
    metadata = {"general.architecture": kind, "general.name": "tiny"} | metadata
    metadata |= {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": tokens}
    metadata |= {"tokenizer.ggml.token_type": [3] * 3 + [1] * (VOCAB_SIZE - 3), "tokenizer.ggml.merges": ["a b"]}
    metadata |= {
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.chat_template": TEMPLATE,
    }
    infos, data = b"", b""
    state = model.state_dict()
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    for name, weight in state.items():
        stored = weight.squeeze(1) if weight.ndim == 3 else weight
        form = Q8_0 if stored.ndim == 2 and stored.shape[1] % BLOCK == 0 else F32
        packed = stored.float().numpy().tobytes()
        if form == Q8_0:
            packed, rounded = quantize_q8_0(stored)
            weight.copy_(rounded)
        shape = struct.pack(f"<I{stored.ndim}Q", stored.ndim, *reversed(stored.shape))
        infos += pack_string(rename(name)) + shape + struct.pack("<IQ", form, len(data))
        data += packed + bytes(-len(packed) % ALIGNMENT)
    header = struct.pack("<4sIQQ", b"GGUF", 3, len(state), len(metadata))
    header += b"".join(pack_string(key) + pack_value(value) for key, value in metadata.items()) + infos
    path.write_bytes(header + bytes(-len(header) % ALIGNMENT) + data)
    return model


def write_gguf_folder(model: PreTrainedModel, folder: Path) -> None:
    """Writes config.json and a file with a Llama's matrices in Q4_0."""
    model.config.save_pretrained(folder)
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    writer.add_name("tiny")
    writer.add_head_count(model.config.num_attention_heads)
    writer.add_head_count_kv(model.config.num_key_value_heads)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, model.config.num_hidden_layers)
    for name, value in model.state_dict().items():
        kind = gguf.GGMLQuantizationType.Q4_0 if value.ndim > 1 else gguf.GGMLQuantizationType.F32
        values = np.ascontiguousarray(value.float().numpy())
        new_name = f"{names.get_name(name.removesuffix('.weight'))}.weight"
        writer.add_tensor(new_name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
