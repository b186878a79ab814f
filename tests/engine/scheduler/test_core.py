"""The core: what a job may ask for, how it ends, and what one job's misfortune does to the others."""

from itertools import pairwise
from statistics import median
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from antiphon.engine.builder import build_core_from_model
from antiphon.engine.options import EngineOptions
from antiphon.engine.protocol import Chunk, EngineError, Fault, Job
from antiphon.engine.scheduler.core import Core
from tests.engine.fake_model import Rigged, rigged
from tests.engine.tiny_models import EOS, VOCAB, core_for, drain, fresh, generate, job_of, prompts, run, tiny, tokens_of

SHORT, LONG = prompts(4, 40)


def idle(core: Core) -> bool:
    stats = core.stats()
    return not core.has_work and stats.running == stats.waiting == stats.running_cache_tokens == 0


def refusal(core: Core, job: Job) -> EngineError:
    with pytest.raises(EngineError) as caught:
        core.add(job)
    return caught.value


def logits_of(tokens: list[int]) -> Any:
    with torch.inference_mode():
        return tiny("llama")(torch.tensor([tokens])).logits[0]


def test_the_first_chunk_is_admission_and_the_last_has_the_finish() -> None:
    core = core_for()
    chunks = drain(core, job_of(SHORT, max_tokens=3))["j"]
    assert chunks[0] == Chunk()
    assert [len(chunk.tokens) for chunk in chunks] == [0, 1, 1, 1]
    assert [chunk.finish for chunk in chunks] == [None, None, None, "length"]
    assert idle(core)
    assert (core.stats().prompt_tokens, core.stats().generated_tokens, core.stats().finished_jobs) == (4, 3, 1)


def test_a_stop_token_ends_the_turn_and_is_its_last_token() -> None:
    core = core_for()
    free = run(core, job_of(SHORT, max_tokens=20, ignore_eos=True))
    stop = free[5]
    chunks = drain(core, job_of(SHORT, max_tokens=20, stop_ids=(stop,)))["j"]
    assert tokens_of(chunks) == free[: free.index(stop) + 1]
    assert (chunks[-1].finish, chunks[-1].stop_id) == ("stop", stop)
    late = run(core, job_of(SHORT, max_tokens=20, stop_ids=(stop,), min_tokens=12))
    assert stop not in late[:12]


def test_eos_ends_the_turn_unless_it_is_ignored() -> None:
    core = core_for()
    forced: dict[str, Any] = {"logit_bias": {EOS: 1000.0}, "max_tokens": 3}
    assert core.info.eos_ids == (EOS,)
    chunks = drain(core, job_of(SHORT, **forced))["j"]
    assert tokens_of(chunks) == [EOS] and chunks[-1].finish == "stop" and chunks[-1].stop_id == EOS
    assert run(core, job_of(SHORT, ignore_eos=True, **forced)) == [EOS] * 3


def test_the_context_bounds_an_answer_without_max_tokens() -> None:
    core = core_for(max_model_len=50)
    assert core.info.max_model_len == 50
    assert len(run(core, job_of(LONG, ignore_eos=True))) == 10
    assert len(run(core, job_of(LONG, ignore_eos=True, max_tokens=99))) == 10
    assert refusal(core, job_of([5] * 50)).code == "context_length_exceeded"
    assert core_for(max_model_len=10_000).info.max_model_len == 256


def test_log_probabilities_are_the_models_own() -> None:
    core = core_for(max_batched_tokens=7)
    job = job_of(LONG, max_tokens=4, top_logprobs=3, prompt_logprobs=2, ignore_eos=True, presence_penalty=1.0)
    chunks = drain(core, job, job_of(SHORT, "other", max_tokens=9))["j"]
    said = tokens_of(chunks)
    truth = logits_of(LONG + said).log_softmax(-1)
    entries = [entry for chunk in chunks for entry in chunk.logprobs]
    assert [entry.id for entry in entries] == said
    for place, entry in enumerate(entries, len(LONG) - 1):
        assert entry.logprob == pytest.approx(float(truth[place, entry.id]), abs=1e-4)
        assert [value for _, value in entry.top] == pytest.approx(truth[place].topk(3).values.tolist(), abs=1e-4)
    assert [bool(chunk.prompt_logprobs) for chunk in chunks] == [False, True, False, False, False]
    first, *rest = chunks[1].prompt_logprobs
    assert first is None and [entry.id for entry in rest if entry] == LONG[1:]
    measured = [entry.logprob for entry in rest if entry]
    assert measured == pytest.approx([float(truth[n, token]) for n, token in enumerate(LONG[1:])], abs=1e-4)


