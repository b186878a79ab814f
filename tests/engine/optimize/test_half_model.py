"""Checkpoints in bf16 and fp16 on a CPU: weights of 16 bits in memory, and the tokens of transformers in fp32."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from antiphon.engine.builder import build_core
from antiphon.engine.errors import LoadError
from antiphon.engine.kernels.half_linear import HALF_DTYPES, PackedHalfWeight
from antiphon.engine.load.loader import load_model
from antiphon.engine.load.mmap_weights import MmapLinear
from antiphon.engine.optimize.decoder_layer import FusedDecoderLayer
from antiphon.engine.optimize.linears import OneDnnLinear, PackedLinear
from antiphon.engine.optimize.validation import reference_logits
from antiphon.engine.options import EngineOptions
from antiphon.engine.scheduler.core import Core
from tests.engine.kernel_builds import require_kernels
from tests.engine.tiny_models import copy_tiny_model, join_tokens, make_job, make_prompts, run_jobs

FAMILIES = ["qwen3", "llama", "mistral", "mixtral", "gpt_oss", "olmo", "gemma2"]
NUM_TOKENS = 16

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    require_kernels()


@pytest.fixture(scope="module")
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    @functools.cache
    def save(family: str, dtype: torch.dtype = torch.bfloat16) -> Path:
        folder = tmp_path_factory.mktemp(family)
        copy_tiny_model(family).to(dtype).save_pretrained(folder)
        return folder

    return save


def build_tiny_core(folder: Path, **options: Any) -> Core:
    return build_core(folder, EngineOptions(device="cpu", threads=1, **options))


def find_kernels(core: Core) -> list[Any]:
    """Returns the kernel of every packed layer, those of merged groups and of fused decoder layers included."""
    model: nn.Module = core.forward.model  # type: ignore[attr-defined]
    layers = [getattr(module, "merged", None) for module in model.modules()]
    linears = {id(layer.linear): layer.linear for layer in layers if layer is not None}
    return [*linears.values(), *(module for module in model.modules() if isinstance(module, PackedLinear))]


@torch.inference_mode()
def generate_in_fp32(folder: Path, prompt: list[int]) -> list[int]:
    model: Any = load_model(folder, device="cpu", dtype="float32")[0]
    ids = torch.tensor([prompt])
    output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_TOKENS, do_sample=False)
    return output[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", HALF_DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_generate_alone_and_in_a_batch(checkpoint: Any, family: str, dtype: torch.dtype) -> None:
    folder, prompts = checkpoint(family, dtype), make_prompts(3, 30, 1, 9)
    expected = [generate_in_fp32(folder, prompt) for prompt in prompts]
    core = build_tiny_core(folder, max_num_seqs=4, max_batched_tokens=11, enable_prefix_caching=False)
    assert core.info.dtype == "float32" and f"packed in {str(dtype).removeprefix('torch.')}" in core.info.description
    jobs = [make_job(prompt, str(n), max_tokens=NUM_TOKENS) for n, prompt in enumerate(prompts)]
    alone = [join_tokens(run_jobs(core, job)[job.id]) for job in jobs]
    batched = run_jobs(core, *jobs)
    assert alone == expected and [join_tokens(batched[job.id]) for job in jobs] == expected


@pytest.mark.parametrize("dtype", HALF_DTYPES)
def test_every_weight_of_a_linear_layer_takes_two_bytes(checkpoint: Any, dtype: torch.dtype) -> None:
    core = build_tiny_core(checkpoint("qwen3", dtype))
    model: nn.Module = core.forward.model  # type: ignore[attr-defined]
    assert not any(isinstance(module, MmapLinear) for module in model.modules())
    names = [name for name, parameter in model.named_parameters() if parameter.ndim > 1]
    assert all("embed" in name for name in names)
    for layer in find_kernels(core):
        packed = layer.kernel.packed
        assert isinstance(packed, PackedHalfWeight) and packed.weights.dtype is dtype
        assert packed.weights[:, : -(-packed.inputs // 32) * 32].nbytes == packed.weights.nbytes
        assert packed.weights.numel() <= (packed.outputs + 64) * (packed.inputs + 32)


@pytest.mark.parametrize("dtype", HALF_DTYPES)
def test_fused_decoder_layers_equal_their_parts(checkpoint: Any, dtype: torch.dtype) -> None:
    core = build_tiny_core(checkpoint("qwen3", dtype))
    model: Any = core.forward.model  # type: ignore[attr-defined]
    assert all(isinstance(layer, FusedDecoderLayer) for layer in model.model.layers)
    fused_logits = reference_logits(core.forward, model)
    for index, layer in enumerate(model.model.layers):
        model.model.layers[index] = layer.original
    assert torch.equal(fused_logits, reference_logits(core.forward, model))


@pytest.mark.parametrize("options", [{"dtype": "float32"}, {"compile_kernels": False}])
def test_weights_are_fp32_on_request_and_without_compiled_kernels(checkpoint: Any, options: Any) -> None:
    core = build_tiny_core(checkpoint("llama"), **options)
    assert all(isinstance(layer.kernel, OneDnnLinear) for layer in find_kernels(core))
    assert "packed" in core.info.description and "bfloat16" not in core.info.description


def test_weights_stay_as_stored_if_packing_fails(checkpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = generate_in_fp32(checkpoint("llama"), [5, 6, 7])
    monkeypatch.setattr("antiphon.engine.optimize.pack_linears.plan_packing", lambda *_: [])
    core = build_tiny_core(checkpoint("llama"))
    model: nn.Module = core.forward.model  # type: ignore[attr-defined]
    assert not any(isinstance(module, MmapLinear) for module in model.modules())
    job = make_job([5, 6, 7], max_tokens=NUM_TOKENS)
    assert join_tokens(run_jobs(core, job)[job.id]) == expected


def test_model_that_fits_only_in_16_bits_is_loaded(checkpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoint("llama")
    size = (folder / "model.safetensors").stat().st_size
    monkeypatch.setattr("antiphon.engine.load.loader.free_memory", lambda device: int(1.5 * size))
    assert "packed in bfloat16" in build_tiny_core(folder).info.description
    with pytest.raises(LoadError, match="are free"):
        build_tiny_core(folder, dtype="float32")


@pytest.mark.parametrize("dtype", HALF_DTYPES)
def test_fp32_weights_of_a_mixed_checkpoint_are_not_rounded(
    checkpoint: Any, dtype: torch.dtype, tmp_path: Path
) -> None:
    source, name = checkpoint("qwen3", dtype), "model.layers.1.input_layernorm.weight"
    weights = load_file(source / "model.safetensors")
    weights[name] = weights[name].float() + torch.linspace(1e-4, 2e-4, len(weights[name]))
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    model: Any = build_tiny_core(tmp_path).forward.model  # type: ignore[attr-defined]
    assert torch.equal(model.model.layers[1].original.input_layernorm.weight, weights[name])
