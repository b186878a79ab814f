"""The converter to GGUF files: what llama.cpp's own reader finds in a file is what the checkpoint holds."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from bench import gguf_file
from bench.gpt_oss_model import OSS_SHAPES, build_gpt_oss_config, list_tensors
from bench.random_models import SHAPES, build_config, weight_shapes

TOKENS = [*"abcdefgh", "ab", "abc", "cd", "<|endoftext|>", "<|im_end|>", "<think>"]
EOS_TOKEN_ID = TOKENS.index("<|im_end|>")
LAYERS = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
Stored = dict[str, Tensor]
Types = gguf.GGMLQuantizationType


def write_texts(folder: Path, config: dict[str, Any]) -> None:
    added = [{"id": TOKENS.index(token), "content": token, "special": token != "<think>"} for token in TOKENS[-3:]]
    vocab = {token: index for index, token in enumerate(TOKENS[:-3])}
    model = {"vocab": vocab, "merges": [["a", "b"], ["ab", "c"], ["c", "d"]]}
    (folder / "tokenizer.json").write_text(json.dumps({"model": model, "added_tokens": added}))
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text("{{ messages }}")


def write_qwen3(folder: Path) -> Stored:
    """Writes a tiny Qwen3. Returns its weights in fp32 by GGUF's names."""
    shape = SHAPES["tiny"] | LAYERS | HEADS
    write_texts(folder, build_config(shape, EOS_TOKEN_ID))
    sizes = dict(weight_shapes(shape)) | {"model.embed_tokens.weight": (len(TOKENS), 64)}
    stored = {name: torch.randn(size).bfloat16() for name, size in sizes.items()}
    save_file(stored, folder / "model.safetensors")
    names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    leaves = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        **{f"self_attn.{name}_proj": f"attn_{name}" for name in "qkv"},
        **{f"self_attn.{name}_norm": f"attn_{name}_norm" for name in "qk"},
        "self_attn.o_proj": "attn_output",
        **{f"mlp.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")},
    }
    for layer in range(2):
        names |= {f"model.layers.{layer}.{old}.weight": f"blk.{layer}.{new}.weight" for old, new in leaves.items()}
    return {names[name]: weight.float() for name, weight in stored.items()}


def write_gpt_oss(folder: Path) -> Stored:
    """Writes a tiny gpt-oss with experts in MXFP4. Returns its weights in fp32 by GGUF's names."""
    shape = OSS_SHAPES["osstiny"] | LAYERS | HEADS | {"vocab_size": len(TOKENS), "num_local_experts": 3}
    config = build_gpt_oss_config(shape, EOS_TOKEN_ID)
    write_texts(folder, config)
    stored: Stored = {}
    for name, dtype, size in list_tensors(config):
        limits = (115, 130) if name.endswith("_scales") else (0, 256)
        number = torch.randint(*limits, size).to(torch.uint8)
        stored[name] = number if dtype == "U8" else torch.randn(size).bfloat16()
    save_file(stored, folder / "model.safetensors")
    expected = {
        "token_embd.weight": stored["model.embed_tokens.weight"],
        "output_norm.weight": stored["model.norm.weight"],
        "output.weight": stored["lm_head.weight"],
    }
    for layer in range(2):
        old, new = f"model.layers.{layer}", f"blk.{layer}"
        expected |= {
            f"{new}.attn_norm.weight": stored[f"{old}.input_layernorm.weight"],
            f"{new}.post_attention_norm.weight": stored[f"{old}.post_attention_layernorm.weight"],
            f"{new}.attn_sinks.weight": stored[f"{old}.self_attn.sinks"],
        }
        renamed = {f"self_attn.{name}_proj": f"attn_{name}" for name in "qkv"}
        renamed |= {"self_attn.o_proj": "attn_output", "mlp.router": "ffn_gate_inp"}
        for (before, after), leaf in ((pair, leaf) for pair in renamed.items() for leaf in ("weight", "bias")):
            expected[f"{new}.{after}.{leaf}"] = stored[f"{old}.{before}.{leaf}"]
        for part, (first, step, name) in {
            "gate": (0, 2, "gate_up"),
            "up": (1, 2, "gate_up"),
            "down": (0, 1, "down"),
        }.items():
            stem = f"{old}.mlp.experts.{name}_proj"
            weight = decode_mxfp4(stored[f"{stem}_blocks"], stored[f"{stem}_scales"])
            expected[f"{new}.ffn_{part}_exps.weight"] = weight[:, first::step]
            expected[f"{new}.ffn_{part}_exps.bias"] = stored[f"{stem}_bias"][:, first::step]
    return {name: weight.float() for name, weight in expected.items()}


