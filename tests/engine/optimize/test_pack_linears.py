"""Packed models: the same tokens as transformers' own, rows that know nothing of each other, and what is left alone."""

import random
import re
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from antiphon.engine.builder import INT8_PROMPT_BLOCK_TOKENS, build_core_from_model
from antiphon.engine.errors import LoadError
from antiphon.engine.kernels.library import load_kernels
from antiphon.engine.model.forward import SequenceInput
from antiphon.engine.model.select import reference_logits, select_forward
from antiphon.engine.model.varlen import VarlenForward
from antiphon.engine.optimize.linears import MergedLinearSlice, PackedLinear
from antiphon.engine.optimize.pack_linears import pack_linears
from antiphon.engine.optimize.rms_norm import FusedRMSNorm, replace_norms
from antiphon.engine.options import EngineOptions
from antiphon.engine.scheduler.core import Core
from tests.counts import FULL_COUNTS
from tests.engine.tiny_models import VOCAB, drain, fresh, generate, job_of, prompts, run, tokens_of

POSITIONS = 10_000 if FULL_COUNTS else 500
DENSE = ["qwen3", "llama", "mistral", "gemma2"]
MIXED = ["mixtral", "gpt_oss"]

pytestmark = pytest.mark.filterwarnings("ignore")


def tuned(family: str, **options: Any) -> Core:
    return build_core_from_model(fresh(family), options=EngineOptions(**options), optimize=True)


def packed(family: str, quantize: Any = None, *, deterministic: bool = False) -> VarlenForward:
    model = fresh(family)
    forward = select_forward(model, kernels=load_kernels())
    assert isinstance(forward, VarlenForward)
    done = pack_linears(model, lambda: reference_logits(forward, model), quantize, load_kernels())
    if deterministic:
        forward.make_deterministic(independent_rows=done.is_complete)
    return forward


def logits_of(forward: VarlenForward, texts: list[list[int]], cuts: random.Random | None, together: int) -> Any:
    """Logits of every position, text by text; fed whole, or in random pieces beside up to ``together`` others."""
    rows: list[list[Any]] = [[] for _ in texts]
    states = [forward.new_cache(len(text)) for text in texts]
    fed = [0] * len(texts)
    with torch.inference_mode():
        while any(count < len(text) for count, text in zip(fed, texts, strict=True)):
            active = [n for n, text in enumerate(texts) if fed[n] < len(text)]
            active = active[:1] if cuts is None else cuts.sample(active, min(len(active), together))
            sizes = [
                len(texts[n]) if cuts is None else min(cuts.choice([1, 1, 3, 9]), len(texts[n]) - fed[n])
                for n in active
            ]
            work = [
                SequenceInput(states[n], texts[n][fed[n] : fed[n] + size], size)
                for n, size in zip(active, sizes, strict=True)
            ]
            for n, size, part in zip(active, sizes, forward.run(work).split(sizes), strict=True):
                rows[n].append(part)
                fed[n] += size
    return torch.cat([torch.cat(parts) for parts in rows])


