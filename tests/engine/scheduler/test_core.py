"""The core: sampling options, the ends of jobs, faults, cancellation, priorities and preemption."""

from itertools import pairwise
from statistics import median
from typing import Any

import pytest
import torch

from antiphon.engine.builder import build_core_from_model
from antiphon.engine.options import EngineOptions
from antiphon.engine.protocol import Chunk, EngineError, Job
from antiphon.engine.scheduler.core import Core
from tests.engine.fake_model import FakeModel, build_core_with_fake_model
from tests.engine.tiny_models import (
    DEVICE,
    EOS_ID,
    VOCAB_SIZE,
    build_tiny_core,
    copy_tiny_model,
    generate_tokens,
    generate_with_transformers,
    join_tokens,
    make_job,
    make_prompts,
    run_jobs,
    tiny_model,
)

SHORT_PROMPT, LONG_PROMPT = make_prompts(4, 40)


def is_idle(core: Core) -> bool:
    stats = core.stats()
    return not core.has_work and stats.running == stats.waiting == stats.running_cache_tokens == 0


def catch_rejection(core: Core, job: Job) -> EngineError:
    with pytest.raises(EngineError) as caught:
        core.add(job)
    return caught.value


def compute_logits(tokens: list[int]) -> Any:
    with torch.inference_mode():
        return tiny_model("llama")(torch.tensor([tokens], device=DEVICE)).logits[0].cpu()


def test_first_chunk_is_admission_and_last_chunk_has_the_finish() -> None:
    core = build_tiny_core()
    chunks = run_jobs(core, make_job(SHORT_PROMPT, max_tokens=3))["j"]
    assert chunks[0] == Chunk()
    assert [len(chunk.tokens) for chunk in chunks] == [0, 1, 1, 1]
    assert [chunk.finish for chunk in chunks] == [None, None, None, "length"]
    assert is_idle(core)
    assert (core.stats().prompt_tokens, core.stats().generated_tokens, core.stats().finished_jobs) == (4, 3, 1)


def test_stop_token_ends_the_turn_and_is_its_last_token() -> None:
    core = build_tiny_core()
    unstopped = generate_tokens(core, make_job(SHORT_PROMPT, max_tokens=20, ignore_eos=True))
    stop = unstopped[5]
    chunks = run_jobs(core, make_job(SHORT_PROMPT, max_tokens=20, stop_ids=(stop,)))["j"]
    assert join_tokens(chunks) == unstopped[: unstopped.index(stop) + 1]
    assert (chunks[-1].finish, chunks[-1].stop_id) == ("stop", stop)
    delayed = generate_tokens(core, make_job(SHORT_PROMPT, max_tokens=20, stop_ids=(stop,), min_tokens=12))
    assert stop not in delayed[:12]


def test_eos_ends_the_turn_unless_it_is_ignored() -> None:
    core = build_tiny_core()
    forced: dict[str, Any] = {"logit_bias": {EOS_ID: 1000.0}, "max_tokens": 3}
    assert core.info.eos_ids == (EOS_ID,)
    chunks = run_jobs(core, make_job(SHORT_PROMPT, **forced))["j"]
    assert join_tokens(chunks) == [EOS_ID] and chunks[-1].finish == "stop" and chunks[-1].stop_id == EOS_ID
    assert generate_tokens(core, make_job(SHORT_PROMPT, ignore_eos=True, **forced)) == [EOS_ID] * 3


def test_context_length_limits_output_without_max_tokens() -> None:
    core = build_tiny_core(max_model_len=50)
    assert core.info.max_model_len == 50
    assert len(generate_tokens(core, make_job(LONG_PROMPT, ignore_eos=True))) == 10
    assert len(generate_tokens(core, make_job(LONG_PROMPT, ignore_eos=True, max_tokens=99))) == 10
    assert catch_rejection(core, make_job([5] * 50)).code == "context_length_exceeded"
    assert build_tiny_core(max_model_len=10_000).info.max_model_len == 256


