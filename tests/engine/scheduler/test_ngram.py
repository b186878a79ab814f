"""N-gram drafts: the proposed tokens, that drafts change no output, and that useless drafting pauses."""

from array import array
from typing import Any

import pytest

from antiphon.engine.protocol import Chunk, Job
from antiphon.engine.scheduler.drafts.ngram import (
    INITIAL_DRAFT_TOKENS,
    MAX_COOLDOWN_STEPS,
    MAX_NGRAM_DRAFT_TOKENS,
    MIN_COOLDOWN_STEPS,
    MIN_GAIN,
    Drafter,
    find_continuation,
)
from tests.engine.fake_model import FakeModel, build_core_with_fake_model, next_token_by_hash
from tests.engine.scheduler.scheduler_helpers import SAMPLINGS
from tests.engine.tiny_models import build_tiny_core, generate_tokens, join_tokens, make_job, run_jobs

NO_DRAFTS: dict[str, Any] = {"max_draft_seqs": 0}
CYCLE = [7, 8, 9, 10, 11, 12, 13]


def next_cycle_token(history: list[int]) -> int:
    """Repeats `CYCLE`, with a jump at every 23rd token."""
    last = history[-1]
    if len(history) % 23 == 0 or last not in CYCLE:
        return CYCLE[len(history) % 7]
    return CYCLE[(CYCLE.index(last) + 1) % 7]


def get_result(chunks: list[Chunk]) -> tuple[list[int], str | None, int | None]:
    return join_tokens(chunks), chunks[-1].finish, chunks[-1].stop_id


def run_with_and_without_drafts(
    job: Job, next_token: Any = next_cycle_token, **options: Any
) -> tuple[list[Chunk], list[Chunk], FakeModel]:
    """Returns the job's chunks with drafts and without, and the model that ran with drafts."""
    (drafted, model), (undrafted, _) = (
        build_core_with_fake_model(next_token, **options),
        build_core_with_fake_model(next_token, max_draft_seqs=0, **options),
    )
    return run_jobs(drafted, job)[job.id], run_jobs(undrafted, job)[job.id], model


# Proposed drafts.


@pytest.mark.parametrize(
    ("text", "max_tokens", "draft"),
    [
        ("", 4, ""),
        ("ab", 4, ""),
        ("abcd", 4, ""),
        ("axbxcx", 4, ""),
        ("abcdefab", 4, "cdef"),
        ("abcdefab", 2, "cd"),
        ("abcdefab", 0, ""),
        ("abcdefab", -1, ""),
        ("abXabYab", 2, "Ya"),
        ("1abXYZ2abQ1ab", 3, "XYZ"),
        ("xyzabcQ zabcR xyzabc", 2, "R "),
        ("xyzabcQ yzabcR zzabc", 2, "R "),
        ("aaa", 4, "aaaa"),
        ("xabab", 5, "ababa"),
        ("-abcabc", 7, "abcabca"),
    ],
)
def test_draft_continues_the_longest_and_latest_match(text: str, max_tokens: int, draft: str) -> None:
    assert "".join(map(chr, find_continuation(array("i", map(ord, text)), max_tokens))) == draft


def test_draft_length_grows_when_accepted_and_shrinks_when_rejected() -> None:
    drafter, text = Drafter(), array("i", [5] * 50)
    assert len(drafter.propose(text, 99)) == INITIAL_DRAFT_TOKENS
    drafter.update(INITIAL_DRAFT_TOKENS, INITIAL_DRAFT_TOKENS, 1.0)
    assert len(drafter.propose(text, 99)) == MAX_NGRAM_DRAFT_TOKENS
    assert len(drafter.propose(text, 3)) == 3
    drafter.update(MAX_NGRAM_DRAFT_TOKENS, 2, 1.0)
    assert len(drafter.propose(text, 99)) == 3


def count_cooldown_steps(drafter: Drafter) -> int:
    """Returns the number of steps before the next draft."""
    text, count = array("i", [5] * 50), 0
    while not drafter.propose(text, 9):
        count += 1
    return count


def test_rejected_drafts_double_the_cooldown() -> None:
    drafter = Drafter()
    while not (first := count_cooldown_steps(drafter)):
        drafter.update(4, 0, 1.0)
    cooldowns = [first]
    for _ in range(5):
        drafter.update(4, 0, 1.0)
        cooldowns.append(count_cooldown_steps(drafter))
    assert (
        cooldowns == [8, 16, 32, 64, 64, 64]
        and cooldowns[0] == MIN_COOLDOWN_STEPS
        and cooldowns[-1] == MAX_COOLDOWN_STEPS
    )
    drafter.update(1, 1, 1.0)
    assert count_cooldown_steps(drafter) == 0, "one accepted draft ends the cooldown"
    while not (restarted := count_cooldown_steps(drafter)):
        drafter.update(4, 0, 1.0)
    assert restarted == MIN_COOLDOWN_STEPS


