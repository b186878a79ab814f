"""Places of engines: jobs of batches take none from other jobs, and there are never more than twice the capacity."""

import asyncio

import pytest

from antiphon.engine.protocol import BATCH_PRIORITY, EngineError, Job, is_full
from antiphon.engine.scheduler.scheduler import Scheduler
from antiphon.engine.scripted.engine import ScriptedEngine
from tests.engine.scheduler.scheduler_helpers import make_scheduler, make_sequence
from tests.serving import scripted_registry

CAPACITY = 3


def has_place(open_jobs: list[int], priority: int) -> bool:
    return not is_full(CAPACITY, open_jobs, priority)


@pytest.mark.parametrize(
    ("open_jobs", "others", "batches"),
    [
        ([], True, True),
        ([0, 0], True, True),
        ([0, 0, 0], False, False),
        ([0, -50, -99], False, False),
        ([BATCH_PRIORITY] * 3, True, False),
        ([0, 0, BATCH_PRIORITY, BATCH_PRIORITY - 1], True, False),
        ([0, 0, 0, BATCH_PRIORITY], False, False),
    ],
)
def test_places_by_priority(open_jobs: list[int], others: bool, batches: bool) -> None:
    assert [has_place(open_jobs, priority) for priority in (0, -99, BATCH_PRIORITY)] == [others, others, batches]


def test_number_of_jobs_has_a_limit() -> None:
    """Whatever priorities clients choose, at most twice the capacity is open."""
    open_jobs: list[int] = []
    for priority in sorted(range(-300, 1), key=lambda priority: priority):
        if has_place(open_jobs, priority):
            open_jobs.append(priority)
    assert len(open_jobs) == 2 * CAPACITY


def test_scheduler_queues_others_beside_batches() -> None:
    scheduler = make_scheduler(max_num_seqs=2, max_waiting=1)
    for number in range(3):
        scheduler.add(make_sequence(f"batch{number}", f"b{number}", priority=BATCH_PRIORITY))
    with pytest.raises(EngineError):
        scheduler.add(make_sequence("late", "late", priority=BATCH_PRIORITY))
    for number in range(3):
        assert scheduler.add(make_sequence(f"other{number}", f"o{number}")) is None
    with pytest.raises(EngineError):
        scheduler.add(make_sequence("late", "late"))
    assert [sequence.job.id for sequence in scheduler.waiting[:3]] == ["other0", "other1", "other2"]


def admit_all(scheduler: Scheduler) -> list[str]:
    """Frees the places that others wait for, admits what can be admitted, and returns the names of what runs."""
    for _ in scheduler.yield_places():
        pass
    for _ in scheduler.admit_waiting(lambda *_: None):
        pass
    return sorted(sequence.job.id for sequence in scheduler.running)


def test_lines_of_batches_give_their_slots_to_others() -> None:
    """Three slots: the youngest lines are preempted, as many as others wait, and come back when there is a slot."""
    scheduler = make_scheduler(max_num_seqs=3)
    for number in range(3):
        scheduler.add(make_sequence(f"batch{number}", priority=BATCH_PRIORITY))
    assert admit_all(scheduler) == ["batch0", "batch1", "batch2"]
    for number in range(2):
        scheduler.add(make_sequence(f"other{number}"))
    assert admit_all(scheduler) == ["batch0", "other0", "other1"]
    scheduler.add(make_sequence("flex", priority=-50))
    assert admit_all(scheduler) == ["flex", "other0", "other1"]
    scheduler.add(make_sequence("last"))
    assert admit_all(scheduler) == ["flex", "other0", "other1"]  # only lines of batches give their slots away
    for sequence in list(scheduler.running):
        scheduler.remove(sequence)
    assert admit_all(scheduler) == ["batch0", "batch1", "last"]


def test_lines_of_batches_give_their_cache_to_others() -> None:
    scheduler = make_scheduler(max_num_seqs=8, max_cache_tokens=40)
    for number in range(3):
        scheduler.add(make_sequence(f"batch{number}", length=10, priority=BATCH_PRIORITY))
    assert admit_all(scheduler) == ["batch0", "batch1", "batch2"]
    scheduler.add(make_sequence("other", length=20))
    assert admit_all(scheduler) == ["batch0", "other"]


def test_lines_of_batches_pause_while_a_prompt_of_others_is_computed() -> None:
    scheduler = make_scheduler(max_num_seqs=4)
    scheduler.add(make_sequence("batch", priority=BATCH_PRIORITY))
    admit_all(scheduler)
    (batch,) = scheduler.running
    batch.num_computed_tokens = len(batch.tokens) - 1
    scheduler.add(make_sequence("other"))
    admit_all(scheduler)
    assert [sequence.job.id for sequence, _ in scheduler.schedule()] == ["other"]
    other = next(sequence for sequence in scheduler.running if sequence.job.id == "other")
    other.num_computed_tokens = len(other.tokens) - 1
    assert [sequence.job.id for sequence, _ in scheduler.schedule()] == ["batch", "other"]


async def test_scripted_engine_gives_slots_by_priority() -> None:
    """One slot: of the jobs that wait, the one with the highest priority is next, whichever came first."""
    registry = scripted_registry(
        [{"name": "any", "output": ["word " * 20]}], delay=0.001, max_num_seqs=1, max_waiting=8
    )
    engine = registry.served[0].engine
    assert isinstance(engine, ScriptedEngine)
    ends: list[str] = []

    async def run(job_id: str, priority: int) -> None:
        await engine.generate(Job(id=job_id, tokens=(1, 2), priority=priority), lambda _: None)
        ends.append(job_id)

    tasks = []
    for job_id, priority in (("first", 0), ("batch", BATCH_PRIORITY), ("flex", -50), ("other", 0)):
        tasks.append(asyncio.create_task(run(job_id, priority)))
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert ends == ["first", "other", "flex", "batch"]