def texts_of(total: int, length: int = 50) -> list[list[int]]:
    chance = random.Random(5)
    return [[chance.randrange(VOCAB) for _ in range(length)] for _ in range(total // length)]


@pytest.mark.parametrize("family", [*DENSE, *MIXED, "bloom", "lfm2"])
def test_greedy_equals_generate_with_packed_layers(family: str) -> None:
    asked = prompts(3, 30, 1, 9)
    truth = [generate(family, prompt, 16) for prompt in asked]
    core = tuned(family, max_num_seqs=3, max_batched_tokens=8)
    assert "packed" in core.info.description
    together = drain(core, *(job_of(prompt, str(n), max_tokens=16) for n, prompt in enumerate(asked)))
    assert [tokens_of(together[str(n)]) for n in range(len(asked))] == truth


def test_siblings_that_share_their_input_are_one_layer() -> None:
    model: Any = fresh("qwen3")
    forward = select_forward(model)
    norms = replace_norms(model)
    assert pack_linears(model, lambda: reference_logits(forward, model))[:2] == ("packed", True)
    layer = model.model.layers[1]
    assert all(isinstance(getattr(layer.self_attn, name), MergedLinearSlice) for name in ("q_proj", "k_proj", "v_proj"))
    assert isinstance(layer.mlp.up_proj, MergedLinearSlice) and isinstance(layer.mlp.down_proj, PackedLinear)
    assert isinstance(model.lm_head, PackedLinear) and isinstance(layer.self_attn.q_norm, FusedRMSNorm)
    assert norms == 2 * 4 + 1


class Odd(nn.Module):
    """Three layers that look as if they shared their input, and a way to use them."""

    def __init__(self, use: Any) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(8, 8) for _ in range(3))
        self.use = use

    def forward(self, x: Any) -> Any:
        return self.use(self, x)


def odd(use: Any) -> tuple[Odd, Any, Any, Any]:
    torch.manual_seed(1)
    model = Odd(use)
    x = torch.randn(6, 8)
    with torch.inference_mode():
        before = model(x)
        done = pack_linears(model, lambda: model(x))
        return model, done, before, model(x)


def _written_to(model: Any, x: Any) -> Any:
    x = x.clone()
    first = model.q_proj(x)
    x += 1
    return first + model.k_proj(x) + model.v_proj(x)


@pytest.mark.parametrize(
    ("use", "kind"),
    [
        (lambda m, x: m.q_proj(x) + m.k_proj(x) + m.v_proj(x), MergedLinearSlice),
        (lambda m, x: m.q_proj(x) + m.k_proj(x.clone()) + m.v_proj(x), PackedLinear),
        (lambda m, x: m.q_proj(x) + m.k_proj(m.q_proj(x)) + m.v_proj(x), PackedLinear),
        (lambda m, x: m.q_proj(x) + m.k_proj(x), PackedLinear),
        (_written_to, PackedLinear),
        (lambda m, x: x @ m.q_proj.weight + m.k_proj(x) + m.v_proj(x), nn.Linear),
        (lambda m, x: m.q_proj(x).view(-1) + m.k_proj(x).view(-1) + m.v_proj(x).view(-1), nn.Linear),
    ],
)
def test_layers_are_replaced_exactly_as_far_as_the_model_allows(use: Any, kind: type[nn.Module]) -> None:
    model, done, before, after = odd(use)
    assert {type(layer) for layer in (model.q_proj, model.k_proj, model.v_proj)} == {kind}
    assert torch.allclose(before, after, atol=1e-5)
    assert bool(done.description) == (kind is not nn.Linear)


@pytest.mark.parametrize("place", ["find_merged_groups", "_build_kernel"])
def test_a_failure_without_a_word_leaves_the_model_as_it_is(
    place: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(f"antiphon.engine.optimize.pack_linears.{place}", fail)
    model = fresh("llama")
    forward = select_forward(model)
    before = reference_logits(forward, model)
    pack_linears(model, lambda: reference_logits(forward, model))
    assert torch.equal(reference_logits(forward, model), before)
    assert "RuntimeError" in caplog.text


def test_a_model_in_bf16_is_left_alone_and_cannot_be_quantized(caplog: pytest.LogCaptureFixture) -> None:
    model = fresh("llama").to(torch.bfloat16)
    build_core_from_model(model, optimize=True)
    assert "packed weights are for fp32 on a CPU" in caplog.text
    with pytest.raises(LoadError, match="quantize"):
        build_core_from_model(model, options=EngineOptions(quantization="int8"), optimize=True)


@pytest.mark.parametrize("quantize", [None, "int8"])
@pytest.mark.parametrize("family", DENSE)
def test_rows_are_bit_identical_in_any_batch_if_the_text_is_cut_alike(family: str, quantize: Any) -> None:
    forward = packed(family, quantize)
    texts = texts_of(POSITIONS // 4, 25)
    alone = logits_of(forward, texts, None, 1)
    with torch.inference_mode():
        together = forward.run([SequenceInput(forward.new_cache(0), text, len(text)) for text in texts])
    assert torch.equal(alone, together)


@pytest.mark.parametrize("quantize", [None, "int8"])
@pytest.mark.parametrize("family", DENSE)
def test_deterministic_rows_are_bit_identical_however_the_text_is_cut(family: str, quantize: Any) -> None:
    forward = packed(family, quantize, deterministic=True)
    assert forward.batch_invariant and not forward.one_token_passes
    texts = texts_of(POSITIONS)
    assert torch.equal(logits_of(forward, texts, None, 1), logits_of(forward, texts, random.Random(3), together=7))


def as_scheduled(forward: VarlenForward, text: list[int], prompt: int, chance: random.Random | None) -> Any:
    """Logits of every position: the prompt whole or cut where a scheduler may, the rest one by one or as drafts."""
    own, rows, fed = forward.new_cache(0), [], 0
    while fed < len(text):
        if fed < prompt:
            blocks = 99 if chance is None else chance.randint(1, 3)
            size = min((fed // forward.prompt_alignment + blocks) * forward.prompt_alignment, prompt) - fed
            work = [SequenceInput(own, text[fed : fed + size], size)]
        else:
            size = 1 if chance is None else min(chance.choice([1, 1, 4]), len(text) - fed)
            work = [SequenceInput(own, text[fed : fed + size], size, num_generated=size)]
        if chance is not None:
            work += [
                SequenceInput(forward.new_cache(0), text[:other], 1) for other in chance.choices([1, 1, 2, 30], k=3)
            ]
        rows.append(forward.run(work)[:size])
        fed += size
    return torch.cat(rows)


@pytest.mark.parametrize("compile_", [True, False])
@pytest.mark.parametrize("family", DENSE)
def test_int8_rows_are_bit_identical_however_a_scheduler_cuts_the_prompt(family: str, compile_: bool) -> None:
    forward = tuned(family, quantization="int8", compile_kernels=compile_)._forward
    assert isinstance(forward, VarlenForward) and forward.prompt_alignment == (
        1 if forward.uses_kernels else INT8_PROMPT_BLOCK_TOKENS
    )
    known = family != "gemma2"  # its scores are bent
    assert forward.uses_kernels == (compile_ and known and load_kernels() is not None)
    chance = random.Random(3)
    with torch.inference_mode():
        for text in texts_of(POSITIONS, 100):
            prompt = chance.randint(1, 95)
            alone, crowded = (as_scheduled(forward, text, prompt, way) for way in (None, chance))
            assert torch.equal(alone, crowded)


@pytest.mark.parametrize("family", DENSE)
def test_int8_jobs_say_the_same_after_a_prompt_that_is_cached(family: str) -> None:
    core = tuned(family, quantization="int8", max_num_seqs=3, max_batched_tokens=20)
    jobs = [job_of(prompt, str(n), max_tokens=12, seed=n) for n, prompt in enumerate(prompts(40, 70, 33))]
    first, again = drain(core, *jobs), {job.id: drain(core, job)[job.id] for job in jobs}
    assert {name: tokens_of(said) for name, said in first.items()} == {
        name: tokens_of(said) for name, said in again.items()
    }
    grain = core._forward.prompt_alignment
    assert again["0"][0].cached_tokens == 39 - 39 % grain and again["1"][0].cached_tokens == 69 - 69 % grain


@pytest.mark.parametrize("quantize", [None, "int8"])
def test_without_it_cuts_change_next_to_nothing(quantize: Any) -> None:
    forward = packed("qwen3", quantize)
    texts = texts_of(POSITIONS)
    one, two = logits_of(forward, texts, None, 1), logits_of(forward, texts, random.Random(3), together=7)
    agreement = float((one.argmax(-1) == two.argmax(-1)).double().mean())
    print(
        f"{quantize}: {POSITIONS} positions, argmax agrees on {agreement:.2%}, largest difference {(one - two).abs().max():.2g}"
    )
    assert agreement >= (0.999 if quantize is None else 0.98)


@pytest.mark.parametrize("family", ["qwen3", *MIXED])
def test_deterministic_jobs_get_the_same_tokens_alone_and_in_a_random_crowd(family: str) -> None:
    asked = prompts(5, 26, 2, 12, 19)
    jobs = [
        job_of(p, str(n), max_tokens=10, temperature=1.0, seed=n, top_p=0.9 + 0.1 * (n % 2))
        for n, p in enumerate(asked)
    ]
    core = tuned(family, deterministic=True, max_num_seqs=3, max_batched_tokens=8)
    assert "deterministic" in core.info.description
    alone = [run(core, job) for job in jobs]
    other = tuned(family, deterministic=True, max_num_seqs=4, max_batched_tokens=5)
    crowd = drain(other, *jobs)
    assert [tokens_of(crowd[job.id]) for job in jobs] == alone


def test_int8_says_what_it_costs_and_leaves_experts_and_routers_alone(caplog: pytest.LogCaptureFixture) -> None:
    core = tuned("mixtral", quantization="int8")
    told = re.search(r"int8, (?:KV cache in float16, )?cosine of the logits with fp32 (0\.\d+)", core.info.description)
    assert told and float(told[1]) > 0.95  # the model is so small that a bit less, without VNNI, can be seen
    assert "6 weights stay fp32" in caplog.text  # two layers: a router and two tables of experts each
    assert run(core, job_of(prompts(4)[0], max_tokens=3))


@pytest.mark.parametrize("size", [64, 896, 2880, 5120, 16384])
def test_a_norm_is_what_torch_computes_and_bit_identical_among_any_rows(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    rows = torch.randn(1, 130, size, generator=generator) * torch.logspace(-6, 4, 130).view(1, -1, 1)
    norm = FusedRMSNorm(torch.nn.Parameter(torch.rand(size, generator=generator)), 1e-6)
    with torch.inference_mode():
        together = norm(rows)
        truth = torch.nn.functional.rms_norm(rows, (size,), norm.weight, 1e-6)
        assert torch.allclose(together, truth, rtol=1e-5, atol=1e-7)
        for count in (1, 2, 7, 33):
            for first in (0, 60, 97):
                assert torch.equal(norm(rows[:, first : first + count]), together[:, first : first + count])


def test_norms_that_are_not_plain_stay() -> None:
    model = fresh("gemma2")
    assert replace_norms(model) == 0
    plain = fresh("llama")
    truth = reference_logits(select_forward(plain), plain)
    other = fresh("llama")
    assert replace_norms(other) == 5
    assert torch.allclose(reference_logits(select_forward(other), other), truth, atol=1e-4)
