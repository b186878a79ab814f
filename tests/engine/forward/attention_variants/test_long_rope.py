"""LongRoPE: the output equals `generate` on both sides of the limit, and for sequences that pass it."""

import copy
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Phi3Config, PreTrainedModel

from antiphon.engine.builder import build_core_from_model
from antiphon.engine.forward.attention_variants.long_rope import LongRopeCache, LongRopeForward
from antiphon.engine.forward.interface import SequenceInput
from antiphon.engine.forward.sequential import SequentialForward
from antiphon.engine.forward.varlen import VarlenForward
from antiphon.engine.optimize.select import select_forward
from antiphon.engine.options import EngineOptions
from antiphon.engine.scheduler.core import Core
from tests.engine.tiny_models import (
    BASE_CONFIG,
    generate_tokens,
    join_tokens,
    make_job,
    make_prompts,
    run_jobs,
)

pytestmark = pytest.mark.filterwarnings("ignore")

LIMIT_TOKENS, NUM_OUTPUT_TOKENS = 40, 16
ROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.0, 2.0, 4.0, 6.0],
    "original_max_position_embeddings": LIMIT_TOKENS,
}
CONFIG = BASE_CONFIG | {"rope_parameters": ROPE, "original_max_position_embeddings": LIMIT_TOKENS}


def build_model(config_class: Any) -> PreTrainedModel:
    """Returns a model from a fixed seed."""
    torch.manual_seed(7)
    model: Any = AutoModelForCausalLM.from_config(config_class(**CONFIG))  # type: ignore[no-untyped-call]
    return model.eval()  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def phi3() -> PreTrainedModel:
    return build_model(Phi3Config)


@torch.inference_mode()
def generate_expected(model: Any, prompt: list[int]) -> list[int]:
    """Returns what `generate` appends to a prompt."""
    ids = torch.tensor([prompt])
    output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_OUTPUT_TOKENS, do_sample=False)
    return output[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


def build_core(model: PreTrainedModel, **options: Any) -> Core:
    return build_core_from_model(copy.deepcopy(model), options=EngineOptions(**options))


@pytest.mark.parametrize(
    "options",
    [
        {"max_batched_tokens": 8},
        {"max_batched_tokens": 64, "max_draft_seqs": 0},
        {"deterministic": True, "max_batched_tokens": 16},
    ],
    ids=str,
)
def test_output_equals_generate_on_both_sides_of_the_limit(phi3: PreTrainedModel, options: dict[str, Any]) -> None:
    prompts = [*make_prompts(5, 30, 39, 40, 41, 80), [5, 6, 7, 8] * 8]
    expected = [generate_expected(phi3, prompt) for prompt in prompts]
    core = build_core(phi3, max_num_seqs=4, **options)
    assert isinstance(core.forward, LongRopeForward)
    outputs = [generate_tokens(core, make_job(prompt, max_tokens=NUM_OUTPUT_TOKENS)) for prompt in prompts]
    assert outputs == expected
    jobs = [make_job(prompt, str(n), owner=str(n), max_tokens=NUM_OUTPUT_TOKENS) for n, prompt in enumerate(prompts)]
    chunks = run_jobs(core, *jobs)
    assert [join_tokens(chunks[str(n)]) for n in range(len(prompts))] == expected


def test_prefix_in_the_cache_is_computed_again_on_the_other_side(phi3: PreTrainedModel) -> None:
    core = build_core(phi3, max_num_seqs=2)
    (beginning,) = make_prompts(36)
    for prompt in (beginning, [*beginning, *range(10, 30)], [*beginning, 9], [*beginning, *range(10, 31)]):
        job = make_job(prompt, max_tokens=NUM_OUTPUT_TOKENS)
        chunks = run_jobs(core, job)[job.id]
        assert join_tokens(chunks) == generate_expected(phi3, prompt)
        assert (chunks[0].cached_tokens > 0) == (prompt != beginning)


@torch.inference_mode()
@pytest.mark.parametrize("start", [36, 38, 39, 40, 41])
def test_logits_of_drafts_across_the_limit_are_those_of_single_tokens(phi3: PreTrainedModel, start: int) -> None:
    forward = select_forward(copy.deepcopy(phi3))
    assert isinstance(forward, LongRopeForward)
    (prompt,) = make_prompts(start)
    drafts, sequential = [11, 23, 5], SequentialForward(phi3)
    single, at_once, other = sequential.new_cache(0), forward.new_cache(0), forward.new_cache(0)
    sequential.run([SequenceInput(single, prompt, 0)])
    forward.run([SequenceInput(at_once, prompt, 0), SequenceInput(other, prompt[:7], 0)])
    expected = torch.cat([sequential.run([SequenceInput(single, [token], 1)]) for token in drafts])
    inputs = [SequenceInput(at_once, drafts, 3, 3), SequenceInput(other, [9], 1, 1)]
    assert torch.allclose(forward.run(inputs)[:3], expected, atol=1e-4)
    at_once.truncate(start + 1)
    again = forward.run([SequenceInput(at_once, drafts[1:], 2, 2)])
    assert torch.allclose(again, expected[1:], atol=1e-4), "after the drafts were dropped"


def test_copies_and_shortened_caches_know_their_tokens() -> None:
    cache = LongRopeCache()
    cache.write_and_read(0, *(torch.zeros(1, 1, 9, 4) for _ in "kv"))
    cache.commit(9)
    cache.ids.extend(range(9))
    cache.is_long = True
    clone = cache.copy(5, 16)
    assert (list(clone.ids), clone.is_long, clone.length) == ([0, 1, 2, 3, 4], True, 5)
    cache.shrink(3)
    assert list(cache.ids) == [0, 1, 2]


def test_short_context_needs_one_kind_of_factors_only(phi3: PreTrainedModel) -> None:
    forward = select_forward(copy.deepcopy(phi3), context=LIMIT_TOKENS, paged=True)
    assert type(forward) is VarlenForward and forward.is_paged


def test_model_that_mixes_both_kinds_of_keys_is_packed_below_the_limit_only(caplog: pytest.LogCaptureFixture) -> None:
    model = build_model(LlamaConfig)
    assert isinstance(select_forward(model), SequentialForward)
    assert f"--max-model-len {LIMIT_TOKENS} serves shorter ones in one pass" in caplog.text
    assert type(select_forward(model, context=LIMIT_TOKENS)) is VarlenForward
