"""Packed models: the same tokens as transformers, batch-invariant rows, and the layers that are not packed."""

import logging
import random
import re
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from antiphon.engine.builder import build_core_from_model
from antiphon.engine.errors import LoadError
from antiphon.engine.forward.interface import SequenceInput
from antiphon.engine.forward.varlen import VarlenForward
from antiphon.engine.kernels.library import load_kernels
from antiphon.engine.model_build.stages import QUANTIZED_PROMPT_BLOCK_TOKENS
from antiphon.engine.optimize import packing_plan
from antiphon.engine.optimize.linears import MergedLinearSlice, PackedLinear
from antiphon.engine.optimize.pack_linears import find_linears, pack_linears
from antiphon.engine.optimize.packing_plan import plan_packing
from antiphon.engine.optimize.quantization_error import check_similarity
from antiphon.engine.optimize.rms_norm import FusedRMSNorm, replace_norms
from antiphon.engine.optimize.select import select_forward
from antiphon.engine.optimize.validation import reference_logits
from antiphon.engine.optimize.verification import UnusableKernelError
from antiphon.engine.options import EngineOptions
from antiphon.engine.scheduler.core import Core
from tests.counts import FULL_COUNTS
from tests.engine.tiny_models import (
    VOCAB_SIZE,
    copy_tiny_model,
    generate_tokens,
    generate_with_transformers,
    join_tokens,
    make_job,
    make_prompts,
    run_jobs,
)

NUM_POSITIONS = 10_000 if FULL_COUNTS else 500
DENSE_FAMILIES = ["qwen3", "llama", "mistral", "gemma2"]
TORCH_FAMILIES = DENSE_FAMILIES if FULL_COUNTS else ["gemma2"]
"""Families that run without kernels, too, which takes twice the time."""

MOE_FAMILIES = ["mixtral", "gpt_oss"]

pytestmark = pytest.mark.filterwarnings("ignore")


def build_optimized_core(family: str, **options: Any) -> Core:
    return build_core_from_model(copy_tiny_model(family), options=EngineOptions(**options), optimize=True)


def build_packed_forward(family: str, quantize: Any = None, *, deterministic: bool = False) -> VarlenForward:
    model = copy_tiny_model(family)
    forward = select_forward(model, kernels=load_kernels())
    assert isinstance(forward, VarlenForward)
    result = pack_linears(model, lambda: reference_logits(forward, model), quantize, load_kernels())
    if deterministic:
        forward.make_deterministic(independent_rows=result.is_complete)
    return forward


def compute_logits(
    forward: VarlenForward, texts: list[list[int]], generator: random.Random | None, max_texts: int
) -> Any:
    """Returns the logits of every position, text by text.

    Each text runs whole and alone; with a `generator`, in random chunks, up to `max_texts` texts in a pass.
    """
    rows: list[list[Any]] = [[] for _ in texts]
    caches = [forward.new_cache(len(text)) for text in texts]
    counts = [0] * len(texts)
    with torch.inference_mode():
        while any(count < len(text) for count, text in zip(counts, texts, strict=True)):
            active = [n for n, text in enumerate(texts) if counts[n] < len(text)]
            active = active[:1] if generator is None else generator.sample(active, min(len(active), max_texts))
            sizes = [
                len(texts[n]) if generator is None else min(generator.choice([1, 1, 3, 9]), len(texts[n]) - counts[n])
                for n in active
            ]
            work = [
                SequenceInput(caches[n], texts[n][counts[n] : counts[n] + size], size)
                for n, size in zip(active, sizes, strict=True)
            ]
            for n, size, part in zip(active, sizes, forward.run(work).split(sizes), strict=True):
                rows[n].append(part)
                counts[n] += size
    return torch.cat([torch.cat(parts) for parts in rows])


