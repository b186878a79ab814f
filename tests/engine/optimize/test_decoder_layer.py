"""A layer in one call: the same bits as its parts, where a layer is one that is known, and only there."""

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from antiphon.engine.builder import build_core_from_model
from antiphon.engine.kernels.bindings import Kernels
from antiphon.engine.model.forward import SequenceInput
from antiphon.engine.model.varlen import VarlenForward
from antiphon.engine.optimize.decoder_layer import FusedDecoderLayer, fuse_decoder_layers
from antiphon.engine.options import EngineOptions
from tests.engine.tiny_models import BASE, drain, fresh, job_of, prompts, tokens_of

pytestmark = pytest.mark.filterwarnings("ignore")

KNOWN = ["qwen3", "llama", "mistral", "qwen2"]


def model_of(family: str) -> Any:
    if family != "qwen2":
        return fresh(family)
    torch.manual_seed(7)  # Llama's layer with biases and wide heads
    model: Any = AutoModelForCausalLM.from_config(transformers.Qwen2Config(**BASE | {"hidden_size": 128}))  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    return model.eval()


@pytest.fixture(autouse=True)
def inference(compiled: Kernels) -> Iterator[None]:
    if not compiled.activation_levels:
        pytest.skip("there are no int8 products for this CPU")
    with torch.inference_mode():
        yield


def tuned(model: Any, **options: Any) -> VarlenForward:
    forward = build_core_from_model(
        model, options=EngineOptions(**{"quantization": "int8"} | options), optimize=True
    )._forward
    assert isinstance(forward, VarlenForward)
    return forward


def layers(model: nn.Module) -> list[FusedDecoderLayer]:
    return [module for module in model.modules() if isinstance(module, FusedDecoderLayer)]


def taken_back(model: Any) -> None:
    """Its own layers, made of the same parts."""
    for place, layer in enumerate(model.model.layers):
        model.model.layers[place] = layer.original


def said(forward: VarlenForward, texts: list[list[int]], chance: random.Random) -> list[Tensor]:
    """All logits of texts that come in pieces, together."""
    left: list[list[SequenceInput]] = []
    for text in texts:
        state, inner = forward.new_cache(0), sorted(chance.sample(range(1, len(text)), min(4, len(text) - 1)))
        left.append([SequenceInput(state, text[a:b], b - a) for a, b in pairwise([0, *inner, len(text)])])
    rows: list[list[Tensor]] = [[] for _ in texts]
    while any(left):
        work = [(n, pieces.pop(0)) for n, pieces in enumerate(left) if pieces]
        logits = forward.run([item for _, item in work]).split([item.num_logits for _, item in work])
        for (n, _), part in zip(work, logits, strict=True):
            rows[n].append(part)
    return [torch.cat(parts) for parts in rows]


@pytest.mark.parametrize("kv_dtype", ["float32", None])
@pytest.mark.parametrize("family", KNOWN)
def test_it_says_what_its_parts_say_to_the_bit(family: str, kv_dtype: Any) -> None:
    model = model_of(family)
    forward = tuned(model, kv_cache_dtype=kv_dtype)
    assert len(layers(model)) == BASE["num_hidden_layers"]
    texts = prompts(70, 1, 2, 40, 16, 33)
    together = said(forward, texts, random.Random(1))
    for text, logits in zip(texts, together, strict=True):
        assert torch.equal(said(forward, [text], random.Random(len(text)))[0], logits)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert all(map(torch.equal, said(forward, texts, random.Random(2)), together))
    finally:
        torch.set_num_threads(before)
    taken_back(model)
    assert all(map(torch.equal, said(forward, texts, random.Random(3)), together))


@pytest.mark.parametrize("family", ["gpt_oss", "mixtral", "gemma2"])
def test_layers_of_another_kind_stay(family: str) -> None:
    model = model_of(family)
    tuned(model)
    assert not layers(model)


@pytest.mark.parametrize("change", ["pack", "quantize"])
def test_layers_that_are_not_in_int8_stay(change: str) -> None:
    model = model_of("qwen3")
    tuned(model, quantization=None, pack_linears=change == "quantize")
    assert not layers(model)


class Halved(nn.Module):
    """Norms a token, but does something of its own."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x) / 2  # type: ignore[no-any-return]


def altered(layer: Any, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = type(layer).forward
    if way == "forward":
        monkeypatch.setattr(type(layer), "forward", lambda self, x, **named: original(self, x, **named) + x)
    elif way == "norm":
        layer.input_layernorm = Halved(layer.input_layernorm)
    elif way == "scale":
        layer.self_attn.scaling *= 1.5
    elif way == "hook":
        layer.mlp.register_forward_hook(lambda *_: None)
        layer.register_forward_hook(lambda *_: None)
    elif way == "parameter":
        layer.self_attn.sinks = nn.Parameter(torch.zeros(4))
    elif way == "nameless":
        del layer.self_attn.scaling
    elif way == "wide":
        monkeypatch.setattr("antiphon.engine.optimize.decoder_layer.MAX_HEAD_DIM", 16)
    elif way == "many":
        monkeypatch.setattr("antiphon.engine.optimize.decoder_layer.MAX_QUERY_GROUPS", 1)
    elif way == "fault":
        monkeypatch.setattr("antiphon.engine.optimize.decoder_layer.FusedDecoderLayer._run_fused", lambda *_: 1 / 0)


@pytest.mark.parametrize(
    ("way", "stays"),
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
def test_a_layer_that_does_something_else_stays(
    compiled: Kernels, way: str, stays: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of("qwen3")
    tuned(model)
    taken_back(model)
    altered(model.model.layers[1], way, monkeypatch)
    assert fuse_decoder_layers(model, compiled) == 2 - stays


def test_who_calls_it_otherwise_gets_the_original() -> None:
    model = model_of("llama")
    tuned(model)
    model.set_attn_implementation("sdpa")
    ids = torch.tensor([prompts(30)[0]])
    logits = model(input_ids=ids).logits
    assert len(layers(model)) == 2
    taken_back(model)
    assert torch.equal(model(input_ids=ids).logits, logits)


def test_jobs_say_the_same_whatever_else_is_running() -> None:
    model = model_of("qwen3")
    core = build_core_from_model(
        model, options=EngineOptions(quantization="int8", max_num_seqs=3, max_batched_tokens=8), optimize=True
    )
    asked = [
        job_of(prompt, str(n), max_tokens=12, seed=n, temperature=1.0)
        for n, prompt in enumerate(prompts(3, 30, 1, 9, 40))
    ]
    together = drain(core, *asked)
    for job in asked:
        assert tokens_of(drain(core, job)[job.id]) == tokens_of(together[job.id])
