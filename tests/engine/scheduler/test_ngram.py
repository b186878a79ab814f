"""Drafts: what is guessed, that no token depends on it, and that it stops where it does not pay."""

from array import array
from typing import Any

import pytest

pytest.importorskip("torch")

from antiphon.engine.protocol import Chunk, Job
from antiphon.engine.scheduler.ngram import (
    INITIAL_DRAFT_TOKENS,
    MAX_COOLDOWN_STEPS,
    MAX_DRAFT_TOKENS,
    MIN_COOLDOWN_STEPS,
    MIN_GAIN,
    Drafter,
    find_continuation,
)
from tests.engine.fake_model import Rigged, rigged, scattered
from tests.engine.tiny_models import core_for, drain, job_of, run, tokens_of

CYCLE = [7, 8, 9, 10, 11, 12, 13]


def cycling(history: list[int]) -> int:
    """Goes round for ever, with a digression now and then."""
    last = history[-1]
    if len(history) % 23 == 0 or last not in CYCLE:
        return CYCLE[len(history) % 7]
    return CYCLE[(CYCLE.index(last) + 1) % 7]


def ends(chunks: list[Chunk]) -> tuple[list[int], str | None, int | None]:
    return tokens_of(chunks), chunks[-1].finish, chunks[-1].stop_id


def both(job: Job, following: Any = cycling, **options: Any) -> tuple[list[Chunk], list[Chunk], Rigged]:
    """The job's chunks with drafts and without, and the model of the first."""
    (quick, forward), (plain, _) = rigged(following, **options), rigged(following, max_draft_seqs=0, **options)
    return drain(quick, job)[job.id], drain(plain, job)[job.id], forward


# What is guessed.


@pytest.mark.parametrize(
    ("text", "most", "draft"),
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
def test_a_draft_continues_the_longest_match_and_the_latest_of_equals(text: str, most: int, draft: str) -> None:
    assert "".join(map(chr, find_continuation(array("i", map(ord, text)), most))) == draft


def test_drafts_grow_while_they_are_right_and_shrink_to_what_was() -> None:
    drafter, text = Drafter(), array("i", [5] * 50)
    assert len(drafter.propose(text, 99)) == INITIAL_DRAFT_TOKENS
    drafter.update(INITIAL_DRAFT_TOKENS, INITIAL_DRAFT_TOKENS, 1.0)
    assert len(drafter.propose(text, 99)) == MAX_DRAFT_TOKENS
    assert len(drafter.propose(text, 3)) == 3
    drafter.update(MAX_DRAFT_TOKENS, 2, 1.0)
    assert len(drafter.propose(text, 99)) == 3


def rests(drafter: Drafter) -> int:
    """How many steps pass before the next draft."""
    text, steps = array("i", [5] * 50), 0
    while not drafter.propose(text, 9):
        steps += 1
    return steps


def test_drafts_that_are_wrong_rest_longer_and_longer() -> None:
    drafter = Drafter()
    while not (first := rests(drafter)):
        drafter.update(4, 0, 1.0)
    seen = [first]
    for _ in range(5):
        drafter.update(4, 0, 1.0)
        seen.append(rests(drafter))
    assert seen == [8, 16, 32, 64, 64, 64] and seen[0] == MIN_COOLDOWN_STEPS and seen[-1] == MAX_COOLDOWN_STEPS
    drafter.update(1, 1, 1.0)
    assert rests(drafter) == 0, "one that is right opens them again"
    while not (again := rests(drafter)):
        drafter.update(4, 0, 1.0)
    assert again == MIN_COOLDOWN_STEPS


def test_right_drafts_that_take_too_long_rest_too() -> None:
    drafter = Drafter()
    for _ in range(9):
        drafter.update(4, 4, 5 / MIN_GAIN + 0.1)
    assert rests(drafter) > 0


# That no token depends on it.


@pytest.mark.parametrize("following", [cycling, scattered, lambda history: 9])
@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.4, "seed": 5},
        {"temperature": 1.0, "seed": 6, "top_p": 0.9, "top_k": 20},
        {"temperature": 0.3, "seed": 7, "presence_penalty": 0.4, "frequency_penalty": 0.1, "repetition_penalty": 1.1},
        {"logit_bias": {9: -1.0}, "min_tokens": 30},
    ],
)
def test_drafts_change_no_token(following: Any, sampling: dict[str, Any]) -> None:
    job = job_of([*CYCLE, *CYCLE, 7], max_tokens=150, ignore_eos=True, **sampling)
    quick, plain, forward = both(job, following)
    assert ends(quick) == ends(plain)
    assert following is scattered or any(rows > 1 for feeds in forward.feeds for _, rows in feeds)


def test_repetitive_text_takes_few_steps() -> None:
    job = job_of(CYCLE * 3, max_tokens=200, ignore_eos=True)
    quick, plain, forward = both(job)
    assert tokens_of(quick) == tokens_of(plain)
    assert len(forward.feeds) < 200 / 4
    assert max(len(chunk.tokens) for chunk in quick) == MAX_DRAFT_TOKENS + 1


def test_text_that_never_repeats_costs_few_drafts() -> None:
    job = job_of(CYCLE, max_tokens=300, ignore_eos=True)
    _, _, forward = both(job, scattered)
    drafted = sum(rows > 1 for feeds in forward.feeds for _, rows in feeds)
    assert 0 < drafted < 300 / 10


@pytest.mark.parametrize("stop", CYCLE)
def test_a_stop_token_inside_a_draft_ends_the_turn_there(stop: int) -> None:
    job = job_of(CYCLE * 3, max_tokens=100, stop_ids=(stop,), min_tokens=3)
    quick, plain, _ = both(job)
    assert ends(quick) == ends(plain)
    assert quick[-1].stop_id == stop == quick[-1].tokens[-1]


