"""The queue of spans: a collector that is dead, slow or refuses costs spans, and nothing else."""

import threading
from collections.abc import Sequence
from enum import Enum
from typing import Any

import pytest

from antiphon.app.tracing.export import LOG_INTERVAL_S, SpanQueue
from tests.progress import wait_with_progress


class Result(Enum):
    SUCCESS = 0
    FAILURE = 1


class FakeExporter:
    """Answers as told; waits while `gate` is closed."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.result: Result | Exception = Result.SUCCESS
        self.gate, self.waiting = threading.Event(), threading.Event()
        self.gate.set()
        self.num_shutdowns = 0

    def export(self, spans: Sequence[Any], /) -> Result:
        self.waiting.set()
        self.gate.wait()
        self.batches.append(list(spans))
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    def shutdown(self) -> None:
        self.num_shutdowns += 1


@pytest.fixture
def exporter() -> FakeExporter:
    return FakeExporter()


def make_queue(exporter: FakeExporter, dropped: list[int], **options: Any) -> SpanQueue:
    defaults: dict[str, Any] = {"max_spans": 100, "max_batch": 10, "delay_s": 0.01}
    return SpanQueue(exporter, on_dropped=dropped.append, **{**defaults, **options})


def test_all_spans_are_sent_in_order(exporter: FakeExporter) -> None:
    dropped: list[int] = []
    queue = make_queue(exporter, dropped)
    for number in range(0, 90, 3):
        queue.add([number, number + 1, number + 2])
    queue.close()
    assert [span for batch in exporter.batches for span in batch] == list(range(90))
    assert max(map(len, exporter.batches)) <= 10 and not dropped


def test_spans_without_a_place_are_dropped_at_once(exporter: FakeExporter) -> None:
    dropped: list[int] = []
    exporter.gate.clear()
    queue = make_queue(exporter, dropped, max_spans=20)
    queue.add([0])
    exporter.waiting.wait()
    for number in range(1, 1_000_001, 1000):  # the collector hangs all the time
        queue.add(list(range(number, number + 1000)))
    assert sum(dropped) == 1_000_000 - 20
    exporter.gate.set()
    queue.close()
    sent = [span for batch in exporter.batches for span in batch]
    assert sent == list(range(21)) and sum(dropped) == 1_000_000 - 20


@pytest.mark.parametrize("result", [Result.FAILURE, RuntimeError("secret")])
def test_refused_batches_are_counted(
    exporter: FakeExporter, result: Result | Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    dropped: list[int] = []
    exporter.result = result
    queue = make_queue(exporter, dropped)
    queue.add(list(range(30)))
    wait_with_progress(lambda: sum(dropped) == 30, "all spans are dropped")
    exporter.result = Result.SUCCESS
    queue.add([99])
    queue.close()
    assert exporter.batches[-1] == [99] and sum(dropped) == 30
    assert "secret" not in capsys.readouterr().out


def test_exit_does_not_wait_for_a_collector_that_hangs(exporter: FakeExporter) -> None:
    dropped: list[int] = []
    exporter.gate.clear()
    queue = make_queue(exporter, dropped)
    queue.add(list(range(15)))
    exporter.waiting.wait()
    queue.close(0.1)  # returns, although the collector still hangs
    assert exporter.num_shutdowns == 1 and sum(dropped) == 15
    queue.add([1, 2])
    assert sum(dropped) == 17
    queue.close()
    exporter.gate.set()


def test_one_line_a_minute(exporter: FakeExporter, capsys: pytest.CaptureFixture[str]) -> None:
    now, dropped = [1000.0], list[int]()
    exporter.gate.clear()
    queue = make_queue(exporter, dropped, max_spans=1, clock=lambda: now[0])
    queue.add([0])
    exporter.waiting.wait()
    queue.add([0])
    for _ in range(50):
        queue.add([1, 2])
    assert capsys.readouterr().out.count("spans were dropped") == 1
    now[0] += LOG_INTERVAL_S
    queue.add([3])
    out = capsys.readouterr().out
    assert out.count("spans were dropped") == 1 and "count=99" in out
    exporter.gate.set()
    queue.close()
    assert sum(dropped) == 101
