"""Experts of a checkpoint in 16 bits stay in its files until they are packed."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM

from antiphon.engine.errors import LoadError
from antiphon.engine.forward.experts.packed import PackedExperts
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.load.experts.stored import StoredExperts
from antiphon.engine.load.experts.tensor_files import ExpertTensors, leave_out_experts
from antiphon.engine.load.loader import load_model
from antiphon.engine.optimize.experts.pack import pack_experts
from tests.engine.kernel_builds import require_kernels
from tests.engine.mixtures import FAMILY_CONFIGS, VOCAB_SIZE, make_mixture, save_mixture

IDS = torch.tensor([[(5 + 17 * n) % VOCAB_SIZE for n in range(20)]])


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return require_kernels()


def find_stored(model: nn.Module) -> list[StoredExperts]:
    return [module for module in model.modules() if isinstance(module, StoredExperts)]


def find_packed(model: nn.Module) -> list[PackedExperts]:
    return [module for module in model.modules() if isinstance(module, PackedExperts)]


@pytest.mark.parametrize("family", FAMILY_CONFIGS)
@torch.inference_mode()
def test_experts_in_the_files_give_the_logits_of_the_whole_model(family: str, tmp_path: Path, kernels: Kernels) -> None:
    save_mixture(family, tmp_path)
    model, _ = load_model(tmp_path, device="cpu", to_quantize=True)
    stored = find_stored(model)
    assert stored and all(isinstance(held, ExpertTensors) for module in stored for held in module.weights.values())
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert torch.allclose(model(IDS).logits, reference(IDS).logits, atol=1e-4)
    assert pack_experts(model, "int8", kernels) == pack_experts(reference, "int8", kernels) == len(stored)
    for packed, other in zip(find_packed(model), find_packed(reference), strict=True):
        tensors = other.flatten()
        assert all(torch.equal(tensor, tensors[name]) for name, tensor in packed.flatten().items())


@pytest.mark.parametrize("lost", ["model.layers.1.mlp.experts.2.up_proj.weight", "model.layers.1.mlp.experts.5."])
def test_a_checkpoint_without_some_experts_is_refused(lost: str, tmp_path: Path) -> None:
    save_mixture("qwen3_moe", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(lost)}
    assert len(kept) < len(tensors)
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(LoadError, match=r"cannot be loaded|has the shape 5 x 64 x 96"):
        load_model(tmp_path, device="cpu", to_quantize=True)


def test_an_expert_of_another_shape_is_named(tmp_path: Path) -> None:
    save_mixture("qwen3_moe", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.experts.2.down_proj.weight"
    tensors[name] = tensors[name][:, :-1].contiguous()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(LoadError, match=f"the weight {name} has the shape 64 x 95, and .*experts.0.* 64 x 96"):
        load_model(tmp_path, device="cpu", to_quantize=True)


def test_a_model_is_built_whole_again_after_an_error() -> None:
    model_class = type(make_mixture("mixtral"))

    def build_and_fail() -> None:
        with leave_out_experts(model_class):
            names.extend(name for name, _ in make_mixture("mixtral").named_parameters())
            raise ZeroDivisionError

    names: list[str] = []
    with pytest.raises(ZeroDivisionError):
        build_and_fail()
    assert names and not any("experts" in name for name in names)
    assert any("experts.down_proj" in name for name, _ in make_mixture("mixtral").named_parameters())