def test_logprobs_equal_the_models_log_softmax() -> None:
    core = build_tiny_core(max_batched_tokens=7)
    job = make_job(LONG_PROMPT, max_tokens=4, top_logprobs=3, prompt_logprobs=2, ignore_eos=True, presence_penalty=1.0)
    chunks = run_jobs(core, job, make_job(SHORT_PROMPT, "other", max_tokens=9))["j"]
    tokens = join_tokens(chunks)
    expected = compute_logits(LONG_PROMPT + tokens).log_softmax(-1)
    entries = [entry for chunk in chunks for entry in chunk.logprobs]
    assert [entry.id for entry in entries] == tokens
    for index, entry in enumerate(entries, len(LONG_PROMPT) - 1):
        assert entry.logprob == pytest.approx(float(expected[index, entry.id]), abs=1e-4)
        assert [value for _, value in entry.top] == pytest.approx(expected[index].topk(3).values.tolist(), abs=1e-4)
    assert [bool(chunk.prompt_logprobs) for chunk in chunks] == [False, True, False, False, False]
    first, *others = chunks[1].prompt_logprobs
    assert first is None and [entry.id for entry in others if entry] == LONG_PROMPT[1:]
    measured = [entry.logprob for entry in others if entry]
    assert measured == pytest.approx([float(expected[n, token]) for n, token in enumerate(LONG_PROMPT[1:])], abs=1e-4)


def test_prompt_logprobs_without_output_tokens() -> None:
    chunks = run_jobs(build_tiny_core(), make_job(SHORT_PROMPT, max_tokens=0, prompt_logprobs=0))["j"]
    assert [chunk.finish for chunk in chunks] == [None, "length"]
    assert len(chunks[1].prompt_logprobs) == len(SHORT_PROMPT) and not chunks[1].tokens


def test_seeded_job_gets_the_same_tokens_alone_and_in_a_batch() -> None:
    core, job = (
        build_tiny_core(max_num_seqs=4),
        make_job(SHORT_PROMPT, temperature=1.2, seed=11, max_tokens=20, ignore_eos=True),
    )
    expected = generate_tokens(core, job)
    others = [
        make_job(prompt, str(n), temperature=0.9, max_tokens=15) for n, prompt in enumerate(make_prompts(9, 30, 2))
    ]
    assert join_tokens(run_jobs(core, *others, job)["j"]) == expected
    assert (
        generate_tokens(core, make_job(SHORT_PROMPT, temperature=1.2, seed=12, max_tokens=20, ignore_eos=True))
        != expected
    )


def test_logit_bias_and_penalties_reach_the_sampler() -> None:
    core = build_tiny_core()
    banned = generate_tokens(core, make_job(SHORT_PROMPT, max_tokens=4, ignore_eos=True))[0]
    assert banned not in generate_tokens(
        core, make_job(SHORT_PROMPT, max_tokens=8, logit_bias={banned: -1000.0}, ignore_eos=True)
    )
    varied = generate_tokens(core, make_job(SHORT_PROMPT, max_tokens=30, frequency_penalty=500.0, ignore_eos=True))
    assert len(set(varied)) == 30


def test_long_prompt_does_not_block_running_streams() -> None:
    core = build_tiny_core(max_num_seqs=2, max_batched_tokens=8)
    core.add(make_job(SHORT_PROMPT, "quick", max_tokens=30, ignore_eos=True))
    core.step(), core.step()
    core.add(make_job(LONG_PROMPT, "slow", max_tokens=2))
    names_by_step = []
    while core.has_work:
        chunks = core.step()
        names_by_step.append([name for name, chunk in chunks if chunk.tokens])
    before_slow = names_by_step[: next(n for n, names in enumerate(names_by_step) if "slow" in names)]
    assert len(before_slow) >= len(LONG_PROMPT) // 8
    assert all("quick" in names for names in before_slow[1:])


def test_cancel_frees_the_slot_in_the_next_step() -> None:
    core = build_tiny_core(max_num_seqs=1)
    core.add(make_job(SHORT_PROMPT, "first", ignore_eos=True))
    core.add(make_job(SHORT_PROMPT, "second", max_tokens=1))
    core.step(), core.step()
    core.cancel("first")
    core.cancel("unknown")
    assert core.stats().running == 0
    chunks = core.step()
    assert chunks == [("first", Chunk(finish="cancelled")), ("second", Chunk())]
    assert [name for name, _ in core.step()] == ["second"]
    assert is_idle(core)