def make_texts(total: int, length: int = 50) -> list[list[int]]:
    generator = random.Random(5)
    return [[generator.randrange(VOCAB_SIZE) for _ in range(length)] for _ in range(total // length)]


@pytest.mark.parametrize("family", [*DENSE_FAMILIES, *MOE_FAMILIES, "bloom", "lfm2", "mamba"])
def test_packed_greedy_output_equals_transformers_generate(family: str) -> None:
    prompts = make_prompts(3, 30, 1, 9)
    expected = [generate_with_transformers(family, prompt, 16) for prompt in prompts]
    core = build_optimized_core(family, max_num_seqs=3, max_batched_tokens=8)
    assert "packed" in core.info.description
    chunks = run_jobs(core, *(make_job(prompt, str(n), max_tokens=16) for n, prompt in enumerate(prompts)))
    assert [join_tokens(chunks[str(n)]) for n in range(len(prompts))] == expected


def test_projections_of_one_input_are_merged() -> None:
    model: Any = copy_tiny_model("qwen3")
    forward = select_forward(model)
    num_norms = replace_norms(model)
    assert pack_linears(model, lambda: reference_logits(forward, model))[:2] == ("packed", True)
    layer = model.model.layers[1]
    assert all(isinstance(getattr(layer.self_attn, name), MergedLinearSlice) for name in ("q_proj", "k_proj", "v_proj"))
    assert isinstance(layer.mlp.up_proj, MergedLinearSlice) and isinstance(layer.mlp.down_proj, PackedLinear)
    assert isinstance(model.lm_head, PackedLinear) and isinstance(layer.self_attn.q_norm, FusedRMSNorm)
    assert num_norms == 2 * 4 + 1


class SharedInputModel(nn.Module):
    """Three layers that appear to share their input. `use` computes the output from them."""

    def __init__(self, use: Any) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(8, 8) for _ in range(3))
        self.use = use

    def forward(self, x: Any) -> Any:
        return self.use(self, x)


def pack_shared_input_model(use: Any) -> tuple[SharedInputModel, Any, Any, Any]:
    torch.manual_seed(1)
    model = SharedInputModel(use)
    x = torch.randn(6, 8)
    with torch.inference_mode():
        before = model(x)
        result = pack_linears(model, lambda: model(x))
        return model, result, before, model(x)


def _modify_input_in_place(model: Any, x: Any) -> Any:
    x = x.clone()
    first = model.q_proj(x)
    x += 1
    return first + model.k_proj(x) + model.v_proj(x)


@pytest.mark.parametrize(
    ("use", "layer_types"),
    [
        (lambda m, x: m.q_proj(x) + m.k_proj(x) + m.v_proj(x), [MergedLinearSlice] * 3),
        (lambda m, x: m.q_proj(x) + m.k_proj(x.clone()) + m.v_proj(x), [PackedLinear] * 3),
        (lambda m, x: m.q_proj(x) + m.k_proj(m.q_proj(x)) + m.v_proj(x), [PackedLinear] * 3),
        (lambda m, x: m.q_proj(x) + m.k_proj(x), [PackedLinear] * 3),
        (_modify_input_in_place, [PackedLinear] * 3),
        (lambda m, x: x @ m.q_proj.weight + m.k_proj(x) + m.v_proj(x), [nn.Linear, PackedLinear, PackedLinear]),
        (lambda m, x: m.q_proj(x) + m.k_proj(x) + m.v_proj(x) - m.k_proj.bias, [PackedLinear, nn.Linear, PackedLinear]),
        (lambda m, x: m.q_proj(x).view(-1) + m.k_proj(x).view(-1) + m.v_proj(x).view(-1), [PackedLinear] * 3),
        (lambda m, x: x @ (m.q_proj.weight + m.k_proj.weight + m.v_proj.weight), [nn.Linear] * 3),
        (lambda m, x: m.q_proj(x) if type(m.q_proj) is nn.Linear else m.q_proj(x) + 1, [nn.Linear] * 3),
    ],
)
def test_layers_are_merged_or_packed_only_where_equivalent(use: Any, layer_types: list[type[nn.Module]]) -> None:
    model, result, before, after = pack_shared_input_model(use)
    assert [type(layer) for layer in (model.q_proj, model.k_proj, model.v_proj)] == layer_types
    assert torch.allclose(before, after, atol=1e-5)
    assert bool(result.description) == (layer_types != [nn.Linear] * 3)
    assert result.is_complete == (nn.Linear not in layer_types)


@pytest.mark.parametrize("function", ["plan_packing", "GroupPacker.build_kernel"])
def test_failed_packing_leaves_the_model_unchanged(
    function: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(f"antiphon.engine.optimize.pack_linears.{function}", fail)
    model = copy_tiny_model("llama")
    forward = select_forward(model)
    before = reference_logits(forward, model)
    pack_linears(model, lambda: reference_logits(forward, model))
    assert torch.equal(reference_logits(forward, model), before)
    assert "RuntimeError" in caplog.text


def test_packing_reports_its_progress(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO, "antiphon.engine")
    build_optimized_core("llama", quantization="int8")
    assert "packing weights" in caplog.messages and not any(" of " in line for line in caplog.messages)
    caplog.clear()
    monkeypatch.setattr("antiphon.engine.optimize.experts.pack.PROGRESS_INTERVAL_S", 0.0)
    build_optimized_core("llama", quantization="int8")
    expected = [f"packing weights: {done} of 9" for done in range(1, 10)]  # two layers of four groups, and the output
    assert [line for line in caplog.messages if " of " in line] == expected
    assert caplog.messages.index("loading kernels") < caplog.messages.index("packing weights")


def test_bf16_model_is_not_packed_and_cannot_be_quantized(caplog: pytest.LogCaptureFixture) -> None:
    model = copy_tiny_model("llama").to(torch.bfloat16)
    build_core_from_model(model, optimize=True)
    assert "packing requires fp32 weights on a CPU" in caplog.text
    with pytest.raises(LoadError, match="quantize"):
        build_core_from_model(model, options=EngineOptions(quantization="int8"), optimize=True)


@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
@pytest.mark.parametrize("family", DENSE_FAMILIES)
def test_rows_are_bit_identical_in_any_batch_with_equal_chunks(family: str, quantize: Any) -> None:
    forward = build_packed_forward(family, quantize)
    texts = make_texts(NUM_POSITIONS // 4, 25)
    expected = compute_logits(forward, texts, None, 1)
    with torch.inference_mode():
        logits = forward.run([SequenceInput(forward.new_cache(0), text, len(text)) for text in texts])
    assert torch.equal(expected, logits)


@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
@pytest.mark.parametrize("family", DENSE_FAMILIES)
def test_deterministic_rows_are_bit_identical_with_any_chunks(family: str, quantize: Any) -> None:
    forward = build_packed_forward(family, quantize, deterministic=True)
    assert forward.batch_invariant and not forward.one_token_passes
    texts = make_texts(NUM_POSITIONS)
    assert torch.equal(
        compute_logits(forward, texts, None, 1), compute_logits(forward, texts, random.Random(3), max_texts=7)
    )


def compute_logits_as_scheduled(
    forward: VarlenForward, text: list[int], prompt_length: int, generator: random.Random | None
) -> Any:
    """Returns the logits of every position.

    The prompt runs whole, and the output token by token. With a `generator`, the prompt is cut as a scheduler may cut
    it, output tokens may run as drafts, and each pass contains other sequences.
    """
    cache, rows, count = forward.new_cache(0), [], 0
    while count < len(text):
        if count < prompt_length:
            blocks = 99 if generator is None else generator.randint(1, 3)
            size = min((count // forward.prompt_alignment + blocks) * forward.prompt_alignment, prompt_length) - count
            work = [SequenceInput(cache, text[count : count + size], size)]
        else:
            size = 1 if generator is None else min(generator.choice([1, 1, 4]), len(text) - count)
            work = [SequenceInput(cache, text[count : count + size], size, num_generated=size)]
        if generator is not None:
            work += [
                SequenceInput(forward.new_cache(0), text[:length], 1)
                for length in generator.choices([1, 1, 2, 30], k=3)
            ]
        rows.append(forward.run(work)[:size])
        count += size
    return torch.cat(rows)


@pytest.mark.parametrize("quantize", ["int8", "int4"])
@pytest.mark.parametrize(
    ("family", "compile_"),
    [
        (family, compile_)
        for family in DENSE_FAMILIES
        for compile_ in (True, False)
        if compile_ or family in TORCH_FAMILIES
    ],
)
def test_quantized_rows_are_bit_identical_with_any_scheduled_chunks(family: str, compile_: bool, quantize: Any) -> None:
    forward = build_optimized_core(
        family, quantization=quantize, compile_kernels=compile_, force_quantization=True
    ).forward
    assert isinstance(forward, VarlenForward) and forward.prompt_alignment == (
        1 if forward.uses_kernels else QUANTIZED_PROMPT_BLOCK_TOKENS
    )
    assert forward.uses_kernels == (compile_ and load_kernels() is not None)
    generator = random.Random(3)
    with torch.inference_mode():
        for text in make_texts(NUM_POSITIONS, 100):
            prompt_length = generator.randint(1, 95)
            expected, logits = (
                compute_logits_as_scheduled(forward, text, prompt_length, chunking) for chunking in (None, generator)
            )
            assert torch.equal(expected, logits)


@pytest.mark.parametrize("quantize", ["int8", "int4"])
@pytest.mark.parametrize("family", DENSE_FAMILIES)
def test_quantized_output_is_the_same_with_a_cached_prompt(family: str, quantize: Any) -> None:
    core = build_optimized_core(
        family, quantization=quantize, force_quantization=True, max_num_seqs=3, max_batched_tokens=20
    )
    jobs = [make_job(prompt, str(n), max_tokens=12, seed=n) for n, prompt in enumerate(make_prompts(40, 70, 33))]
    first, repeated = run_jobs(core, *jobs), {job.id: run_jobs(core, job)[job.id] for job in jobs}
    assert {name: join_tokens(chunks) for name, chunks in first.items()} == {
        name: join_tokens(chunks) for name, chunks in repeated.items()
    }
    alignment = core.forward.prompt_alignment
    assert (
        repeated["0"][0].cached_tokens == 39 - 39 % alignment and repeated["1"][0].cached_tokens == 69 - 69 % alignment
    )


@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
def test_chunks_hardly_change_nondeterministic_logits(quantize: Any) -> None:
    forward = build_packed_forward("qwen3", quantize)
    texts = make_texts(NUM_POSITIONS)
    whole_logits, chunked_logits = (
        compute_logits(forward, texts, None, 1),
        compute_logits(forward, texts, random.Random(3), max_texts=7),
    )
    agreement = float((whole_logits.argmax(-1) == chunked_logits.argmax(-1)).double().mean())
    print(
        f"{quantize}: {NUM_POSITIONS} positions, argmax agrees on {agreement:.2%}, largest difference {(whole_logits - chunked_logits).abs().max():.2g}"
    )
    assert agreement >= (0.999 if quantize is None else 0.98)


@pytest.mark.parametrize("family", ["qwen3", *MOE_FAMILIES])
def test_deterministic_jobs_get_the_same_tokens_in_any_batch(family: str) -> None:
    prompts = make_prompts(5, 26, 2, 12, 19)
    jobs = [
        make_job(p, str(n), max_tokens=10, temperature=1.0, seed=n, top_p=0.9 + 0.1 * (n % 2))
        for n, p in enumerate(prompts)
    ]
    core = build_optimized_core(family, deterministic=True, max_num_seqs=3, max_batched_tokens=8)
    assert "deterministic" in core.info.description
    expected = [generate_tokens(core, job) for job in jobs]
    other_core = build_optimized_core(family, deterministic=True, max_num_seqs=4, max_batched_tokens=5)
    chunks = run_jobs(other_core, *jobs)
    assert [join_tokens(chunks[job.id]) for job in jobs] == expected


def test_int8_reports_its_error_and_packs_experts_but_no_routers(caplog: pytest.LogCaptureFixture) -> None:
    core = build_optimized_core("mixtral", quantization="int8")
    description = re.search(
        r"int8, experts in int8, (?:KV cache in float16, )?cosine similarity to fp32 logits (0\.\d+), same most likely token \d+%",
        core.info.description,
    )
    # The model is so small that one bit less, without VNNI, is noticeable.
    assert description and float(description[1]) > 0.95
    assert "stay fp32" not in caplog.text
    assert generate_tokens(core, make_job(make_prompts(4)[0], max_tokens=3))


def add_outlier(model: Any, factor: float) -> Any:
    """Multiplies one input of the output layer by `factor` and divides its weights by it: the same logits in fp32."""
    with torch.no_grad():
        model.model.norm.weight[0] *= factor
        model.lm_head.weight[:, 0] /= factor
    return model


def build_int8_core_with_outlier(factor: float, *, force: bool = False) -> Core:
    options = EngineOptions(quantization="int8", force_quantization=force)
    return build_core_from_model(add_outlier(copy_tiny_model("llama"), factor), options=options, optimize=True)


def test_int8_model_far_from_fp32_is_refused_unless_forced(caplog: pytest.LogCaptureFixture) -> None:
    assert "int8" in build_int8_core_with_outlier(1.0).info.description
    assert "noticeably" not in caplog.text
    with pytest.raises(LoadError, match=r"fp32 logits is 0\.\d+, .* least 0\.80; .* --force-quantization"):
        build_int8_core_with_outlier(1e6)
    assert "int8" in build_int8_core_with_outlier(1e6, force=True).info.description
    assert "noticeably" in caplog.text


@pytest.mark.parametrize(
    ("similarity", "force", "warns", "fails"),
    [
        (0.95, False, False, False),
        (0.9499, False, True, False),
        (0.8, False, True, False),
        (0.7999, False, False, True),
        (float("nan"), False, False, True),
        (0.7999, True, True, False),
    ],
)
def test_limits_of_int8_similarity(
    similarity: float, force: bool, warns: bool, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(LoadError) if fails else nullcontext():
        check_similarity("int8", similarity, force=force)
    assert ("noticeably" in caplog.text) == warns


@pytest.mark.parametrize("size", [64, 896, 2880, 5120, 16384])
def test_fused_rms_norm_equals_torch_and_is_batch_invariant(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    rows = torch.randn(1, 130, size, generator=generator) * torch.logspace(-6, 4, 130).view(1, -1, 1)
    norm = FusedRMSNorm(torch.nn.Parameter(torch.rand(size, generator=generator)), 1e-6)
    with torch.inference_mode():
        outputs = norm(rows)
        expected = torch.nn.functional.rms_norm(rows, (size,), norm.weight, 1e-6)
        assert torch.allclose(outputs, expected, rtol=1e-5, atol=1e-7)
        for count in (1, 2, 7, 33):
            for first in (0, 60, 97):
                assert torch.equal(norm(rows[:, first : first + count]), outputs[:, first : first + count])


def test_only_plain_rms_norms_are_replaced() -> None:
    model = copy_tiny_model("gemma2")
    assert replace_norms(model) == 0
    llama = copy_tiny_model("llama")
    expected = reference_logits(select_forward(llama), llama)
    fused_model = copy_tiny_model("llama")
    assert replace_norms(fused_model) == 5
    assert torch.allclose(reference_logits(select_forward(fused_model), fused_model), expected, atol=1e-4)


def test_dry_run_with_other_logits_or_an_error_plans_nothing() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8))
    x, linears = torch.randn(4, 8), dict(find_linears(model))
    factors = iter((1.0, 1.01, 1.01))
    with torch.inference_mode():
        assert plan_packing(model, linears, lambda: model(x)) == [["0"]]
        with pytest.raises(UnusableKernelError, match="the dry run's logits differ by"):
            plan_packing(model, linears, lambda: model(x) * next(factors))
        with pytest.raises(UnusableKernelError, match="ReferenceError: not a layer"):
            plan_packing(model, linears, lambda: _run_only_original_layer(model, x))
    assert dict(find_linears(model)) == linears


def _run_only_original_layer(model: Any, x: Any) -> Any:
    if type(model[0]) is not nn.Linear:
        raise ReferenceError("not a layer")
    return model(x)


def test_validation_is_the_dry_run_of_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model runs six times before it is packed: once for each text, and four times with all of its layers watched."""
    passes: list[list[type[nn.Module]]] = []
    model: Any = copy_tiny_model("qwen3")
    projections = (model.model.layers[0].self_attn, "q_proj"), (model.model.layers[0].mlp, "gate_proj")
    model.register_forward_pre_hook(lambda *_: passes.append([type(getattr(*place)) for place in projections]))
    monkeypatch.setattr("antiphon.engine.optimize.pack_linears.plan_packing", lambda *_: pytest.fail("a run too many"))
    core = build_core_from_model(model, options=EngineOptions(quantization="int8"), optimize=True)
    assert "int8" in core.info.description
    packed = passes.index([MergedLinearSlice, MergedLinearSlice])
    assert passes[:packed] == [[nn.Linear] * 2] * 2 + [[packing_plan._LinearProbe] * 2] * 4


def test_model_that_runs_only_with_its_own_layers_is_validated_without_a_dry_run() -> None:
    model: Any = copy_tiny_model("qwen3")
    mlp = model.model.layers[0].mlp
    original = mlp.forward
    mlp.forward = lambda x: original(x) if type(mlp.up_proj) is nn.Linear else 2 * original(x)
    core = build_core_from_model(model, optimize=True)
    assert isinstance(core.forward, VarlenForward)
    assert "packed" not in core.info.description and type(mlp.up_proj) is nn.Linear
