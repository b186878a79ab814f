"""The number of threads follows the time for which threads wait for a core."""

import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.engine.host.thread_governor import (
    CPU_LOAD_INTERVAL_S,
    FIRST_RETRY_S,
    MAX_RETRY_S,
    ThreadGovernor,
    ThreadTimes,
    read_thread_times,
)


class Machine:
    """A machine on which the threads wait for `share` of the time in which they could run."""

    def __init__(self, threads: int) -> None:
        self.now, self.share, self.running, self.waiting = 0.0, 0.0, 0.0, 0.0
        self.changes: list[int] = []
        self.governor = ThreadGovernor(
            threads, self.changes.append, read_times=self._read_times, clock=lambda: self.now
        )

    def _read_times(self) -> ThreadTimes:
        return ThreadTimes(int(self.running), int(self.waiting))

    def run(self, seconds: float, share: float) -> None:
        """Runs steps of 10 ms, and updates the governor after each."""
        for _ in range(round(seconds / 0.01)):
            self.now += 0.01
            self.running += 1e7 * (1 - share)
            self.waiting += 1e7 * share
            self.governor.update()


def test_all_threads_are_used_on_a_quiet_machine() -> None:
    machine = Machine(8)
    machine.run(100, 0.02)
    assert machine.changes == []


@pytest.mark.parametrize(("threads", "share", "expected"), [(2, 0.4, 1), (2, 0.11, 1), (8, 0.5, 4), (16, 0.11, 14)])
def test_threads_are_reduced_by_the_share_of_waiting(threads: int, share: float, expected: int) -> None:
    machine = Machine(threads)
    machine.run(CPU_LOAD_INTERVAL_S + 0.011, share)
    assert machine.changes == [expected]
    machine.run(1, 0.0)
    assert machine.governor.current == expected


def test_persistent_waiting_reduces_to_one_thread() -> None:
    machine = Machine(16)
    machine.run(1.9, 0.5)
    assert machine.changes == [8, 4, 2, 1]


def test_all_threads_are_tried_again_at_growing_intervals() -> None:
    machine = Machine(2)
    for index in range(6):
        machine.run(3 * CPU_LOAD_INTERVAL_S, 0.4)
        assert machine.governor.current == 1
        machine.run(min(FIRST_RETRY_S * 2**index, MAX_RETRY_S) - 4 * CPU_LOAD_INTERVAL_S, 0.0)
        assert machine.governor.current == 1
        machine.run(4 * CPU_LOAD_INTERVAL_S, 0.0)
        assert machine.governor.current == 2
    machine.run(20, 0.0)
    machine.run(3 * CPU_LOAD_INTERVAL_S, 0.4)
    assert machine.governor.current == 1
    machine.run(FIRST_RETRY_S + CPU_LOAD_INTERVAL_S, 0.0)
    assert machine.governor.current == 2, "a long time with all threads resets the interval"


def test_nothing_changes_where_the_system_counts_no_waiting() -> None:
    now = iter(range(100))
    governor = ThreadGovernor(4, pytest.fail, read_times=lambda: None, clock=lambda: float(next(now)))
    for _ in range(50):
        governor.update()


def test_times_are_summed_over_the_threads(tmp_path: Path) -> None:
    assert read_thread_times(tmp_path) is None
    for name, text in (("1", "100 20 3\n"), ("2", "50 7 1\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "schedstat").write_text(text)
    (tmp_path / "3").mkdir()
    assert read_thread_times(tmp_path) == ThreadTimes(150, 27)


COMPETE = """
import os, time
from antiphon.engine.host.thread_governor import read_thread_times
cpu = min(os.sched_getaffinity(0))
os.sched_setaffinity(0, {cpu})
children = []
for _ in range(2):
    child = os.fork()
    if not child:
        while True: pass
    children.append(child)
try:
    before, end = read_thread_times(), time.monotonic() + 1
    while time.monotonic() < end: pass
    after = read_thread_times()
finally:
    for child in children:
        os.kill(child, 9)
print("none" if before is None else after.waiting - before.waiting > after.running - before.running)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_competing_processes_are_seen_as_waiting() -> None:
    output = subprocess.run([sys.executable, "-c", COMPETE], capture_output=True, text=True, check=True).stdout
    assert output.strip() in {"True", "none"}
