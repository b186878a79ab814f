"""A checkpoint with experts in MXFP4 is served from its own blocks and scales."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts, GptOssForCausalLM

from antiphon.engine.builder import build_core_from_model
from antiphon.engine.checkpoint.files import inspect_checkpoint
from antiphon.engine.errors import LoadError
from antiphon.engine.forward.experts.packed import PackedExperts
from antiphon.engine.forward.interface import SequenceInput
from antiphon.engine.forward.replace import relative_error
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.load.experts.mxfp4_checkpoint import Mxfp4StoredExperts
from antiphon.engine.load.experts.tensor_files import leave_out_experts
from antiphon.engine.load.load_method import check_memory, unpacks_weights
from antiphon.engine.load.loader import engine_info, load_model
from antiphon.engine.optimize.experts.pack import pack_mxfp4_experts
from antiphon.engine.options import EngineOptions
from tests.engine.kernel_builds import require_kernels
from tests.engine.mixtures import ROUNDING_ERROR, VOCAB_SIZE, choose_routes, make_rows, save_mxfp4_checkpoint

IDS = [(5 + 17 * n) % VOCAB_SIZE for n in range(40)]


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return require_kernels()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_mxfp4_checkpoint(tmp_path_factory.mktemp("gpt_oss"))


@pytest.fixture(scope="module")
def dequantized(folder: Path) -> nn.Module:
    """Returns the model as transformers itself loads it: in fp32, and dequantized."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def find_experts(model: nn.Module) -> list[nn.Module]:
    return [module for name, module in model.named_modules() if name.endswith(".experts")]


@torch.inference_mode()
def test_experts_that_stay_in_the_file_give_the_logits_of_the_dequantized_model(
    folder: Path, dequantized: nn.Module
) -> None:
    model, _ = load_model(folder, device="cpu")
    assert all(isinstance(module, Mxfp4StoredExperts) for module in find_experts(model))
    assert not any(parameter.ndim == 3 for parameter in model.parameters())
    ids = torch.tensor([IDS])
    assert relative_error(model(ids).logits, dequantized(ids).logits) < 1e-5


@pytest.mark.parametrize("compiled", [True, False])
@torch.inference_mode()
def test_packed_experts_equal_the_dequantized_ones_within_the_error_of_activations(
    folder: Path, dequantized: nn.Module, compiled: bool, kernels: Kernels
) -> None:
    model, _ = load_model(folder, device="cpu")
    assert pack_mxfp4_experts(model, kernels if compiled else None) == 2
    x, routes = make_rows(40), choose_routes(40, 4)
    for packed, expected in zip(find_experts(model), find_experts(dequantized), strict=True):
        assert isinstance(packed, PackedExperts) and packed.form == "mxfp4"
        result = packed(x, *routes)
        assert relative_error(result, expected(x, *routes)) < ROUNDING_ERROR
        assert torch.equal(packed(x[7:9], routes[0][7:9], routes[1][7:9]), result[7:9])


@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
@torch.inference_mode()
def test_a_core_keeps_the_experts_in_mxfp4_and_a_sequence_has_the_same_logits_in_any_batch(
    folder: Path, dequantized: nn.Module, quantization: str | None, kernels: Kernels
) -> None:
    del kernels
    model, checkpoint = load_model(folder, device="cpu", to_quantize=quantization is not None)
    options = EngineOptions(
        quantization=quantization,  # type: ignore[arg-type]
        force_quantization=True,
        max_model_len=128,
        kv_cache_gib=0.01,
    )
    core = build_core_from_model(model, checkpoint, options, optimize=True)
    assert f"{quantization or 'packed'}, experts in mxfp4" in core.info.description
    forward = core.forward

    def run(*batch: list[int]) -> Tensor:
        return forward.run([SequenceInput(forward.new_cache(len(ids)), ids, len(ids)) for ids in batch])

    logits = run(IDS)
    assert torch.equal(run(IDS[3:20], IDS, IDS[:5])[17:57], logits)
    expected = dequantized(torch.tensor([IDS])).logits[0]
    errors = (logits - expected).norm(dim=-1) / expected.norm(dim=-1)
    # A router may choose another expert where two are nearly equal, which changes a row as a whole.
    assert float(errors.median()) < (0.5 if quantization == "int4" else 0.05)


def test_greedy_tokens_equal_those_of_transformers(folder: Path, dequantized: nn.Module) -> None:
    """With experts that compute exactly: in the file, in fp32."""
    model, checkpoint = load_model(folder, device="cpu")
    core = build_core_from_model(model, checkpoint, EngineOptions(max_model_len=128, kv_cache_gib=0.01))
    forward = core.forward
    with torch.inference_mode():
        expected = dequantized(torch.tensor([IDS])).logits[0].argmax(-1)
        cache = forward.new_cache(len(IDS))
        assert torch.equal(forward.run([SequenceInput(cache, IDS, len(IDS))]).argmax(-1), expected)


def test_memory_is_counted_as_it_is_taken(folder: Path) -> None:
    checkpoint = inspect_checkpoint(folder)
    assert not unpacks_weights(checkpoint, "cpu")
    experts = 2 * 4 * (192 * 64 + 64 * 96)  # layers, experts, weights
    others = sum(count for name, count in checkpoint.elements_by_dtype.items() if name != "U8")
    assert checkpoint.weight_bytes(4) == experts * 17 // 32 + 4 * others
    check_memory(checkpoint, 4, checkpoint.weight_bytes(4))
    with pytest.raises(LoadError, match="for its weights, "):
        check_memory(checkpoint, 4, checkpoint.weight_bytes(4) - 1)
    model, _ = load_model(folder, device="cpu")
    description = engine_info(model, checkpoint).description
    assert description.startswith(f"GptOssForCausalLM, {(experts + others) / 1e6:.1f} M parameters")


def test_packed_experts_take_the_memory_of_their_blocks(folder: Path, kernels: Kernels) -> None:
    model, _ = load_model(folder, device="cpu")
    pack_mxfp4_experts(model, kernels)
    for module in find_experts(model):
        assert isinstance(module, PackedExperts)
        matrix = module.down  # 64 outputs, no padding of outputs; 96 inputs are padded to 128
        assert matrix.tensors["weights"].nbytes == 4 * 64 * 128 // 2
        assert matrix.tensors["group_scales"].nbytes == 4 * 64 * 128 // 32


@torch.inference_mode()
def test_no_layer_runs_by_a_kernel_that_fails_its_check(
    folder: Path, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = kernels.expert_layer.run
    monkeypatch.setattr(kernels.expert_layer, "run", lambda *arguments: 1.1 * original(*arguments))
    model, _ = load_model(folder, device="cpu")
    pack_mxfp4_experts(model, kernels)
    assert [module.is_compiled for module in find_experts(model)] == [False, False]


def test_missing_blocks_are_an_error_that_names_them(folder: Path, tmp_path: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.experts.down_proj_scales"]
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(LoadError, match=r"layers\.1\.mlp\.experts\.down_proj_scales is missing"):
        load_model(tmp_path, device="cpu")


def test_transformers_builds_whole_experts_again_after_an_error() -> None:
    def build_and_fail() -> None:
        with leave_out_experts(GptOssForCausalLM):
            built.append(GptOssExperts(config))
            raise ZeroDivisionError

    config, built = GptOssConfig(hidden_size=32, intermediate_size=32, num_local_experts=2), []
    with pytest.raises(ZeroDivisionError):
        build_and_fail()
    assert set(dict(built[0].named_parameters())) == {"gate_up_proj_bias", "down_proj_bias"}
    assert "down_proj" in dict(GptOssExperts(config).named_parameters())
