"""A job that continues after tokens of an earlier run gets, to the bit, what the earlier run would have got."""

import copy
import functools
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from antiphon.engine.builder import build_core_from_model
from antiphon.engine.options import EngineOptions
from antiphon.engine.protocol import Chunk, EngineError, TokenLogprob
from antiphon.engine.scheduler.core import Core
from tests.counts import FULL_COUNTS
from tests.engine.forward.recurrent.tiny_hybrids import hybrid_model
from tests.engine.tiny_models import (
    BASE_CONFIG,
    DEVICE,
    DEVICE_OPTIONS,
    VOCAB_SIZE,
    build_tiny_core,
    join_tokens,
    make_job,
    make_prompts,
    run_jobs,
)

pytestmark = pytest.mark.filterwarnings("ignore")

PROMPT, OTHER, LATE = make_prompts(70, 40, 9)
LENGTH = 26
WIDE = {"hidden_size": 256, "intermediate_size": 384, "head_dim": 64, "initializer_range": 0.06}
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.9, "top_p": 0.95, "seed": 11},
    "all tokens": {"temperature": 1.1, "seed": 12},
    "penalties": {
        "temperature": 0.8,
        "seed": 13,
        "presence_penalty": 0.6,
        "frequency_penalty": 0.4,
        "repetition_penalty": 1.2,
        "min_tokens": 20,
    },
}


def build_wide(config: str, quantization: Any, **overrides: Any) -> Core:
    torch.manual_seed(3)
    settings = getattr(transformers, config)(**BASE_CONFIG | WIDE | overrides)
    model: Any = AutoModelForCausalLM.from_config(settings)  # type: ignore[no-untyped-call]
    options = EngineOptions(
        quantization=quantization,
        force_quantization=True,
        max_draft_seqs=0,
        enable_prefix_caching=False,
        **DEVICE_OPTIONS,
    )
    return build_core_from_model(model.eval().to(DEVICE), options=options, optimize=True)


FORMS: dict[str, Any] = {
    "fp32": functools.partial(build_wide, "Qwen3Config", None),
    "int8": functools.partial(build_wide, "Qwen3Config", "int8"),
    "int4": functools.partial(build_wide, "Qwen3Config", "int4"),
    "mixture": functools.partial(build_wide, "MixtralConfig", "int8", num_local_experts=4),
}
HYBRIDS = ("qwen3_next", "falcon_h1", "lfm2")


@functools.cache
def form_core(form: str) -> Core:
    if form in HYBRIDS:
        options = EngineOptions(enable_prefix_caching=False, deterministic=True, **DEVICE_OPTIONS)
        return build_core_from_model(copy.deepcopy(hybrid_model(form)), options=options, optimize=True)
    core: Core = FORMS[form]()
    return core


def list_scores(chunks: list[Chunk]) -> list[TokenLogprob]:
    return [entry for chunk in chunks for entry in chunk.logprobs]


CASES = [
    *(("fp32", sampling) for sampling in SAMPLING),
    *((form, sampling) for form in (*FORMS, *HYBRIDS)[1:] for sampling in (SAMPLING if FULL_COUNTS else ["penalties"])),
]


@pytest.mark.parametrize(("form", "sampling"), CASES)
def test_rest_of_a_job_has_the_bits_of_the_whole(form: str, sampling: str) -> None:
    core = form_core(form)
    fields = {"max_tokens": LENGTH, "ignore_eos": True, "top_logprobs": 3, **SAMPLING[sampling]}
    whole = run_jobs(core, make_job(PROMPT, "whole", **fields), make_job(OTHER, "other", max_tokens=9))["whole"]
    tokens, scores = join_tokens(whole), list_scores(whole)
    assert len(tokens) == LENGTH
    for cut in range(0, LENGTH + 1, 1 if FULL_COUNTS else 8):
        job = make_job(PROMPT, "rest", generated=tuple(tokens[:cut]), **fields)
        rest = run_jobs(core, make_job(LATE, "late", max_tokens=5), job)["rest"]
        assert join_tokens(rest) == tokens[cut:], cut
        assert list_scores(rest) == scores[cut:], cut
        assert rest[-1].finish == "length"


def test_tokens_of_an_earlier_run_are_checked() -> None:
    core = form_core("fp32")
    for generated, code in (
        ((VOCAB_SIZE,), "invalid_request"),
        ((-1,), "invalid_request"),
        ((5,) * 200, "context_length_exceeded"),
    ):
        with pytest.raises(EngineError) as caught:
            core.add(make_job(PROMPT, generated=generated))
        assert caught.value.code == code


def test_prompt_logprobs_are_reported_once() -> None:
    core = form_core("fp32")
    first = run_jobs(core, make_job(PROMPT, prompt_logprobs=0, max_tokens=3, ignore_eos=True))["j"]
    assert sum(len(chunk.prompt_logprobs) for chunk in first) == len(PROMPT)
    again = make_job(PROMPT, prompt_logprobs=0, max_tokens=3, ignore_eos=True, generated=tuple(join_tokens(first)[:1]))
    assert not any(chunk.prompt_logprobs for chunk in run_jobs(core, again)["j"])


def test_cached_tokens_of_a_continued_job_are_those_of_its_prompt() -> None:
    core = build_tiny_core()
    prompt = make_prompts(60)[0]
    whole = join_tokens(run_jobs(core, make_job(prompt, "whole", max_tokens=150))["whole"])
    before = core.stats().prefix_hit_tokens
    chunks = run_jobs(core, make_job(prompt, "rest", max_tokens=170, generated=tuple(whole[:100])))["rest"]
    assert max(chunk.cached_tokens for chunk in chunks) == len(prompt)
    assert core.stats().prefix_hit_tokens - before == len(prompt)
