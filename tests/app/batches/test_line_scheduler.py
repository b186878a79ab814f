"""Turns of owners and batches: each gets its share of the places, whatever the others have queued."""

from collections import Counter

from antiphon.app.batches.line_scheduler import LineQueue, LineScheduler
from antiphon.app.store.batches.records import BatchLine


def make_queue(owner: str, batch: str, num_lines: int, model: str = "m") -> LineQueue[str]:
    queue = LineQueue(owner, batch)
    queue.lines.extend(
        BatchLine(number=number, rank=number, start=0, length=1, custom_id=str(number), model=model)
        for number in range(num_lines)
    )
    return queue


def run_lines(scheduler: LineScheduler[str], num_places: int, num_ends: int) -> list[str]:
    """Runs lines on so many places, of which the oldest ends each time. Returns the batches of the starts."""
    running: list[LineQueue[str]] = []
    started: list[str] = []
    while len(started) < num_ends:
        while len(running) < num_places and (found := scheduler.start_next(lambda _: True)) is not None:
            running.append(found[0])
            started.append(found[0].run)
        if not running:
            break
        scheduler.end_line(running.pop(0))
    return started


def test_owners_share_the_places_equally() -> None:
    scheduler: LineScheduler[str] = LineScheduler()
    for queue in (make_queue("a", "a1", 50_000), make_queue("b", "b1", 10)):
        scheduler.add_queue(queue)
    started = run_lines(scheduler, num_places=6, num_ends=30)
    assert started[:20].count("b1") == 10  # every second one, until it has no more
    assert set(started[20:]) == {"a1"}


def test_a_small_batch_is_delayed_by_its_share_only() -> None:
    """An owner's batch of ten that arrives in the middle of another's takes every second place from then on."""
    scheduler: LineScheduler[str] = LineScheduler()
    scheduler.add_queue(make_queue("a", "a1", 50_000))
    for _ in range(4):
        assert scheduler.start_next(lambda _: True) is not None
    late = make_queue("b", "b1", 10)
    scheduler.add_queue(late)
    first = scheduler.start_next(lambda _: True)
    assert first is not None and first[0] is late


def test_batches_of_one_owner_take_turns() -> None:
    scheduler: LineScheduler[str] = LineScheduler()
    for name in ("a1", "a2", "a3"):
        scheduler.add_queue(make_queue("a", name, 100))
    scheduler.add_queue(make_queue("b", "b1", 100))
    counts = Counter(run_lines(scheduler, num_places=4, num_ends=60))
    assert counts == {"b1": 30, "a1": 10, "a2": 10, "a3": 10}


def test_a_batch_whose_model_is_busy_keeps_no_other_waiting() -> None:
    scheduler: LineScheduler[str] = LineScheduler()
    scheduler.add_queue(make_queue("a", "a1", 3, model="busy"))
    scheduler.add_queue(make_queue("a", "a2", 3, model="free"))
    found = scheduler.start_next(lambda queue: queue.lines[0].model == "free")
    assert found is not None and found[0].run == "a2"
    assert scheduler.start_next(lambda _: False) is None


def test_lines_run_in_the_order_of_their_queue() -> None:
    scheduler: LineScheduler[str] = LineScheduler()
    queue = make_queue("a", "a1", 5)
    scheduler.add_queue(queue)
    found = [scheduler.start_next(lambda _: True) for _ in range(6)]
    assert [entry[1].number if entry else None for entry in found] == [0, 1, 2, 3, 4, None]
    for _ in range(5):
        scheduler.end_line(queue)
    scheduler.remove_queue(queue)
    assert scheduler.start_next(lambda _: True) is None
