"""Drafts of a draft model: they change no token, follow what they cost, and take a stated memory."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from antiphon.engine.builder import build_core, build_core_from_model
from antiphon.engine.errors import LoadError
from antiphon.engine.options import EngineOptions
from antiphon.engine.protocol import Chunk, Job
from antiphon.engine.scheduler.core import Core
from antiphon.engine.scheduler.drafts.draft_model import MAX_LAG_TOKENS, DraftModel
from antiphon.engine.scheduler.drafts.draft_policy import MAX_DRAFT_TOKENS
from tests.engine.fake_model import (
    VOCAB_SIZE,
    FakeModel,
    NextToken,
    build_core_with_fake_model,
    make_tokens,
    next_token_by_hash,
)
from tests.engine.scheduler.scheduler_helpers import SAMPLINGS
from tests.engine.tiny_models import (
    DEVICE,
    copy_tiny_model,
    generate_tokens,
    join_tokens,
    make_job,
    make_prompts,
    run_jobs,
)

DRAFT_TIME, TOKEN_TIME = 0.05, 0.01
"""Durations of a pass of the draft model, and of each token in a pass of the target model, in passes of the latter."""


def corrupt(next_token: NextToken, percent: int) -> NextToken:
    """Returns a function that returns the same token after this part of all histories, and another one after others."""

    def next_draft_token(history: list[int]) -> int:
        token = next_token(history)
        is_right = random.Random(repr(("corrupt", history))).randrange(100) < percent
        return token if is_right else 3 + (token - 2) % (VOCAB_SIZE - 3)

    return next_draft_token


def build_pair(
    percent: int, next_token: NextToken = next_token_by_hash, *, draft_tokens: int = 20_000, **options: Any
) -> tuple[Core, FakeModel, FakeModel]:
    """Returns a core, its model and its draft model, whose acceptance is `percent` for greedy jobs."""
    draft = FakeModel(corrupt(next_token, percent))
    draft.base_time, draft.time_per_token = DRAFT_TIME, DRAFT_TIME / 100
    draft_model = DraftModel(draft, vocab_size=VOCAB_SIZE, max_model_len=1000, max_tokens=draft_tokens)
    core, model = build_core_with_fake_model(next_token, **{"draft_model": draft_model, "max_draft_seqs": 0} | options)
    model.time_per_token = TOKEN_TIME
    core.clock = core.drafting.model_drafts._clock = lambda: model.now + draft.now  # type: ignore[union-attr]
    return core, model, draft


def build_plain(**options: Any) -> tuple[Core, FakeModel]:
    core, model = build_core_with_fake_model(max_draft_seqs=0, **options)
    model.time_per_token = TOKEN_TIME
    return core, model


def get_draft_model(core: Core) -> DraftModel:
    assert core.drafting.model_drafts is not None
    return core.drafting.model_drafts.model


def list_results(chunks: dict[str, list[Chunk]]) -> dict[str, tuple[list[int], str | None, int | None]]:
    return {name: (join_tokens(each), each[-1].finish, each[-1].stop_id) for name, each in chunks.items()}


def run_in_turns(core: Core, jobs: list[Job], cancelled: frozenset[str] = frozenset()) -> dict[str, list[Chunk]]:
    """Adds a job at every ninth step and cancels some 30 steps later. Returns the chunks of all."""
    chunks: dict[str, list[Chunk]] = {job.id: [] for job in jobs}
    waiting, step, started = list(jobs), 0, dict[str, int]()
    while core.has_work or waiting:
        if step % 9 == 0 and waiting:
            core.add(waiting[0])
            started[waiting.pop(0).id] = step
        for name in cancelled & started.keys():
            if step - started[name] == 30:
                core.cancel(name)
        for name, chunk in core.step():
            chunks[name].append(chunk)
        step += 1
    return chunks


# Drafts change no token.


@pytest.mark.parametrize("percent", [0, 50, 90, 100])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_drafts_change_no_token(percent: int, sampling: dict[str, Any]) -> None:
    jobs = [
        make_job(make_tokens(60, 3 * n), str(n), max_tokens=70, ignore_eos=True, top_logprobs=2, **sampling)
        for n in range(2)
    ]
    core, _, draft = build_pair(percent)
    drafted, plain = run_jobs(core, *jobs), run_jobs(build_plain()[0], *jobs)
    assert list_results(drafted) == list_results(plain)
    for name, chunks in drafted.items():
        entries = [[entry for chunk in each for entry in chunk.logprobs] for each in (chunks, plain[name])]
        assert entries[0] == entries[1] and len(entries[0]) == 70
    assert draft.passes and core.drafting.num_drafted


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("percent", [50, 90])
@pytest.mark.parametrize("cache_tokens", [250, 5000])
def test_drafts_change_no_token_of_streams_that_come_and_go(seed: int, percent: int, cache_tokens: int) -> None:
    """With little memory sequences are preempted; later prompts begin as earlier ones."""
    numbers = random.Random(seed)
    prompts = [make_tokens(numbers.randrange(2, 90), 3 * n) for n in range(4)]
    jobs = [
        make_job(
            prompts[n % 4] + make_tokens(numbers.randrange(4), n),
            str(n),
            max_tokens=numbers.choice([1, 2, 3, 40, 90]),
            **numbers.choice(SAMPLINGS[:4]),
        )
        for n in range(10)
    ]
    cancelled = frozenset({"3", "7"})
    core, model, _ = build_pair(percent, max_num_seqs=4, max_cache_tokens=cache_tokens, draft_tokens=cache_tokens)
    drafted, plain = (
        run_in_turns(each, jobs, cancelled)
        for each in (core, build_plain(max_num_seqs=4, max_cache_tokens=cache_tokens)[0])
    )
    for job in jobs:
        tokens, others = join_tokens(drafted[job.id]), join_tokens(plain[job.id])
        if job.id in cancelled:
            length = min(len(tokens), len(others))
            assert tokens[:length] == others[:length]
        else:
            assert tokens == others and drafted[job.id][-1].finish == plain[job.id][-1].finish
    assert any(len(chunk.tokens) > 1 for chunks in drafted.values() for chunk in chunks)
    assert not get_draft_model(core).caches and get_draft_model(core).memory_tokens <= cache_tokens
    assert any(rows > 1 for sequences in model.passes for _, rows in sequences)


@pytest.mark.parametrize("count", range(1, 12))
def test_max_tokens_is_exact(count: int) -> None:
    core, _, _ = build_pair(100)
    job = make_job(make_tokens(10), max_tokens=count, ignore_eos=True)
    assert list_results(run_jobs(core, job)) == list_results(run_jobs(build_plain()[0], job))


def test_stop_token_ends_draft_and_turn() -> None:
    tokens = generate_tokens(build_plain()[0], make_job(make_tokens(40), max_tokens=60, ignore_eos=True))
    stop = next(token for index, token in enumerate(tokens) if index > 30 and token not in tokens[:index])
    job = make_job(make_tokens(40), max_tokens=60, stop_ids=(stop,), ignore_eos=True)
    core, _, _ = build_pair(100)
    drafted = run_jobs(core, job)
    assert list_results(drafted) == list_results(run_jobs(build_plain()[0], job))
    assert drafted["j"][-1].stop_id == stop == drafted["j"][-1].tokens[-1]


def test_grammar_mask_is_computed_for_each_token_in_order() -> None:
    """The draft model knows no grammar: its tokens are sampled under the masks of their places."""
    core, _, _ = build_pair(90)
    job = make_job(make_tokens(30), max_tokens=60, ignore_eos=True)
    core.add(job)
    sequence = core.jobs["j"]
    histories: list[list[int]] = []

    class EvenMatcher:
        is_finished = False
        advanced: list[int] = []  # noqa: RUF012  # used by one test only

        def next_mask(self) -> torch.Tensor:
            histories.append(sequence.tokens.tolist()[len(job.tokens) :])
            assert histories[-1] == self.advanced
            return torch.arange(VOCAB_SIZE) % 2 == len(self.advanced) % 2

        def advance(self, token: int) -> None:
            self.advanced.append(token)

    sequence.sampling_state.grammar = EvenMatcher()  # type: ignore[assignment]
    tokens = join_tokens(run_jobs(core)["j"])
    assert histories == [tokens[:n] for n in range(60)] and core.drafting.num_drafted
    assert [token % 2 for token in tokens] == [0, 1] * 30


def test_ngrams_draft_first() -> None:
    cycle = [7, 8, 9, 10, 11]
    core, _, draft = build_pair(100, lambda history: cycle[len(history) % 5], max_draft_seqs=1)
    job = make_job([cycle[(n + 1) % 5] for n in range(20)], max_tokens=100, ignore_eos=True)
    assert join_tokens(run_jobs(core, job)["j"]) == [cycle[(20 + n) % 5] for n in range(100)]
    assert not draft.passes and core.drafting.num_accepted > 60


# Drafts follow what they cost.


@pytest.mark.parametrize(
    ("percent", "streams", "least", "most"),
    [
        (0, 1, 0.97, 1.0),
        (50, 1, 1.4, 1.7),
        (90, 1, 3.0, 5.0),
        (0, 4, 0.97, 1.0),
        (90, 4, 2.5, 4.0),
        (0, 8, 0.97, 1.0),
        (90, 8, 2.0, 3.5),
    ],
)
def test_speed_follows_acceptance(percent: int, streams: int, least: float, most: float) -> None:
    jobs = [make_job(make_tokens(100, 3 * n), str(n), max_tokens=160, ignore_eos=True) for n in range(streams)]
    core, model, draft = build_pair(percent)
    plain, plain_model = build_plain()
    assert list_results(run_jobs(core, *jobs)) == list_results(run_jobs(plain, *jobs))
    assert least < plain_model.now / (model.now + draft.now) < most


def test_drafts_end_above_the_batch_at_which_they_cost() -> None:
    """Each token takes a quarter of the time of a pass: one stream gains from drafts, eight do not."""
    ratios = {}
    for streams in (1, 8):
        core, model, draft = build_pair(70)
        plain, plain_model = build_plain()
        model.base_time = plain_model.base_time = 1.0
        model.time_per_token = plain_model.time_per_token = 0.25
        jobs = [make_job(make_tokens(60, 3 * n), str(n), max_tokens=180, ignore_eos=True) for n in range(streams)]
        run_jobs(core, *jobs)
        run_jobs(plain, *jobs)
        ratios[streams] = plain_model.now / (model.now + draft.now)
        is_drafted = [any(rows > 1 for _, rows in sequences) for sequences in model.passes]
        if streams == 8:
            assert sum(is_drafted) < len(is_drafted) / 6
    assert ratios[1] > 1.2 and ratios[8] > 0.95


def test_draft_model_reads_a_long_prompt_in_budgeted_chunks() -> None:
    core, model, draft = build_pair(90, max_model_len=1000)
    draft.time_per_token = 0.02  # the whole prompt takes 16 steps
    core.add(make_job(make_tokens(30), "stream", max_tokens=200, ignore_eos=True))
    for _ in range(30):
        core.step()
    core.add(make_job(make_tokens(800, 3), "prompt", max_tokens=100, ignore_eos=True))
    before, longest = model.now + draft.now, 0.0
    while core.has_work:
        draft_before = draft.now
        core.step()
        longest = max(longest, draft.now - draft_before)
    assert before and any(count > MAX_LAG_TOKENS for sequences in draft.passes[1:] for count, _ in sequences)
    assert longest < 2.0, "a step reads at most what the budget of prompts allows, or drafts"


# Memory, faults, limits.


@pytest.mark.parametrize("draft_tokens", [0, 40, 130, 400])
def test_caches_of_the_draft_model_stay_within_their_bound(draft_tokens: int) -> None:
    core, _, draft = build_pair(90, draft_tokens=draft_tokens)
    jobs = [make_job(make_tokens(40, 3 * n), str(n), max_tokens=80, ignore_eos=True) for n in range(4)]
    chunks: dict[str, list[Chunk]] = {job.id: [] for job in jobs}
    for job in jobs:
        core.add(job)
    while core.has_work:
        for name, chunk in core.step():
            chunks[name].append(chunk)
        assert get_draft_model(core).memory_tokens <= draft_tokens
    assert list_results(chunks) == list_results(run_jobs(build_plain()[0], *jobs))
    assert bool(draft.passes) == (draft_tokens > 40)


def test_next_turn_reuses_the_draft_models_prefix() -> None:
    core, _, draft = build_pair(90)
    prompt = make_tokens(200)
    output = generate_tokens(core, make_job(prompt, max_tokens=60, ignore_eos=True))
    draft.passes.clear()
    job = make_job([*prompt, *output, 9, 8], "next", max_tokens=40, ignore_eos=True)
    assert generate_tokens(core, job) == generate_tokens(build_plain()[0], job)
    assert sum(count for sequences in draft.passes for count, _ in sequences) < 120
    draft.passes.clear()
    generate_tokens(core, make_job([*prompt, *output, 9, 8], "other", owner="other", max_tokens=40, ignore_eos=True))
    assert sum(count for sequences in draft.passes for count, _ in sequences) > 260, "owners share nothing"


def test_a_failing_draft_model_ends_no_job(caplog: pytest.LogCaptureFixture) -> None:
    core, _, draft = build_pair(90)
    job = make_job(make_tokens(40), max_tokens=80, ignore_eos=True)
    core.add(job)
    chunks: list[Chunk] = []
    while core.has_work:
        draft.fails = len(join_tokens(chunks)) > 40
        chunks += [chunk for _, chunk in core.step()]
    assert join_tokens(chunks) == generate_tokens(build_plain()[0], job) and chunks[-1].finish == "length"
    assert core.drafting.model_drafts is None and "the draft model failed" in caplog.text


def test_suppressed_and_unknown_tokens_are_neither_proposed_nor_read() -> None:
    draft = FakeModel()
    model = DraftModel(draft, vocab_size=30, max_model_len=100, max_tokens=1000, suppressed_ids=(3, 4, 49))
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, [49, 3, 4, 7]] = torch.tensor([9.0, 8.0, 7.0, 6.0])
    assert model.pick(logits) == [7]
    core, _ = build_plain()
    for tokens, is_known in (([5, 29], True), ([5, 30], False), ([5] * 95, False)):
        core.add(make_job(tokens, str(len(tokens) + tokens[-1])))
        sequence = core.jobs[str(len(tokens) + tokens[-1])]
        assert (model.count_unread(sequence, MAX_DRAFT_TOKENS) is not None) == is_known


# Models of transformers.


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny llama, and one with other weights."""
    paths = {name: tmp_path_factory.mktemp(name) for name in ("same", "other")}
    torch.manual_seed(3)
    for name, path in paths.items():
        model = copy_tiny_model("llama")
        with torch.no_grad():
            for weight in model.parameters():
                if name != "same" and weight.ndim == 2:
                    weight.add_(torch.randn_like(weight), alpha=0.5)
        model.save_pretrained(path)
    return paths


