"""Models to quantize: weights stay in their files until they are packed, one after another, with the same result."""

import gc
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from antiphon.engine.builder import build_core, build_core_from_model
from antiphon.engine.kernels.row_major_linear import RowMajorLinearKernel
from antiphon.engine.load import load_method, mmap_weights
from antiphon.engine.load.loader import load_model
from antiphon.engine.load.mmap_weights import FileMappings, MmapEmbedding, MmapLinear, use_kernels
from antiphon.engine.optimize import pack_linears
from antiphon.engine.optimize.select import select_forward
from antiphon.engine.optimize.validation import reference_logits
from antiphon.engine.options import EngineOptions
from antiphon.engine.scheduler.core import Core
from tests.engine.kernel_builds import require_kernels
from tests.engine.tiny_models import copy_tiny_model

FAMILIES = ["qwen3", "llama", "mistral", "mixtral", "gpt_oss", "bloom"]
STORED_DTYPES = [torch.bfloat16, torch.float16, torch.float32]

pytestmark = pytest.mark.filterwarnings("ignore")


def save_checkpoint(folder: Path, family: str, dtype: torch.dtype = torch.bfloat16) -> Path:
    copy_tiny_model(family).to(dtype).save_pretrained(folder)
    return folder


def build_quantized_core(folder: Path, form: Any) -> Core:
    return build_core(folder, EngineOptions(quantization=form, force_quantization=True, threads=1))


def find_mapped(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, MmapLinear | MmapEmbedding)]


@pytest.mark.parametrize("family", FAMILIES)
def test_mapped_model_computes_what_the_model_in_memory_computes(family: str, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, family)
    whole, mapped = load_model(folder, device="cpu")[0], load_model(folder, device="cpu", to_quantize=True)[0]
    assert find_mapped(mapped) and not find_mapped(whole)
    assert "MmapLinear(in_features=" in repr(mapped) and "MmapEmbedding(" in repr(mapped)
    assert mapped.dtype == torch.float32
    assert all(p.dtype == torch.float32 for p in mapped.parameters())
    expected, logits = (reference_logits(select_forward(model), model) for model in (whole, mapped))
    assert torch.allclose(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", STORED_DTYPES)
def test_mapped_layers_compute_with_kernels_where_these_accept_their_weights(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = require_kernels()
    model = load_model(save_checkpoint(tmp_path, "qwen3", dtype), device="cpu", to_quantize=True)[0]
    layer = next(module for module in model.modules() if isinstance(module, MmapLinear))
    x = torch.randn(2, 9, layer.in_features)
    converted = layer(x)
    use_kernels(model, kernels)
    types: list[torch.dtype] = []
    multiply = RowMajorLinearKernel.multiply

    def record(self: RowMajorLinearKernel, x: Any, weight: Any, out: Any) -> None:
        types.append(weight.dtype)
        multiply(self, x, weight, out)

    monkeypatch.setattr(RowMajorLinearKernel, "multiply", record)
    monkeypatch.setattr(mmap_weights, "WEIGHTS_PER_PART", 7 * layer.in_features)
    assert torch.allclose(layer(x), converted, rtol=1e-5, atol=1e-5)
    assert types == ([] if dtype == torch.float32 else [dtype] * -(-layer.out_features // 7))


@pytest.mark.parametrize("dtype", STORED_DTYPES)
@pytest.mark.parametrize("form", ["int8", "int4"])
def test_packed_model_has_the_same_bits_mapped_or_in_memory(
    form: Any, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_checkpoint(tmp_path, "qwen3", dtype)
    logits = []
    for maps in (True, False):
        if not maps:
            monkeypatch.setattr(load_method, "_mappable_dtype", lambda checkpoint: None)
        core = build_quantized_core(folder, form)
        model: Any = core.forward.model  # type: ignore[attr-defined]
        assert bool(find_mapped(model)) == maps
        assert not any(isinstance(module, MmapLinear) for module in model.modules())
        logits.append(reference_logits(core.forward, model))
    assert torch.equal(*logits)


def count_large_tensors(num_elements: int) -> int:
    """Returns the number of live fp32 tensors of at least this size, views of one memory counted once."""
    gc.collect()
    tensors = [x for x in gc.get_objects() if isinstance(x, torch.Tensor) and x.dtype == torch.float32]
    return len({x.data_ptr() for x in tensors if x.device.type == "cpu" and x.numel() >= num_elements})


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_at_most_one_weight_is_in_memory_in_fp32_while_packing(
    form: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    folder = save_checkpoint(tmp_path, "qwen3")
    smallest = 32 * 48  # of the weights of linear layers
    counts: list[int] = []
    build = pack_linears.GroupPacker.build_kernel

    def count_and_build(*args: Any) -> Any:
        counts.append(count_large_tensors(smallest))
        return build(*args)

    monkeypatch.setattr(pack_linears.GroupPacker, "build_kernel", count_and_build)
    gc.freeze()  # what exists already is not counted, nor looked at
    request.addfinalizer(gc.unfreeze)
    build_quantized_core(folder, form)
    assert len(counts) == 9 and max(counts) <= 1, counts
    counts.clear()
    monkeypatch.setattr(load_method, "_mappable_dtype", lambda checkpoint: None)
    build_quantized_core(folder, form)
    assert max(counts) >= 10, counts  # the whole model
    assert all(more > fewer for more, fewer in pairwise(counts)), "the weights of a group are freed when it is packed"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_weights_are_in_the_file_and_can_be_read_again_after_their_release(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, "llama")
    expected = load_model(folder, device="cpu")[0].state_dict()
    model = load_model(folder, device="cpu", to_quantize=True)[0]
    mappings = FileMappings()
    for name, module in model.named_modules():
        if isinstance(module, MmapLinear | MmapEmbedding):
            assert mappings.contain(module.mapped.stored)
            for _ in range(2):
                assert torch.equal(module.weight, expected[f"{name}.weight"])
                module.mapped.release()
    assert not mappings.contain(torch.zeros(8))


def test_weight_that_the_model_reads_itself_is_in_memory_after_packing(tmp_path: Path) -> None:
    model: Any = load_model(save_checkpoint(tmp_path, "llama"), device="cpu", to_quantize=True)[0]
    layer = model.model.layers[0].mlp.down_proj
    forward = layer.__class__.forward
    reader = nn.Module()
    reader.linear = layer
    reader.forward = lambda x: nn.functional.linear(x, reader.linear.weight)  # type: ignore[method-assign]
    assert forward is MmapLinear.forward
    model.model.layers[0].mlp.down_proj = reader
    build_core_from_model(model, options=EngineOptions(quantization="int8", force_quantization=True), optimize=True)
    assert type(reader.linear) is nn.Linear and reader.linear.weight.dtype == torch.float32


def test_buffers_that_a_mapped_model_computes_are_not_rounded(tmp_path: Path) -> None:
    """Gemma computes the factor of its embeddings in the type in which it is built."""
    folder = save_checkpoint(tmp_path, "gemma2")
    whole, mapped = (load_model(folder, device="cpu", to_quantize=to_quantize)[0] for to_quantize in (False, True))
    assert find_mapped(mapped) and mapped.dtype == torch.float32
    expected, buffers = (dict(model.named_buffers()) for model in (whole, mapped))
    assert expected.keys() == buffers.keys() and any("embed_scale" in name for name in buffers)
    assert all(torch.equal(buffer, expected[name]) for name, buffer in buffers.items())