@pytest.mark.parametrize("count", range(1, 14))
def test_max_tokens_is_kept_to_the_token(count: int) -> None:
    quick, plain, _ = both(job_of(CYCLE * 3, max_tokens=count, ignore_eos=True))
    assert ends(quick) == ends(plain)
    assert len(tokens_of(quick)) == count and quick[-1].finish == "length"


def test_each_token_has_its_own_log_probabilities() -> None:
    quick, plain, _ = both(job_of(CYCLE * 3, max_tokens=40, top_logprobs=3, temperature=0.3, seed=3))
    entries = [[entry for chunk in chunks for entry in chunk.logprobs] for chunks in (quick, plain)]
    assert entries[0] == entries[1] and len(entries[0]) == 40
    assert all(len(chunk.logprobs) == len(chunk.tokens) for chunk in quick)


def test_a_mask_is_asked_for_each_token_in_its_turn() -> None:
    asked: list[list[int]] = []
    (core, _), job = rigged(cycling), job_of(CYCLE * 3, max_tokens=40, ignore_eos=True)
    core.add(job)
    sequence = core._jobs["j"]

    class Guide:
        told: list[int] = []  # noqa: RUF012  # one test's

        def next_mask(self) -> None:
            asked.append(sequence.tokens.tolist()[len(job.tokens) :])
            assert asked[-1] == self.told

        def advance(self, token: int) -> None:
            self.told.append(token)

    sequence.sampling_state.grammar = Guide()
    said = tokens_of(drain(core)["j"])
    assert asked == [said[:n] for n in range(40)]


def test_a_row_without_a_usable_number_fails_after_what_came_before() -> None:
    core, forward = rigged(cycling)
    row = forward._row
    forward._row = lambda history: row(history) * (float("nan") if len(history) > 40 else 1.0)  # type: ignore[method-assign]
    chunks = drain(core, job_of(CYCLE * 3, max_tokens=100, ignore_eos=True))["j"]
    assert len(tokens_of(chunks)) == 41 - 21
    assert chunks[-1].finish == "error" and not chunks[-1].tokens
    assert not len(core._cache_manager.prefix_cache)


def test_what_was_guessed_wrong_is_not_left_in_the_cache() -> None:
    core, _ = rigged(cycling)
    prompt = CYCLE * 3
    answer = run(core, job_of(prompt, max_tokens=100, ignore_eos=True))
    job = job_of([*prompt, *answer, 9], max_tokens=50, ignore_eos=True)
    chunks = drain(core, job)["j"]
    assert chunks[0].cached_tokens == len(prompt) + 99
    plain, _ = rigged(cycling, enable_prefix_caching=False, max_draft_seqs=0)
    assert tokens_of(chunks) == run(plain, job)


def test_only_one_that_runs_alone_gets_drafts_unless_more_are_allowed() -> None:
    jobs = [job_of(CYCLE * 3, str(n), max_tokens=60, ignore_eos=True) for n in range(2)]
    (core, forward), (pair, paired) = (
        rigged(cycling, enable_prefix_caching=False),
        rigged(cycling, enable_prefix_caching=False, max_draft_seqs=2),
    )
    one, two = drain(core, *jobs), drain(pair, *jobs)
    assert all(rows == 1 for feeds in forward.feeds if len(feeds) == 2 for _, rows in feeds)
    assert any(rows > 1 for feeds in paired.feeds if len(feeds) == 2 for _, rows in feeds)
    assert [tokens_of(one[name]) for name in "01"] == [tokens_of(two[name]) for name in "01"]


def test_drafts_stay_within_the_memory_and_the_context() -> None:
    core, forward = rigged(cycling, context=60, max_cache_tokens=60)
    chunks = drain(core, job_of(CYCLE * 3, ignore_eos=True))["j"]
    assert len(tokens_of(chunks)) == 60 - 21
    assert any(rows > 1 for feeds in forward.feeds for _, rows in feeds)


def test_where_checking_a_draft_costs_more_than_it_brings_there_are_none() -> None:
    core, forward = rigged(cycling, enable_prefix_caching=False)
    forward.base, forward.per_token = 0.0, 1.0
    drain(core, job_of(CYCLE * 3, max_tokens=400, ignore_eos=True))
    late = forward.feeds[len(forward.feeds) // 2 :]
    assert sum(rows > 1 for feeds in late for _, rows in feeds) < len(late) / 10


@pytest.mark.parametrize("family", ["llama", "gpt_oss", "mistral"])
def test_drafts_change_no_token_of_a_transformer(family: str) -> None:
    quick, plain = core_for(family), core_for(family)
    plain._max_draft_seqs = 0
    for options in ({}, {"temperature": 0.7, "seed": 4}):
        few = dict.fromkeys(range(5, 9), 8.0)
        job = job_of([5, 6, 7, 8] * 6, max_tokens=60, ignore_eos=True, logit_bias=few, **options)
        assert run(quick, job) == run(plain, job)
    assert quick.stats().steps < plain.stats().steps


def test_a_prompt_that_arrives_beside_drafts_is_not_held_up_by_them() -> None:
    core, forward = rigged(cycling, context=3000)
    forward.per_token = 0.5
    core.add(job_of(CYCLE * 3, "stream", max_tokens=2000, ignore_eos=True))
    for _ in range(20):
        core.step()
    core.add(job_of([5] * 600, "prompt", max_tokens=1, ignore_eos=True))
    ends: list[str] = []
    while core.has_work:
        ends += [name for name, chunk in core.step() if chunk.finish]
    assert ends == ["prompt", "stream"]
