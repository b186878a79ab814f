"""Fused decoder layers: bit-identical to the separate modules, and used only for layers of a supported kind."""

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from antiphon.engine.builder import build_core_from_model
from antiphon.engine.forward.interface import SequenceInput
from antiphon.engine.forward.varlen import VarlenForward
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.optimize.decoder_layer import FusedDecoderLayer, fuse_decoder_layers
from antiphon.engine.options import EngineOptions
from tests.engine.kernel_builds import require_kernels
from tests.engine.tiny_models import BASE_CONFIG, copy_tiny_model, join_tokens, make_job, make_prompts, run_jobs

pytestmark = pytest.mark.filterwarnings("ignore")

FUSED_FAMILIES = ["qwen3", "llama", "mistral", "qwen2"]


def build_model(family: str) -> Any:
    if family != "qwen2":
        return copy_tiny_model(family)
    torch.manual_seed(7)  # Qwen2 is Llama's layer with biases; here its heads are wider.
    model: Any = AutoModelForCausalLM.from_config(transformers.Qwen2Config(**BASE_CONFIG | {"hidden_size": 128}))  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    return model.eval()


@pytest.fixture(autouse=True)
def inference_mode() -> Iterator[None]:
    require_kernels()
    with torch.inference_mode():
        yield


def optimize_model(model: Any, **options: Any) -> VarlenForward:
    forward = build_core_from_model(
        model, options=EngineOptions(**{"quantization": "int8"} | options), optimize=True
    ).forward
    assert isinstance(forward, VarlenForward)
    return forward


def find_fused_layers(model: nn.Module) -> list[FusedDecoderLayer]:
    return [module for module in model.modules() if isinstance(module, FusedDecoderLayer)]


def restore_original_layers(model: Any) -> None:
    """Puts the original layers, which share their modules with the fused ones, back into the model."""
    for index, layer in enumerate(model.model.layers):
        model.model.layers[index] = layer.original


def run_in_chunks(forward: VarlenForward, texts: list[list[int]], generator: random.Random) -> list[Tensor]:
    """Returns all logits of the texts, which run together in random prefill chunks."""
    pending: list[list[SequenceInput]] = []
    for text in texts:
        cache, cuts = forward.new_cache(0), sorted(generator.sample(range(1, len(text)), min(4, len(text) - 1)))
        pending.append([SequenceInput(cache, text[a:b], b - a) for a, b in pairwise([0, *cuts, len(text)])])
    rows: list[list[Tensor]] = [[] for _ in texts]
    while any(pending):
        work = [(n, pieces.pop(0)) for n, pieces in enumerate(pending) if pieces]
        logits = forward.run([item for _, item in work]).split([item.num_logits for _, item in work])
        for (n, _), part in zip(work, logits, strict=True):
            rows[n].append(part)
    return [torch.cat(parts) for parts in rows]


@pytest.mark.parametrize("kv_dtype", ["float32", None])
@pytest.mark.parametrize("family", FUSED_FAMILIES)
def test_fused_layers_are_bit_identical_to_their_modules(family: str, kv_dtype: Any) -> None:
    model = build_model(family)
    forward = optimize_model(model, kv_cache_dtype=kv_dtype)
    assert len(find_fused_layers(model)) == BASE_CONFIG["num_hidden_layers"]
    texts = make_prompts(70, 1, 2, 40, 16, 33)
    expected = run_in_chunks(forward, texts, random.Random(1))
    for text, logits in zip(texts, expected, strict=True):
        assert torch.equal(run_in_chunks(forward, [text], random.Random(len(text)))[0], logits)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert all(map(torch.equal, run_in_chunks(forward, texts, random.Random(2)), expected))
    finally:
        torch.set_num_threads(before)
    restore_original_layers(model)
    assert all(map(torch.equal, run_in_chunks(forward, texts, random.Random(3)), expected))


@pytest.mark.parametrize("family", ["gpt_oss", "mixtral", "gemma2"])
def test_unsupported_layers_are_not_fused(family: str) -> None:
    model = build_model(family)
    optimize_model(model)
    assert not find_fused_layers(model)


@pytest.mark.parametrize("change", ["pack", "quantize"])
def test_layers_without_int8_weights_are_not_fused(change: str) -> None:
    model = build_model("qwen3")
    optimize_model(model, quantization=None, pack_linears=change == "quantize")
    assert not find_fused_layers(model)


class HalvedNorm(nn.Module):
    """A norm whose output is halved."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x) / 2  # type: ignore[no-any-return]


def alter_layer(layer: Any, alteration: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = type(layer).forward
    if alteration == "forward":
        monkeypatch.setattr(type(layer), "forward", lambda self, x, **options: original(self, x, **options) + x)
    elif alteration == "norm":
        layer.input_layernorm = HalvedNorm(layer.input_layernorm)
    elif alteration == "scale":
        layer.self_attn.scaling *= 1.5
    elif alteration == "hook":
        layer.mlp.register_forward_hook(lambda *_: None)
        layer.register_forward_hook(lambda *_: None)
    elif alteration == "parameter":
        layer.self_attn.sinks = nn.Parameter(torch.zeros(4))
    elif alteration == "nameless":
        del layer.self_attn.scaling
    elif alteration == "wide":
        monkeypatch.setattr("antiphon.engine.optimize.decoder_layer.MAX_HEAD_DIM", 16)
    elif alteration == "many":
        monkeypatch.setattr("antiphon.engine.optimize.decoder_layer.MAX_QUERY_GROUPS", 1)
    elif alteration == "fault":
        monkeypatch.setattr("antiphon.engine.optimize.decoder_layer.FusedDecoderLayer._run_fused", lambda *_: 1 / 0)


@pytest.mark.parametrize(
    ("alteration", "num_unfused"),
    [
        ("forward", 2),
        ("norm", 1),
        ("hook", 1),
        ("parameter", 1),
        ("nameless", 1),
        ("wide", 2),
        ("many", 2),
        ("fault", 2),
        ("scale", 0),
        ("nothing", 0),
    ],
)
def test_altered_layers_are_not_fused(
    compiled_kernels: Kernels, alteration: str, num_unfused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_model("qwen3")
    optimize_model(model)
    restore_original_layers(model)
    alter_layer(model.model.layers[1], alteration, monkeypatch)
    assert fuse_decoder_layers(model, compiled_kernels) == 2 - num_unfused


def test_fused_layer_runs_the_original_for_other_attention() -> None:
    model = build_model("llama")
    optimize_model(model)
    model.set_attn_implementation("sdpa")
    ids = torch.tensor([make_prompts(30)[0]])
    logits = model(input_ids=ids).logits
    assert len(find_fused_layers(model)) == 2
    restore_original_layers(model)
    assert torch.equal(model(input_ids=ids).logits, logits)


def test_output_of_fused_layers_does_not_depend_on_the_batch() -> None:
    model = build_model("qwen3")
    core = build_core_from_model(
        model, options=EngineOptions(quantization="int8", max_num_seqs=3, max_batched_tokens=8), optimize=True
    )
    jobs = [
        make_job(prompt, str(n), max_tokens=12, seed=n, temperature=1.0)
        for n, prompt in enumerate(make_prompts(3, 30, 1, 9, 40))
    ]
    expected = run_jobs(core, *jobs)
    for job in jobs:
        assert join_tokens(run_jobs(core, job)[job.id]) == join_tokens(expected[job.id])