def test_cancelled_waiting_job_is_never_admitted() -> None:
    core = build_tiny_core(max_num_seqs=1)
    core.add(make_job(SHORT_PROMPT, "first", max_tokens=2))
    core.add(make_job(SHORT_PROMPT, "second"))
    core.cancel("second")
    assert run_jobs(core)["second"] == [Chunk(finish="cancelled")]


def test_model_fault_fails_only_the_jobs_of_that_step(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = copy_tiny_model("llama")
    core = build_core_from_model(model, options=EngineOptions(max_num_seqs=2))
    core.add(make_job(SHORT_PROMPT, "a", ignore_eos=True))
    core.add(make_job(LONG_PROMPT, "b", ignore_eos=True))
    core.add(make_job(SHORT_PROMPT, "c", max_tokens=5))
    core.step(), core.step()
    handle = model.lm_head.register_forward_hook(lambda *_: 1 / 0)
    chunks = dict(core.step())
    handle.remove()
    assert set(chunks) == {"a", "b"}
    for chunk in chunks.values():
        assert chunk.finish == "error" and chunk.fault is not None
        assert (chunk.fault.code, chunk.fault.retryable) == ("server_error", True)
        assert "ZeroDivisionError" in chunk.fault.message and "\n" not in chunk.fault.message
    assert "ZeroDivisionError" in caplog.text
    assert join_tokens(run_jobs(core)["c"]) == generate_with_transformers("llama", SHORT_PROMPT, 5)
    assert is_idle(core) and core.stats().failed_jobs == 2


def test_full_queue_rejects_jobs() -> None:
    core = build_tiny_core(max_num_seqs=1, max_waiting=1)
    core.add(make_job(SHORT_PROMPT, "a", max_tokens=1))
    core.add(make_job(SHORT_PROMPT, "b", max_tokens=1))
    error = catch_rejection(core, make_job(SHORT_PROMPT, "c"))
    assert (error.code, error.retryable) == ("server_is_overloaded", True)
    run_jobs(core)
    assert is_idle(core)


def test_jobs_run_by_priority_then_by_arrival() -> None:
    core = build_tiny_core(max_num_seqs=1)
    for name, priority in [("a", 0), ("b", 0), ("urgent", 5), ("c", 0), ("low", -1)]:
        core.add(make_job(SHORT_PROMPT, name, priority=priority, max_tokens=1))
    order = []
    while core.has_work:
        order += [name for name, chunk in core.step() if chunk.finish]
    assert order == ["urgent", "a", "b", "c", "low"]


def test_deadline_ends_running_and_waiting_jobs() -> None:
    now = 0.0
    tiny_core = build_tiny_core(max_num_seqs=1)
    core = Core(tiny_core.forward, tiny_core.info, max_num_seqs=1, clock=lambda: now)
    core.add(make_job(SHORT_PROMPT, "a", deadline=5.0, ignore_eos=True))
    core.add(make_job(SHORT_PROMPT, "b", deadline=5.0))
    core.step(), core.step()
    now = 5.0
    ends = dict(core.step())
    assert {name: chunk.fault.code for name, chunk in ends.items() if chunk.fault} == dict.fromkeys(
        "ab", "deadline_exceeded"
    )
    assert is_idle(core)


def test_preempted_sequences_are_recomputed_with_the_same_tokens() -> None:
    tiny_core = build_tiny_core(max_num_seqs=3)
    core = Core(
        tiny_core.forward, tiny_core.info, max_num_seqs=3, max_cache_tokens=60, max_batched_tokens=16, max_draft_seqs=0
    )
    prompts = make_prompts(12, 14, 10)
    chunks = run_jobs(
        core,
        *(
            make_job(prompt, str(n), max_tokens=30, prompt_logprobs=0, ignore_eos=True)
            for n, prompt in enumerate(prompts)
        ),
    )
    for n, prompt in enumerate(prompts):
        expected = generate_with_transformers("llama", prompt, 30)
        assert join_tokens(chunks[str(n)])[: len(expected)] == expected
        assert [chunk.finish for chunk in chunks[str(n)]].count(None) == 30
        assert sum(len(chunk.prompt_logprobs) for chunk in chunks[str(n)]) == len(prompt)
    assert core.stats().generated_tokens == 90 and is_idle(core)


def test_core_has_work_while_a_chunk_waits() -> None:
    core, _ = build_core_with_fake_model()
    core.add(make_job(SHORT_PROMPT, "a"))
    core.cancel("a")
    assert core.has_work and core.stats().running == core.stats().waiting == 0
    assert core.step() == [("a", Chunk(finish="cancelled"))]
    assert not core.has_work


def test_admission_is_told_before_the_model_runs() -> None:
    core, model = build_core_with_fake_model()
    core.add(make_job(SHORT_PROMPT, "a", max_tokens=2, ignore_eos=True))
    assert core.step() == [("a", Chunk())]
    assert model.passes == []
    assert core.step() and len(model.passes) == 1


def test_finished_and_failed_jobs_are_counted_apart() -> None:
    core, model = build_core_with_fake_model()
    run_jobs(core, make_job(SHORT_PROMPT, "a", max_tokens=1))
    model.fails = True
    run_jobs(core, make_job(SHORT_PROMPT, "b", max_tokens=1))
    assert (core.stats().finished_jobs, core.stats().failed_jobs) == (2, 1)
    core.cancel("b")  # it has ended
    assert core.stats().finished_jobs == 2


@pytest.mark.parametrize(
    ("num_prompts", "limit", "has_drafts"), [(1, 1, True), (2, 1, False), (2, 2, True), (1, 0, False)]
)
def test_drafts_need_few_sequences_of_which_all_decode(num_prompts: int, limit: int, has_drafts: bool) -> None:
    core, model = build_core_with_fake_model(lambda history: 3 + len(history) % 4, max_draft_seqs=limit)
    for name in range(num_prompts):
        prompt = [3 + (name + index) % 4 for index in range(40)]
        core.add(make_job(prompt, str(name), max_tokens=60, ignore_eos=True))
    for _ in range(20):
        core.step()
    assert any(count > 1 for tokens in model.passes[1:] for count, _ in tokens) is has_drafts
    model.passes.clear()
    core.add(make_job([7] * 900, "prompt", max_tokens=1))
    core.step(), core.step()
    assert all(rows <= 1 for tokens in model.passes for _, rows in tokens), "no drafts beside a prompt"


@pytest.mark.parametrize(
    ("job", "code"),
    [
        (make_job([]), "invalid_request"),
        (make_job([VOCAB_SIZE]), "invalid_request"),
        (make_job([-1]), "invalid_request"),
        (make_job(SHORT_PROMPT, logit_bias={VOCAB_SIZE: 1.0}), "invalid_request"),
        (make_job(SHORT_PROMPT, stop_ids=(VOCAB_SIZE,)), "invalid_request"),
        (make_job(SHORT_PROMPT, repetition_penalty=0.0), "invalid_request"),
        (make_job(SHORT_PROMPT, grammar="start: A"), "grammar_unsupported"),
    ],
)
def test_invalid_jobs_are_rejected(job: Job, code: str) -> None:
    assert catch_rejection(build_tiny_core(), job).code == code


def test_job_id_of_an_unfinished_job_is_rejected() -> None:
    core = build_tiny_core()
    core.add(make_job(SHORT_PROMPT, max_tokens=1))
    assert catch_rejection(core, make_job(SHORT_PROMPT)).code == "invalid_request"
    run_jobs(core)
    assert generate_tokens(core, make_job(SHORT_PROMPT, max_tokens=1))


def test_nan_logits_end_the_job_with_a_fault() -> None:
    model = copy_tiny_model("llama")
    core = build_core_from_model(model)
    with torch.inference_mode():
        model.lm_head.weight[0] = float("nan")
    last = run_jobs(core, make_job(SHORT_PROMPT))["j"][-1]
    assert last.finish == "error" and last.fault is not None and not last.fault.retryable
    assert is_idle(core)


def measure_gaps(core: Core, model: FakeModel, names: set[str]) -> list[float]:
    """Returns the median time between tokens of each of these streams, measured until one of them ends."""
    token_times: dict[str, list[float]] = {name: [] for name in names}
    while names:
        for name, chunk in core.step():
            if name in token_times and chunk.tokens:
                token_times[name].append(model.now)
            if name in names and chunk.finish:
                names = set()
    return [median(later - earlier for earlier, later in pairwise(times)) for times in token_times.values()]


@pytest.mark.parametrize(("base", "per_token"), [(60.0, 2.4), (131.0, 5.0), (4.0, 0.1)])
def test_long_prompt_less_than_doubles_the_gap_of_eight_streams(base: float, per_token: float) -> None:
    """Times are milliseconds, measured on two cores. The prompt is still being computed when the streams end."""

    def measure_streams(with_prompt: bool) -> list[float]:
        core, model = build_core_with_fake_model(max_model_len=7000, max_batched_tokens=512)
        model.base_time, model.time_per_token = base, per_token
        for n in range(8):
            core.add(make_job([3 + n] * 20, str(n), max_tokens=100, ignore_eos=True))
        for _ in range(20):
            core.step()
        if with_prompt:
            core.add(make_job([4] * 6000, "long", max_tokens=1, ignore_eos=True))
        return measure_gaps(core, model, set(map(str, range(8))))

    before, during = median(measure_streams(False)), median(measure_streams(True))
    assert 1.2 * before < during < 2 * before


def test_simultaneous_prompts_are_computed_in_one_pass() -> None:
    core, model = build_core_with_fake_model(max_batched_tokens=512)
    run_jobs(core, *(make_job([3 + n] * 130, str(n), max_tokens=1, ignore_eos=True) for n in range(3)))
    assert model.passes == [[(130, 1), (130, 1), (130, 1)]]


def test_job_of_a_lighter_owner_displaces_a_queued_job() -> None:
    core, _ = build_core_with_fake_model(max_num_seqs=1, max_waiting=2)
    for name in ("a", "b", "c"):
        core.add(make_job(SHORT_PROMPT, name, owner="many", max_tokens=1))
    core.step()
    core.add(make_job(SHORT_PROMPT, "d", owner="one", max_tokens=1))
    chunks = run_jobs(core)
    assert [chunk.fault.code for chunk in chunks["c"] if chunk.fault] == ["server_is_overloaded"]
    assert len(chunks["c"]) == 1 and all(chunks[name][-1].finish == "length" for name in "bd")
    assert core.stats().failed_jobs == 1 and is_idle(core)


def test_high_priority_sequence_is_preempted_last() -> None:
    core, _ = build_core_with_fake_model(max_num_seqs=3, max_cache_tokens=150, max_batched_tokens=64, max_draft_seqs=0)
    for n, priority in enumerate([-1, 0, 1]):
        core.add(make_job([3 + n] * 30, str(n), priority=priority, max_tokens=60, ignore_eos=True))
    ends = []
    while core.has_work:
        ends += [name for name, chunk in core.step() if chunk.finish]
    assert ends == ["2", "1", "0"]


def test_prompt_tokens_are_counted_once_after_they_are_read() -> None:
    core, model = build_core_with_fake_model(max_batched_tokens=16, max_num_seqs=1)
    core.add(make_job([5] * 40, "a", max_tokens=2))
    counts = []
    for _ in range(4):
        core.step()
        counts.append(core.stats().prompt_tokens)
    assert counts == [0, 16, 32, 40]
    run_jobs(core)
    model.fails = True
    run_jobs(core, make_job([6] * 40, "b"))
    assert core.stats().prompt_tokens == 40, "the failed step counts nothing"
    model.fails = False
    run_jobs(core, make_job([5] * 40, "c", max_tokens=2))
    assert core.stats().prompt_tokens == 80, "tokens read from the cache count too"