def test_prompt_log_probabilities_can_be_all_that_is_asked_for() -> None:
    chunks = drain(core_for(), job_of(SHORT, max_tokens=0, prompt_logprobs=0))["j"]
    assert [chunk.finish for chunk in chunks] == [None, "length"]
    assert len(chunks[1].prompt_logprobs) == len(SHORT) and not chunks[1].tokens


def test_a_seed_gives_the_same_tokens_alone_and_in_a_batch() -> None:
    core, job = core_for(max_num_seqs=4), job_of(SHORT, temperature=1.2, seed=11, max_tokens=20, ignore_eos=True)
    alone = run(core, job)
    others = [job_of(prompt, str(n), temperature=0.9, max_tokens=15) for n, prompt in enumerate(prompts(9, 30, 2))]
    assert tokens_of(drain(core, *others, job)["j"]) == alone
    assert run(core, job_of(SHORT, temperature=1.2, seed=12, max_tokens=20, ignore_eos=True)) != alone


def test_bias_and_penalties_reach_the_sampler() -> None:
    core = core_for()
    banned = run(core, job_of(SHORT, max_tokens=4, ignore_eos=True))[0]
    assert banned not in run(core, job_of(SHORT, max_tokens=8, logit_bias={banned: -1000.0}, ignore_eos=True))
    varied = run(core, job_of(SHORT, max_tokens=30, frequency_penalty=500.0, ignore_eos=True))
    assert len(set(varied)) == 30


def test_a_long_prompt_does_not_hold_up_the_others() -> None:
    core = core_for(max_num_seqs=2, max_batched_tokens=8)
    core.add(job_of(SHORT, "quick", max_tokens=30, ignore_eos=True))
    core.step(), core.step()
    core.add(job_of(LONG, "slow", max_tokens=2))
    heard = []
    while core.has_work:
        said = core.step()
        heard.append([name for name, chunk in said if chunk.tokens])
    waiting = heard[: next(n for n, names in enumerate(heard) if "slow" in names)]
    assert len(waiting) >= len(LONG) // 8
    assert all("quick" in names for names in waiting[1:])


def test_cancel_frees_the_slot_within_a_step() -> None:
    core = core_for(max_num_seqs=1)
    core.add(job_of(SHORT, "first", ignore_eos=True))
    core.add(job_of(SHORT, "second", max_tokens=1))
    core.step(), core.step()
    core.cancel("first")
    core.cancel("unknown")
    assert core.stats().running == 0
    said = core.step()
    assert said == [("first", Chunk(finish="cancelled")), ("second", Chunk())]
    assert [name for name, _ in core.step()] == ["second"]
    assert idle(core)


def test_a_waiting_job_that_is_cancelled_was_never_admitted() -> None:
    core = core_for(max_num_seqs=1)
    core.add(job_of(SHORT, "first", max_tokens=2))
    core.add(job_of(SHORT, "second"))
    core.cancel("second")
    assert drain(core)["second"] == [Chunk(finish="cancelled")]


def test_a_fault_in_the_model_fails_the_jobs_of_that_step_and_the_next_is_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = fresh("llama")
    core = build_core_from_model(model, options=EngineOptions(max_num_seqs=2))
    core.add(job_of(SHORT, "a", ignore_eos=True))
    core.add(job_of(LONG, "b", ignore_eos=True))
    core.add(job_of(SHORT, "c", max_tokens=5))
    core.step(), core.step()
    handle = model.lm_head.register_forward_hook(lambda *_: 1 / 0)
    said = dict(core.step())
    handle.remove()
    assert set(said) == {"a", "b"}
    for chunk in said.values():
        assert chunk.finish == "error" and chunk.fault is not None
        assert (chunk.fault.code, chunk.fault.retryable) == ("server_error", True)
        assert "ZeroDivisionError" in chunk.fault.message and "\n" not in chunk.fault.message
    assert "ZeroDivisionError" in caplog.text
    assert tokens_of(drain(core)["c"]) == generate("llama", SHORT, 5)
    assert idle(core) and core.stats().failed_jobs == 2