def corrupt_choices(model: DraftModel, percent: int) -> None:
    """Makes the draft model, whose weights are those of the target, choose another token at a part of the places."""
    pick, numbers = model.pick, random.Random(7)

    def pick_corrupted(logits: torch.Tensor) -> list[int]:
        return [token if numbers.randrange(100) < percent else 3 + token % 90 for token in pick(logits)]

    model.pick = pick_corrupted  # type: ignore[method-assign]


@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize(("name", "percent"), [("same", 100), ("same", 90), ("same", 50), ("same", 0), ("other", 100)])
def test_drafts_change_no_token_of_a_transformer(
    folders: dict[str, Path], quantization: Any, name: str, percent: int
) -> None:
    """Alone and in turns, with drafts in every step; in turns, the cache is too small, and two jobs are cancelled."""
    options = {"quantization": quantization, "force_quantization": True, "kv_cache_gib": 0.0005, "device": DEVICE}
    drafted = build_core(folders["same"], EngineOptions(draft_model=str(folders[name]), max_draft_seqs=0, **options))
    plain = build_core(folders["same"], EngineOptions(max_draft_seqs=0, **options))
    assert "drafts from LlamaForCausalLM" in drafted.info.description
    corrupt_choices(get_draft_model(drafted), percent)
    always = drafted.drafting.model_drafts
    assert always is not None
    always.policy.choose_length = lambda *_: (4, False)  # type: ignore[method-assign]
    always._is_promising = lambda _: True  # type: ignore[method-assign]
    prompts = make_prompts(5, 30, 60, 8, 31, 44)
    prompts += [prompts[2] + prompts[3]]
    jobs = [
        make_job(prompt, str(n), max_tokens=40, ignore_eos=True, **SAMPLINGS[n % 4]) for n, prompt in enumerate(prompts)
    ]
    stats = []
    for group, cancelled in (([jobs[0]], ()), ([jobs[2]], ()), (jobs, ("1", "5"))):
        results, others = (list_results(run_in_turns(core, group, frozenset(cancelled))) for core in (drafted, plain))
        for job in group:
            length = min(len(results[job.id][0]), len(others[job.id][0])) if job.id in cancelled else 40
            assert results[job.id][0][:length] == others[job.id][0][:length]
        stats.append(drafted.stats())
    assert stats[2].drafted_tokens > 100 and not get_draft_model(drafted).caches
    if name == "same":  # the first job is greedy
        share = stats[0].accepted_tokens / stats[0].drafted_tokens
        assert share == percent / 100 if percent in (0, 100) else share > 0.1