def decode_mxfp4(blocks: Tensor, scales: Tensor) -> Tensor:
    """Returns weights (experts, outputs, inputs). Of two in a byte, the first is in the lower bits."""
    levels = FP4[torch.stack([blocks & 15, blocks >> 4], -1).long()].flatten(-2)
    return (levels * torch.exp2(scales.float() - 127)[..., None]).flatten(-2)


def convert(folder: Path, format_name: str) -> gguf.GGUFReader:
    file = folder / "model.gguf"
    gguf_file.convert_folder(folder, file, format_name)
    return gguf.GGUFReader(file)


def error_limits(weight: Tensor, kind: Types) -> Tensor:
    """Returns how far each weight may be from the stored one."""
    if kind in {Types.F32, Types.MXFP4}:
        return torch.zeros_like(weight)
    if kind == Types.F16:
        return weight.abs() * 2.0**-11
    largest = weight.unflatten(-1, (-1, 32)).abs().amax(-1).repeat_interleave(32, -1)
    # Half a level; a level at the end of the range of Q4_0, which has no 8. The scale is rounded to fp16.
    return largest * ((1 / 8 if kind == Types.Q4_0 else 0.5 / 127) + 2.0**-10)


def check_tensors(reader: gguf.GGUFReader, expected: Stored, kinds: dict[str, Types]) -> None:
    """Compares names, types, shapes and values. `kinds`: type of each tensor by the end of its name, else F32."""
    found = {tensor.name: tensor for tensor in reader.tensors}
    assert sorted(found) == sorted(expected)
    for name, weight in expected.items():
        tensor, kind = found[name], next((kind for end, kind in kinds.items() if name.endswith(end)), Types.F32)
        assert (name, tensor.tensor_type) == (name, kind)
        assert tuple(map(int, reversed(tensor.shape))) == weight.shape, name
        values = torch.from_numpy(gguf.quants.dequantize(np.asarray(tensor.data), kind).copy()).view(weight.shape)
        assert bool(((values - weight).abs() <= error_limits(weight, kind)).all()), name


def matrix_kinds(kind: Types) -> dict[str, Types]:
    leaves = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    return {f"{leaf}.weight": kind for leaf in leaves}


@pytest.mark.parametrize(
    ("format_name", "matrices", "embedding"),
    [
        ("q4_0", Types.Q4_0, Types.Q8_0),
        ("q8_0", Types.Q8_0, Types.Q8_0),
        ("f16", Types.F16, Types.F16),
        ("f32", Types.F32, Types.F32),
    ],
)
def test_qwen3_is_converted(
    format_name: str, matrices: Types, embedding: Types, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_file, "ROWS_PER_CHUNK", 7)
    torch.manual_seed(1)
    expected = write_qwen3(tmp_path)
    reader = convert(tmp_path, format_name)
    check_tensors(reader, expected, matrix_kinds(matrices) | {"token_embd.weight": embedding})
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["general.architecture"] == "qwen3"
    numbers = {"block_count": 2, "embedding_length": 64, "feed_forward_length": 96, "attention.head_count": 2}
    numbers |= {"attention.head_count_kv": 1, "attention.key_length": 32, "attention.value_length": 32}
    assert {name: fields[f"qwen3.{name}"] for name in numbers} == numbers
    assert fields["tokenizer.ggml.tokens"] == TOKENS
    assert fields["tokenizer.ggml.merges"] == ["a b", "ab c", "c d"]
    assert fields["tokenizer.ggml.token_type"] == [1] * 11 + [3, 3, 4]
    assert (fields["tokenizer.ggml.eos_token_id"], fields["tokenizer.chat_template"]) == (
        EOS_TOKEN_ID,
        "{{ messages }}",
    )
    assert sorted(file.suffix for file in tmp_path.glob("model.*")) == [".gguf", ".safetensors"], "nothing unfinished"


def test_experts_of_gpt_oss_keep_their_levels_and_scales(tmp_path: Path) -> None:
    torch.manual_seed(2)
    expected = write_gpt_oss(tmp_path)
    reader = convert(tmp_path, "mxfp4")
    dense = matrix_kinds(Types.Q8_0) | {"token_embd.weight": Types.Q8_0, "output.weight": Types.Q8_0}
    check_tensors(reader, expected, {"_exps.weight": Types.MXFP4} | dense)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    numbers = {"expert_count": 3, "expert_used_count": 2, "expert_feed_forward_length": 96}
    numbers |= {"attention.sliding_window": 128, "block_count": 2}
    assert {name: fields[f"gpt-oss.{name}"] for name in numbers} == numbers
