"""Matrices of GGUF files stay in the mapped file, and have the bits that transformers' own readers give them."""

from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers import modeling_gguf_pytorch_utils as older_reader

from antiphon.engine.builder import build_core
from antiphon.engine.load import decoded_checkpoint
from antiphon.engine.load.experts.stored import StoredExperts
from antiphon.engine.load.loader import load_model
from antiphon.engine.load.mmap_weights import MmapLinear, QuantizedMmapWeight
from antiphon.engine.options import EngineOptions
from tests.engine.tiny_models import BASE_CONFIG

pytestmark = pytest.mark.filterwarnings("ignore")

Types = gguf.GGMLQuantizationType
KINDS = (Types.Q8_0, Types.Q4_0, Types.F16, Types.BF16, Types.Q4_1, Types.F32)
OLDER_KINDS = (*KINDS, Types.Q5_1, Types.MXFP4)
"""Types of matrices; the last two are known to transformers' older reader only."""
SIZES = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 96, "head_dim": 32}
EXPERTS = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LINEAR_ATTENTION: dict[str, Any] = {
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 16),
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention"],
    "shared_expert_intermediate_size": 32,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "qwen3": ("qwen3", {"tie_word_embeddings": True}),
    "gemma3": ("gemma3_text", {}),
    "qwen3moe": ("qwen3_moe", EXPERTS),
    "qwen35moe": ("qwen3_5_moe_text", EXPERTS | LINEAR_ATTENTION),
}
"""A tiny model for each kind of conversion: type and settings, by the architecture's name in GGUF."""

HYBRID_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out",
    "linear_attn.dt_bias": "ssm_dt.bias", "linear_attn.A_log": "ssm_a", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm", "mlp.gate": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.experts.down_proj": "ffn_down_exps.weight",
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
}  # fmt: skip


def make_outline(architecture: str) -> PreTrainedModel:
    model_type, settings = MODELS[architecture]
    config = AutoConfig.for_model(model_type, **BASE_CONFIG | SIZES | {"tie_word_embeddings": False} | settings)
    model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    return model.eval()  # type: ignore[no-any-return]


def rename_tensors(architecture: str, model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors of the file. Their values are anything that a file could hold."""
    state = {name: torch.randn(value.shape) for name, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    if architecture == "qwen35moe":
        names = {rename_hybrid(name): name for name in state if not name.endswith("gate_up_proj")}
    else:
        reader: Any = older_reader
        processor = reader.TENSOR_PROCESSORS.get(architecture, reader.TensorProcessor)(config={})
        names = reader.get_gguf_hf_weights_map(model, processor)
        names = {new: old for new, old in names.items() if old in state and "gate_up" not in old}
    for new, old in names.items():
        value = state.pop(old)
        value = -value.abs() if new.endswith("ssm_a") else value
        name = f"{new}.weight" if new.endswith("_exps") else new
        value = value.squeeze(1) if name.endswith("ssm_conv1d.weight") else value
        yield name, value.squeeze(0) if name.endswith("ffn_gate_inp_shexp.weight") else value
    for name, value in state.items():
        assert name.endswith("gate_up_proj"), name
        for part, rows in zip(("gate", "up"), value.chunk(2, 1), strict=True):
            yield f"blk.{name.split('.')[2]}.ffn_{part}_exps.weight", rows


def rename_hybrid(name: str) -> str:
    prefix, name = (
        ("", name) if not name.startswith("model.layers.") else (f"blk.{name.split('.')[2]}.", name.split(".", 3)[3])
    )
    module = name.removesuffix(".weight")
    return prefix + HYBRID_NAMES[module] + (".weight" if name.endswith(".weight") else "")


def write_folder(architecture: str, folder: Path) -> PreTrainedModel:
    """Writes config.json and a file whose matrices have all types in turn. Returns a model of that shape."""
    torch.manual_seed(4)
    model = make_outline(architecture)
    config = model.config
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    writer = gguf.GGUFWriter(folder / "model.gguf", architecture)
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    kinds = cycle(KINDS if architecture == "qwen35moe" else OLDER_KINDS)
    for name, value in rename_tensors(architecture, model):
        kind = next(kinds) if value.ndim > 1 and value.shape[-1] % 32 == 0 else Types.F32
        if value.ndim == 3 and "down" not in name:
            kind = Types.Q8_0  # the newer reader joins gate and up of one type only
        writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(value.numpy()), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def read_parameter(model: nn.Module, name: str) -> Tensor:
    """Returns a parameter, wherever the model keeps it."""
    parent, _, leaf = name.rpartition(".")
    module = model.get_submodule(parent)
    if isinstance(module, StoredExperts) and leaf in module.weights:
        return torch.stack([module.read_weight(leaf, index) for index in range(module.num_experts)])
    value: Tensor = getattr(module, leaf)
    return value


@pytest.mark.parametrize("architecture", MODELS)
def test_weights_have_the_bits_that_transformers_reads(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [name for name, _ in write_folder(architecture, tmp_path).named_parameters()]
    mapped: Any = load_model(tmp_path, device="cpu")[0]
    monkeypatch.setattr(decoded_checkpoint, "find_spec", lambda _: None)
    whole: Any = load_model(tmp_path, device="cpu")[0]
    assert not any(isinstance(module, MmapLinear) for module in whole.modules())
    assert len(names) > 10
    for name in names:
        assert torch.equal(read_parameter(mapped, name), read_parameter(whole, name)), name
    linears = [module for module in mapped.modules() if isinstance(module, nn.Linear) and module.out_features > 1]
    assert all(isinstance(module, MmapLinear) and isinstance(module.mapped, QuantizedMmapWeight) for module in linears)
    embedding = mapped.get_input_embeddings()
    ids = torch.tensor([[5, 0, 95], [5, 7, 5]])
    assert torch.equal(embedding(ids), whole.get_input_embeddings()(ids))
    in_memory = [name for name, value in mapped.named_parameters() if value.numel() >= 96 * 64]
    is_scaled = type(whole.get_input_embeddings()) is not nn.Embedding  # its class may compute anything
    assert in_memory == (["model.embed_tokens.weight"] if is_scaled else [])


@pytest.fixture
def folder_of(tmp_path: Path) -> Callable[[str], Path]:
    def write(architecture: str) -> Path:
        write_folder(architecture, tmp_path)
        return tmp_path

    return write


def test_mixture_is_packed_from_the_file(folder_of: Callable[[str], Path]) -> None:
    core = build_core(folder_of("qwen3moe"), EngineOptions(threads=1, force_quantization=True))
    assert "matrices in int8" in core.info.description and "experts in int8" in core.info.description


def test_file_with_other_names_is_left_to_transformers(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of("llama")
    from antiphon.engine.checkpoint.gguf import tensor_files

    def fail(*_: Any) -> Any:
        raise KeyError("token_embd")

    monkeypatch.setattr(tensor_files, "read_gguf_weights", fail)
    model: Any = load_model(folder, device="cpu")[0]
    assert not any(isinstance(module, MmapLinear) for module in model.modules())