def test_the_queue_is_bounded() -> None:
    core = core_for(max_num_seqs=1, max_waiting=1)
    core.add(job_of(SHORT, "a", max_tokens=1))
    core.add(job_of(SHORT, "b", max_tokens=1))
    error = refusal(core, job_of(SHORT, "c"))
    assert (error.code, error.retryable) == ("server_is_overloaded", True)
    drain(core)
    assert idle(core)


def test_priorities_go_first_and_equals_in_the_order_of_arrival() -> None:
    core = core_for(max_num_seqs=1)
    for name, priority in [("a", 0), ("b", 0), ("urgent", 5), ("c", 0), ("later", -1)]:
        core.add(job_of(SHORT, name, priority=priority, max_tokens=1))
    order = []
    while core.has_work:
        order += [name for name, chunk in core.step() if chunk.finish]
    assert order == ["urgent", "a", "b", "c", "later"]


def test_a_deadline_ends_running_and_waiting_jobs() -> None:
    now = 0.0
    small = core_for(max_num_seqs=1)
    core = Core(small._forward, small.info, max_num_seqs=1, clock=lambda: now)
    core.add(job_of(SHORT, "a", deadline=5.0, ignore_eos=True))
    core.add(job_of(SHORT, "b", deadline=5.0))
    core.step(), core.step()
    now = 5.0
    ends = dict(core.step())
    assert {name: chunk.fault.code for name, chunk in ends.items() if chunk.fault} == dict.fromkeys(
        "ab", "deadline_exceeded"
    )
    assert idle(core)


def test_when_the_cache_is_full_the_youngest_gives_way_and_is_computed_again() -> None:
    small = core_for(max_num_seqs=3)
    core = Core(
        small._forward, small.info, max_num_seqs=3, max_cache_tokens=60, max_batched_tokens=16, max_draft_seqs=0
    )
    asked = prompts(12, 14, 10)
    chunks = drain(
        core,
        *(job_of(prompt, str(n), max_tokens=30, prompt_logprobs=0, ignore_eos=True) for n, prompt in enumerate(asked)),
    )
    for n, prompt in enumerate(asked):
        answer = generate("llama", prompt, 30)
        assert tokens_of(chunks[str(n)])[: len(answer)] == answer
        assert [chunk.finish for chunk in chunks[str(n)]].count(None) == 30
        assert sum(len(chunk.prompt_logprobs) for chunk in chunks[str(n)]) == len(prompt)
    assert core.stats().generated_tokens == 90 and idle(core)


def test_abort_ends_everything() -> None:
    core = core_for(max_num_seqs=1)
    core.add(job_of(SHORT, "a", ignore_eos=True))
    core.add(job_of(SHORT, "b"))
    core.step(), core.step()
    fault = Fault("engine_unavailable", "bye", retryable=True)
    assert core.abort(fault) == [(name, Chunk(finish="error", fault=fault)) for name in "ab"]
    assert idle(core)


@pytest.mark.parametrize(
    ("job", "code"),
    [
        (job_of([]), "invalid_request"),
        (job_of([VOCAB]), "invalid_request"),
        (job_of([-1]), "invalid_request"),
        (job_of(SHORT, logit_bias={VOCAB: 1.0}), "invalid_request"),
        (job_of(SHORT, stop_ids=(VOCAB,)), "invalid_request"),
        (job_of(SHORT, repetition_penalty=0.0), "invalid_request"),
        (job_of(SHORT, grammar="start: A"), "grammar_unsupported"),
    ],
)
def test_a_job_that_cannot_run_is_refused(job: Job, code: str) -> None:
    assert refusal(core_for(), job).code == code


def test_a_job_id_is_used_once_at_a_time() -> None:
    core = core_for()
    core.add(job_of(SHORT, max_tokens=1))
    assert refusal(core, job_of(SHORT)).code == "invalid_request"
    drain(core)
    assert run(core, job_of(SHORT, max_tokens=1))