def test_slow_accepted_drafts_cause_a_cooldown() -> None:
    drafter = Drafter()
    for _ in range(9):
        drafter.update(4, 4, 5 / MIN_GAIN + 0.1)
    assert count_cooldown_steps(drafter) > 0


# Drafts in a core.


@pytest.mark.parametrize("next_token", [next_cycle_token, next_token_by_hash, lambda history: 9])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_drafts_change_no_token(next_token: Any, sampling: dict[str, Any]) -> None:
    job = make_job([*CYCLE, *CYCLE, 7], max_tokens=150, ignore_eos=True, **sampling)
    drafted, undrafted, model = run_with_and_without_drafts(job, next_token)
    assert get_result(drafted) == get_result(undrafted)
    assert next_token is next_token_by_hash or any(rows > 1 for sequences in model.passes for _, rows in sequences)


def test_repetitive_text_takes_few_steps() -> None:
    job = make_job(CYCLE * 3, max_tokens=200, ignore_eos=True)
    drafted, undrafted, model = run_with_and_without_drafts(job)
    assert join_tokens(drafted) == join_tokens(undrafted)
    assert len(model.passes) < 200 / 4
    assert max(len(chunk.tokens) for chunk in drafted) == MAX_NGRAM_DRAFT_TOKENS + 1


def test_text_that_never_repeats_costs_few_drafts() -> None:
    job = make_job(CYCLE, max_tokens=300, ignore_eos=True)
    _, _, model = run_with_and_without_drafts(job, next_token_by_hash)
    num_drafts = sum(rows > 1 for sequences in model.passes for _, rows in sequences)
    assert 0 < num_drafts < 300 / 10


@pytest.mark.parametrize("stop", CYCLE)
def test_a_stop_token_inside_a_draft_ends_the_turn_there(stop: int) -> None:
    job = make_job(CYCLE * 3, max_tokens=100, stop_ids=(stop,), min_tokens=3)
    drafted, undrafted, _ = run_with_and_without_drafts(job)
    assert get_result(drafted) == get_result(undrafted)
    assert drafted[-1].stop_id == stop == drafted[-1].tokens[-1]


@pytest.mark.parametrize("count", range(1, 14))
def test_max_tokens_is_exact_with_drafts(count: int) -> None:
    drafted, undrafted, _ = run_with_and_without_drafts(make_job(CYCLE * 3, max_tokens=count, ignore_eos=True))
    assert get_result(drafted) == get_result(undrafted)
    assert len(join_tokens(drafted)) == count and drafted[-1].finish == "length"


def test_each_drafted_token_has_its_own_logprobs() -> None:
    drafted, undrafted, _ = run_with_and_without_drafts(
        make_job(CYCLE * 3, max_tokens=40, top_logprobs=3, temperature=0.3, seed=3)
    )
    entries = [[entry for chunk in chunks for entry in chunk.logprobs] for chunks in (drafted, undrafted)]
    assert entries[0] == entries[1] and len(entries[0]) == 40
    assert all(len(chunk.logprobs) == len(chunk.tokens) for chunk in drafted)


def test_grammar_mask_is_computed_for_each_token_in_order() -> None:
    histories: list[list[int]] = []
    (core, _), job = build_core_with_fake_model(next_cycle_token), make_job(CYCLE * 3, max_tokens=40, ignore_eos=True)
    core.add(job)
    sequence = core.jobs["j"]

    class RecordingMatcher:
        is_finished = False
        advanced: list[int] = []  # noqa: RUF012  # used by one test only

        def next_mask(self) -> None:
            histories.append(sequence.tokens.tolist()[len(job.tokens) :])
            assert histories[-1] == self.advanced

        def advance(self, token: int) -> None:
            self.advanced.append(token)

    sequence.sampling_state.grammar = RecordingMatcher()
    tokens = join_tokens(run_jobs(core)["j"])
    assert histories == [tokens[:n] for n in range(40)]


def test_nan_row_of_a_draft_fails_after_the_valid_tokens() -> None:
    core, model = build_core_with_fake_model(next_cycle_token)
    logits_after = model.logits_after
    model.logits_after = lambda history: logits_after(history) * (float("nan") if len(history) > 40 else 1.0)  # type: ignore[method-assign]
    chunks = run_jobs(core, make_job(CYCLE * 3, max_tokens=100, ignore_eos=True))["j"]
    assert len(join_tokens(chunks)) == 41 - 21
    assert chunks[-1].finish == "error" and not chunks[-1].tokens
    assert not len(core.cache_manager.prefix_cache)


