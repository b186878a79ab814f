"""Output with pictures equals that of transformers' `generate`, however jobs are batched, split, cached and preempted."""

from collections.abc import Callable

import pytest
import torch

from antiphon.engine.protocol import EngineError
from tests.counts import FULL_COUNTS
from tests.engine.media.picture_checks import (
    PICTURE_CHECKS,
    PictureCase,
    check_cut,
    check_drafts,
    check_evicted,
    check_preempted,
    check_prefixes,
    check_together,
    run_alone,
    run_counting,
)
from tests.engine.media.picture_families import (
    FAMILIES,
    SOFT_ID,
    Prompt,
    build_picture_core,
    draw_picture,
    generate_reference,
    join_output,
    make_picture_job,
    make_prompt,
    make_prompts,
    run_picture_jobs,
)
from tests.models.pictures import AS_GENERATE, judge_pictures

pytestmark = pytest.mark.filterwarnings("ignore")

SLOW = {"deepseek_ocr2"}
"""Families whose smallest picture is large."""
QUICK = ("qwen3_vl", "gemma3", "gemma4_two_way", "mistral3", "qwen3_5", "qwen2_5_vl")
"""Families for what does not depend on the tower: positions in grids, two-way pictures, rows with gaps, states."""


def make_case(name: str) -> PictureCase:
    return PictureCase(
        name, lambda **options: build_picture_core(name, **options), lambda prompt: generate_reference(name, prompt)
    )


@pytest.mark.parametrize("name", [name for name in FAMILIES if FULL_COUNTS or name not in SLOW])
def test_output_equals_generate(name: str) -> None:
    info = build_picture_core(name).info
    assert info.image_form == "expanded" and SOFT_ID in info.suppressed_ids
    case = make_case(name)
    for check in PICTURE_CHECKS.values() if FULL_COUNTS else (check_together,):
        check(case)


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("check", [check_cut, check_prefixes])
def test_prompts_may_be_cut_and_reused_anywhere(name: str, check: Callable[[PictureCase], None]) -> None:
    check(make_case(name))


@pytest.mark.parametrize("name", ["qwen3_vl", "gemma3", "qwen3_5"])
@pytest.mark.parametrize("check", [check_evicted, check_preempted, check_drafts])
def test_pictures_come_again(name: str, check: Callable[[PictureCase], None]) -> None:
    check(make_case(name))


def test_drafts_after_a_picture_change_no_token() -> None:
    name = "qwen3_vl"
    core = build_picture_core(name)
    picture = draw_picture(name, 1)
    prompt = make_prompt(4, picture, 9, picture, 4)
    tokens = prompt.tokens[:-4] + prompt.tokens[:4]  # the text continues as it did before the first picture
    repeated = Prompt(tokens, prompt.pictures, prompt.spans)
    for index in range(3):
        assert run_alone(core, repeated, f"j{index}") == generate_reference(name, repeated)


@pytest.mark.parametrize("name", ["qwen3_vl", "llava"])
def test_quantized_text_stays_close(name: str) -> None:
    plain, quantized = build_picture_core(name), build_picture_core(name, quantization="int8", force_quantization=True)
    prompt = make_prompts(name)[4]
    options = {"max_tokens": 1, "top_logprobs": 20}
    first, second = (
        run_picture_jobs(core, [(make_picture_job(prompt, **options), prompt)])["j"] for core in (plain, quantized)
    )
    expected, found = (
        {token: value for chunk in chunks for entry in chunk.logprobs for token, value in entry.top}
        for chunks in (first, second)
    )
    common = sorted(set(expected) & set(found))
    pair = torch.tensor([[values[token] for token in common] for values in (expected, found)])
    assert len(common) > 10 and torch.cosine_similarity(pair[0], pair[1], dim=0) > 0.97


def test_owners_share_nothing() -> None:
    core = build_picture_core("qwen3_vl")
    prompt = make_prompt(24, draw_picture("qwen3_vl", 5), 30)
    for number, owner in enumerate(("a", "b"), 1):
        cached, _ = run_counting(core, prompt, owner, owner=owner)
        assert cached == 0 and core.stats().encoded_images == number
    cached, _ = run_counting(core, prompt, "salted", owner="a", cache_salt="s")
    assert cached == 0 and core.stats().encoded_images == 3


def test_soft_tokens_have_no_log_probability_and_are_never_generated() -> None:
    name = "llava"
    core = build_picture_core(name)
    prompt = make_prompt(5, draw_picture(name, 1), 4)
    chunks = run_picture_jobs(core, [(make_picture_job(prompt, prompt_logprobs=0), prompt)])["j"]
    (logprobs,) = [chunk.prompt_logprobs for chunk in chunks if chunk.prompt_logprobs]
    assert [entry is None for entry in logprobs] == [
        index == 0 or token == SOFT_ID for index, token in enumerate(prompt.tokens)
    ]
    banned = run_picture_jobs(core, [(make_picture_job(prompt, logit_bias={SOFT_ID: -100.0}), prompt)])["j"]
    assert join_output(banned) == join_output(chunks), "it is never generated anyway"
    biased = make_picture_job(prompt, logit_bias={SOFT_ID: 100.0})
    with pytest.raises(EngineError, match="logit_bias"):
        core.add(biased)
    with pytest.raises(EngineError, match="stands for a picture"):
        core.add(make_picture_job(Prompt(prompt.tokens, [], ())))


@pytest.mark.parametrize(
    "options",
    [{"compile_kernels": False}, {"paged_cache": True}, {"deterministic": True}, {"quantization": "int8"}],
    ids=["torch", "paged", "deterministic", "int8"],
)
@pytest.mark.parametrize("name", ["qwen3_vl", "gemma3", "gemma4_two_way"])
def test_every_kind_of_attention_gives_the_same_output(name: str, options: dict[str, object]) -> None:
    is_exact = "quantization" not in options
    core = build_picture_core(name, max_batched_tokens=16, force_quantization=not is_exact, **options)
    prompts = make_prompts(name)[3:7]
    jobs = [(make_picture_job(prompt, f"b{index}"), prompt) for index, prompt in enumerate(prompts)]
    together = run_picture_jobs(core, jobs)
    outputs = [join_output(together[f"b{index}"]) for index in range(len(prompts))]
    if is_exact:
        assert outputs == [generate_reference(name, prompt) for prompt in prompts]
    for prompt, output in zip(prompts, outputs, strict=True):  # quantized output must not depend on the batch
        assert run_alone(core, prompt, "alone", owner="alone") == output


def test_files_equal_generate() -> None:
    assert judge_pictures("qwen3_vl") == AS_GENERATE


def test_refused_types_say_why() -> None:
    assert judge_pictures("paligemma").startswith("refused: its whole prompt attends both ways")
    assert judge_pictures("kimi_k25").startswith("refused: its output with pictures was not compared")


def test_picture_behind_two_that_are_cached_is_asked_for_in_the_same_step() -> None:
    """All three are in one block, so that nothing runs, and nothing wakes the engine, before the third is there."""
    case = make_case("qwen3_5")
    core, prompt = case.build(), case.prompts[7]
    first, second, third = prompt.pictures
    run_alone(core, make_prompt(first, 7, second, 9), "earlier")
    core.add(make_picture_job(prompt, "next"))
    core.step()
    assert core.pictures is not None and core.pictures.take_requests() == [("next", third.key)]
