"""Architectures that need more than transformers' class for causal language models."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, DeepseekV3Config, GptOssConfig, Qwen3Config
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from antiphon.engine.builder import build_core
from antiphon.engine.errors import LoadError
from antiphon.engine.forward.varlen import VarlenForward
from antiphon.engine.load.decoded_checkpoint import decodes_weights
from antiphon.engine.load.experts.mxfp4_checkpoint import Mxfp4StoredExperts
from antiphon.engine.load.load_method import check_memory, unpacks_weights
from antiphon.engine.load.loader import load_model
from antiphon.engine.options import EngineOptions
from tests.engine.tiny_models import BASE_CONFIG, copy_tiny_model, join_tokens, make_job, make_prompts, run_jobs
from tests.engine.vision_models import LATENT_ATTENTION, VISION_FAMILIES, build_vision_model

pytestmark = pytest.mark.filterwarnings("ignore")

NUM_OUTPUT_TOKENS = 12


@torch.inference_mode()
def generate(model: Any, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_OUTPUT_TOKENS, do_sample=False)
    return output[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


def serve_prompts(path: Path, prompts: list[list[int]], **options: Any) -> list[list[int]]:
    """Loads the folder, runs the prompts together, and returns the outputs. The model must be batched."""
    core = build_core(path, EngineOptions(kv_cache_gib=0.01, **options))
    assert isinstance(core.forward, VarlenForward)
    jobs = (make_job(prompt, str(n), max_tokens=NUM_OUTPUT_TOKENS) for n, prompt in enumerate(prompts))
    chunks = run_jobs(core, *jobs)
    return [join_tokens(chunks[str(n)]) for n in range(len(prompts))]


@pytest.mark.parametrize("family", [*VISION_FAMILIES, "mistral4"])
def test_text_of_a_vision_language_model_equals_transformers_generate(family: str, tmp_path: Path) -> None:
    model = build_vision_model(family)
    prompts = make_prompts(3, 30, 9, 17)
    expected = [generate(model, prompt) for prompt in prompts]
    model.save_pretrained(tmp_path)
    assert serve_prompts(tmp_path, prompts, keep_vision_tower=False) == expected


def update_config(path: Path, **changes: Any) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | changes))


def test_kimi_k2_is_loaded_as_deepseek_v3(tmp_path: Path) -> None:
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(DeepseekV3Config(**BASE_CONFIG | LATENT_ATTENTION)).eval()
    prompts = make_prompts(3, 30)
    expected = [generate(model, prompt) for prompt in prompts]
    model.save_pretrained(tmp_path)
    update_config(tmp_path, model_type="kimi_k2", auto_map={"AutoConfig": "configuration_deepseek.DeepseekV3Config"})
    (tmp_path / "configuration_deepseek.py").write_text("raise SystemExit('the code of a repository was run')")
    assert serve_prompts(tmp_path, prompts) == expected


@pytest.mark.parametrize(
    ("model_type", "message"),
    [
        ("musicgen", "is a speech model"),
        ("wav2vec2", "is a speech model"),
        ("qwen2_audio", "is not a text generation model"),
        ("vit", "is not a text generation model"),
        ("foonet", "does not know foonet"),
    ],
)
def test_model_type_without_text_generation_is_refused(tmp_path: Path, model_type: str, message: str) -> None:
    build_vision_model("llava").save_pretrained(tmp_path)
    update_config(tmp_path, model_type=model_type)
    with pytest.raises(LoadError, match=message):
        load_model(tmp_path, device="cpu")


def test_unknown_quantization_method_is_refused(tmp_path: Path) -> None:
    copy_tiny_model("llama").save_pretrained(tmp_path)
    update_config(tmp_path, quantization_config={"quant_method": "modelopt"})
    with pytest.raises(LoadError, match="does not know the quantization method modelopt"):
        load_model(tmp_path, device="cpu")


def store_as_mxfp4(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Replaces the experts' weights by random MXFP4 blocks. Returns the stored tensors, and those they stand for."""
    stored, unpacked = dict(tensors), dict(tensors)
    generator = torch.Generator().manual_seed(1)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = stored.pop(name).shape
        shape = (experts, outputs, inputs // 32)
        blocks = torch.randint(0, 256, (*shape, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(123, 127, shape, generator=generator, dtype=torch.uint8)
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        unpacked[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    return stored, unpacked


def store_as_fp8(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Stores the layers' matrices as FP8 in one block. Returns the stored tensors, and those they stand for."""
    stored, unpacked = dict(tensors), dict(tensors)
    for name in [name for name in tensors if name.endswith("proj.weight")]:
        scale = tensors[name].abs().max() / 448
        stored[name] = (tensors[name] / scale).to(torch.float8_e4m3fn)
        stored[f"{name}_scale_inv"] = scale.reshape(1, 1)
        unpacked[name] = stored[name].float() * scale
    return stored, unpacked


@pytest.mark.parametrize(
    ("config", "store", "quantization"),
    [
        (
            GptOssConfig(
                **BASE_CONFIG | {"hidden_size": 64, "intermediate_size": 64, "head_dim": 32, "num_local_experts": 4}
            ),
            store_as_mxfp4,
            {"quant_method": "mxfp4"},
        ),
        (
            Qwen3Config(**BASE_CONFIG | {"head_dim": 32}),
            store_as_fp8,
            {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        ),
    ],
    ids=["mxfp4", "fp8"],
)
def test_memory_of_a_quantized_checkpoint_is_counted_as_it_is_taken(
    tmp_path: Path, config: Any, store: Callable[..., Any], quantization: dict[str, Any]
) -> None:
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(tmp_path)
    stored, unpacked = store(load_file(tmp_path / "model.safetensors"))
    save_file(unpacked, tmp_path / "model.safetensors", metadata={"format": "pt"})
    prompts = make_prompts(3, 30)
    expected = [generate(AutoModelForCausalLM.from_pretrained(tmp_path), prompt) for prompt in prompts]
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    update_config(tmp_path, quantization_config=quantization)
    assert serve_prompts(tmp_path, prompts) == expected

    loaded, checkpoint = load_model(tmp_path, device="cpu")
    experts = [module for module in loaded.modules() if isinstance(module, Mxfp4StoredExperts)]
    kept = [tensor for held in experts for part in (held.weights, held.scales, held.biases) for tensor in part.values()]
    taken = sum(tensor.nbytes for tensor in [*loaded.parameters(), *kept])
    if decodes_weights(checkpoint, "cpu"):  # they stay in the files until they are packed into as many bits
        assert taken < sum(tensor.nbytes for tensor in stored.values())
        taken = sum(tensor.nbytes for tensor in stored.values())
    needed = checkpoint.weight_bytes(4, unpacks=unpacks_weights(checkpoint, "cpu"))
    assert taken <= needed <= 1.05 * taken
    with pytest.raises(LoadError, match=f"once {quantization['quant_method']} is unpacked"):
        check_memory(checkpoint, 4, needed - 1, unpacks=True)