def test_rejected_draft_tokens_are_not_left_in_the_cache() -> None:
    core, _ = build_core_with_fake_model(next_cycle_token)
    prompt = CYCLE * 3
    output = generate_tokens(core, make_job(prompt, max_tokens=100, ignore_eos=True))
    job = make_job([*prompt, *output, 9], max_tokens=50, ignore_eos=True)
    chunks = run_jobs(core, job)["j"]
    assert chunks[0].cached_tokens == len(prompt) + 99
    undrafted, _ = build_core_with_fake_model(next_cycle_token, enable_prefix_caching=False, max_draft_seqs=0)
    assert join_tokens(chunks) == generate_tokens(undrafted, job)


def test_only_a_lone_sequence_gets_drafts_by_default() -> None:
    jobs = [make_job(CYCLE * 3, str(n), max_tokens=60, ignore_eos=True) for n in range(2)]
    (core, model), (pair_core, pair_model) = (
        build_core_with_fake_model(next_cycle_token, enable_prefix_caching=False),
        build_core_with_fake_model(next_cycle_token, enable_prefix_caching=False, max_draft_seqs=2),
    )
    default_chunks, pair_chunks = run_jobs(core, *jobs), run_jobs(pair_core, *jobs)
    assert all(rows == 1 for sequences in model.passes if len(sequences) == 2 for _, rows in sequences)
    assert any(rows > 1 for sequences in pair_model.passes if len(sequences) == 2 for _, rows in sequences)
    assert [join_tokens(default_chunks[name]) for name in "01"] == [join_tokens(pair_chunks[name]) for name in "01"]


def test_drafts_stay_within_the_cache_and_the_context() -> None:
    core, model = build_core_with_fake_model(next_cycle_token, max_model_len=60, max_cache_tokens=60)
    chunks = run_jobs(core, make_job(CYCLE * 3, ignore_eos=True))["j"]
    assert len(join_tokens(chunks)) == 60 - 21
    assert any(rows > 1 for sequences in model.passes for _, rows in sequences)


def test_drafting_stops_when_verification_costs_more_than_it_saves() -> None:
    core, model = build_core_with_fake_model(next_cycle_token, enable_prefix_caching=False)
    model.base_time, model.time_per_token = 0.0, 1.0
    run_jobs(core, make_job(CYCLE * 3, max_tokens=400, ignore_eos=True))
    later_passes = model.passes[len(model.passes) // 2 :]
    assert sum(rows > 1 for sequences in later_passes for _, rows in sequences) < len(later_passes) / 10


@pytest.mark.parametrize("family", ["llama", "gpt_oss", "mistral"])
def test_drafts_change_no_token_of_a_transformer(family: str) -> None:
    drafted, undrafted = build_tiny_core(family), build_tiny_core(family)
    undrafted.drafting.max_ngram_seqs = 0
    for options in ({}, {"temperature": 0.7, "seed": 4}):
        bias = dict.fromkeys(range(5, 9), 8.0)
        job = make_job([5, 6, 7, 8] * 6, max_tokens=60, ignore_eos=True, logit_bias=bias, **options)
        assert generate_tokens(drafted, job) == generate_tokens(undrafted, job)
    assert drafted.stats().steps < undrafted.stats().steps


def test_prompt_in_chunks_has_no_drafts_before_its_end() -> None:
    cores = [build_core_with_fake_model(max_batched_tokens=16, **each)[0] for each in ({}, NO_DRAFTS)]
    for prompt in (CYCLE * 3, [9, *CYCLE * 10]):  # steps that only decode are measured by the first job
        job = make_job(prompt, max_tokens=20, ignore_eos=True)
        drafted, undrafted = (generate_tokens(core, job) for core in cores)
        assert drafted == undrafted


def test_drafts_do_not_delay_an_arriving_prompt() -> None:
    core, model = build_core_with_fake_model(next_cycle_token, max_model_len=3000)
    model.time_per_token = 0.5
    core.add(make_job(CYCLE * 3, "stream", max_tokens=2000, ignore_eos=True))
    for _ in range(20):
        core.step()
    core.add(make_job([5] * 600, "prompt", max_tokens=1, ignore_eos=True))
    finished: list[str] = []
    while core.has_work:
        finished += [name for name, chunk in core.step() if chunk.finish]
    assert finished == ["prompt", "stream"]
