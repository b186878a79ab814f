"""Random adapters in PEFT's documented layout, and models with an adapter merged into their weights."""

import copy
import functools
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from antiphon.engine.builder import build_core_from_model
from antiphon.engine.options import EngineOptions, LoraModule
from antiphon.engine.scheduler.core import Core
from tests.engine.tiny_models import BASE_CONFIG, DEVICE, FAMILY_CONFIGS

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    **FAMILY_CONFIGS,
    "phi3": ("Phi3Config", {}),
    "gpt2": ("GPT2Config", {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 256}),
    "bytes": ("LlamaConfig", {"vocab_size": 265, "eos_token_id": 264}),
    "tied": ("Qwen3Config", {"head_dim": 32, "tie_word_embeddings": True}),
}
"""Classes of configurations of tiny models, and their settings besides the common ones."""

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


@functools.cache
def base_model(family: str) -> PreTrainedModel:
    """Returns a tiny model as transformers builds it. All tests share it and must not modify it."""
    class_name, overrides = MODELS[family]
    torch.manual_seed(7)
    model: Any = AutoModelForCausalLM.from_config(getattr(transformers, class_name)(**BASE_CONFIG | overrides))  # type: ignore[no-untyped-call]
    return cast("PreTrainedModel", model.eval().to(DEVICE))


def linear_layers(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Returns inputs and outputs of the model's linear layers by name."""
    shapes = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            shapes[name] = (module.in_features, module.out_features)
        elif isinstance(module, Conv1D):
            shapes[name] = (int(module.weight.shape[0]), int(module.weight.shape[1]))
    return shapes


def make_adapter(
    folder: Path,
    family: str,
    seed: int,
    *,
    targets: Iterable[str] | str = (*ATTENTION, *MLP),
    rank: int = 4,
    alpha: float = 8.0,
    ranks: dict[str, int] | None = None,
    size: float = 0.2,
    **config: Any,
) -> Path:
    """Writes an adapter with random matrices for the layers whose names end like `targets`. Returns its folder.

    `ranks` maps names of layers to other ranks, as `rank_pattern` does.
    """
    written = targets if isinstance(targets, str) else list(targets)
    ends = [written] if isinstance(written, str) else written
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, (inputs, outputs) in linear_layers(base_model(family)).items():
        if written != "all-linear" and not any(name == end or name.endswith(f".{end}") for end in ends):
            continue
        if written == "all-linear" and name == "lm_head":
            continue
        layer_rank = next((value for key, value in (ranks or {}).items() if name.endswith(key)), rank)
        key = f"base_model.model.{name}"
        tensors[f"{key}.lora_A.weight"] = torch.randn(layer_rank, inputs, generator=generator) * size
        tensors[f"{key}.lora_B.weight"] = torch.randn(outputs, layer_rank, generator=generator) * size
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": alpha,
        "lora_dropout": 0.05,
        "modules_to_save": None,
        "r": rank,
        "rank_pattern": ranks or {},
        "alpha_pattern": {},
        "target_modules": written,
        "use_dora": False,
        "use_rslora": False,
    }
    write_adapter(folder, settings | config, tensors)
    return folder


def write_adapter(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Writes the two files of an adapter."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, folder / "adapter_model.safetensors")


@torch.no_grad()
def merge_adapter(family: str, folder: Path) -> PreTrainedModel:
    """Returns a copy of the model whose weights are W + scale · B · A, without any code of the engine."""
    from safetensors.torch import load_file

    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    tensors = load_file(folder / "adapter_model.safetensors")
    model = copy.deepcopy(base_model(family))
    for key in tensors:
        if not key.endswith(".lora_A.weight"):
            continue
        name = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        a, b = tensors[key], tensors[key.replace("lora_A", "lora_B")]
        alpha = next((v for k, v in config["alpha_pattern"].items() if name.endswith(k)), config["lora_alpha"])
        scale = alpha / math.sqrt(len(a)) if config["use_rslora"] else alpha / len(a)
        module = model.get_submodule(name)
        if name == "lm_head" and module.weight is model.get_input_embeddings().weight:
            module.weight = nn.Parameter(module.weight.clone())
        change = (scale * (b @ a)).to(DEVICE)
        weight = cast("Tensor", module.weight)
        weight.add_(change.T if isinstance(module, Conv1D) else change)
    return model


def build_adapted_core(family: str, folders: dict[str, Path], *, optimize: bool = True, **options: Any) -> Core:
    """Returns a core on a copy of the model with these adapters."""
    modules = tuple(LoraModule(name, str(folder)) for name, folder in folders.items())
    settings = EngineOptions(lora_modules=modules, **{"kv_cache_gib": 0.01, **options})
    return build_core_from_model(copy.deepcopy(base_model(family)), options=settings, optimize=optimize)


@torch.inference_mode()
def generate_merged(model: PreTrainedModel, prompt: list[int], count: int) -> list[int]:
    """Returns the output of transformers' own greedy `generate`."""
    ids = torch.tensor([prompt], device=model.device)
    output = cast("Any", model).generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False
    )
    return cast("list[int]", output[0, len(prompt) :].tolist())