def test_memory_of_both_caches_counts(folders: dict[str, Path]) -> None:
    options = {"kv_cache_gib": 0.001, "device": "cpu"}
    plain, drafted = (
        build_core(folders["same"], EngineOptions(draft_model=draft, **options))
        for draft in (None, str(folders["other"]))
    )
    tokens = [core.cache_manager.max_tokens for core in (plain, drafted)]
    assert tokens[1] == tokens[0] // 2 == get_draft_model(drafted).max_tokens


@pytest.mark.parametrize("family", ["mamba", "lfm2", "bloom"])
def test_model_that_cannot_take_tokens_back_refuses_a_draft_model(family: str, folders: dict[str, Path]) -> None:
    options = EngineOptions(draft_model=str(folders["same"]), device="cpu")
    with pytest.raises(LoadError, match=r"--draft-model: \w+ has layers with a state.* leave --draft-model out$"):
        build_core_from_model(copy_tiny_model(family), options=options)


def test_draft_model_that_cannot_take_tokens_back_is_refused(tmp_path: Path) -> None:
    copy_tiny_model("lfm2").save_pretrained(tmp_path)
    with pytest.raises(LoadError, match=r"Lfm2ForCausalLM cannot draft, .* choose another model$"):
        build_core_from_model(copy_tiny_model("llama"), options=EngineOptions(draft_model=str(tmp_path), device="cpu"))