def test_numbers_that_are_none_end_the_job_with_a_fault() -> None:
    model = fresh("llama")
    core = build_core_from_model(model)
    with torch.inference_mode():
        model.lm_head.weight[0] = float("nan")
    last = drain(core, job_of(SHORT))["j"][-1]
    assert last.finish == "error" and last.fault is not None and not last.fault.retryable
    assert idle(core)


def gaps(core: Core, forward: Rigged, names: set[str]) -> list[float]:
    """The median time between the tokens of these streams, over each of them, until one of them ends."""
    heard: dict[str, list[float]] = {name: [] for name in names}
    while names:
        for name, chunk in core.step():
            if name in heard and chunk.tokens:
                heard[name].append(forward.now)
            if name in names and chunk.finish:
                names = set()
    return [median(later - earlier for earlier, later in pairwise(times)) for times in heard.values()]


@pytest.mark.parametrize(("base", "per_token"), [(60.0, 2.4), (131.0, 5.0), (4.0, 0.1)])
def test_a_long_prompt_among_eight_streams_raises_their_median_gap_less_than_twofold(
    base: float, per_token: float
) -> None:
    """Milliseconds as measured on two cores; the prompt is still being computed when the streams end."""

    def streams(with_prompt: bool) -> list[float]:
        core, forward = rigged(context=7000, max_batched_tokens=512)
        forward.base, forward.per_token = base, per_token
        for n in range(8):
            core.add(job_of([3 + n] * 20, str(n), max_tokens=100, ignore_eos=True))
        for _ in range(20):
            core.step()
        if with_prompt:
            core.add(job_of([4] * 6000, "long", max_tokens=1, ignore_eos=True))
        return gaps(core, forward, set(map(str, range(8))))

    before, during = median(streams(False)), median(streams(True))
    assert 1.2 * before < during < 2 * before


def test_prompts_that_come_together_are_computed_in_whole_chunks() -> None:
    core, forward = rigged(max_batched_tokens=512)
    drain(core, *(job_of([3 + n] * 130, str(n), max_tokens=1, ignore_eos=True) for n in range(3)))
    assert forward.feeds == [[(130, 1), (130, 1), (130, 1)]]


def test_an_owner_with_fewer_jobs_takes_a_place_and_whoever_loses_it_is_told() -> None:
    core, _ = rigged(max_num_seqs=1, max_waiting=2)
    for name in ("a", "b", "c"):
        core.add(job_of(SHORT, name, owner="many", max_tokens=1))
    core.step()
    core.add(job_of(SHORT, "d", owner="one", max_tokens=1))
    chunks = drain(core)
    assert [chunk.fault.code for chunk in chunks["c"] if chunk.fault] == ["server_is_overloaded"]
    assert len(chunks["c"]) == 1 and all(chunks[name][-1].finish == "length" for name in "bd")
    assert core.stats().failed_jobs == 1 and idle(core)


def test_a_higher_priority_is_the_last_to_give_way() -> None:
    core, _ = rigged(max_num_seqs=3, max_cache_tokens=150, max_batched_tokens=64, max_draft_seqs=0)
    for n, priority in enumerate([-1, 0, 1]):
        core.add(job_of([3 + n] * 30, str(n), priority=priority, max_tokens=60, ignore_eos=True))
    ends = []
    while core.has_work:
        ends += [name for name, chunk in core.step() if chunk.finish]
    assert ends == ["2", "1", "0"]


def test_prompt_tokens_are_counted_once_when_a_step_has_read_them() -> None:
    core, forward = rigged(max_batched_tokens=16, max_num_seqs=1)
    core.add(job_of([5] * 40, "a", max_tokens=2))
    seen = []
    for _ in range(4):
        core.step()
        seen.append(core.stats().prompt_tokens)
    assert seen == [0, 16, 32, 40]
    drain(core)
    forward.broken = True
    drain(core, job_of([6] * 40, "b"))
    assert core.stats().prompt_tokens == 40, "nothing was read"
    forward.broken = False
    drain(core, job_of([5] * 40, "c", max_tokens=2))
    assert core.stats().prompt_tokens == 80, "what is read from the cache counts too"
