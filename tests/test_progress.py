"""Waiting on progress: a slow process is waited for, a stalled one is not."""

import os
import subprocess
import sys

import pytest

from tests.progress import STALL_WINDOW_S, StalledError, tree_cpu_seconds, wait_with_progress
from tests.serving import scripted_registry, serve


class FakeClock:
    """A clock that advances only in `sleep`."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_slow_process_is_waited_for_as_long_as_it_computes() -> None:
    clock = FakeClock()
    wait_with_progress(
        lambda: clock.now > 20 * STALL_WINDOW_S,
        "the server",
        cpu_seconds=lambda _: clock.now / 50,
        clock=clock,
        sleep=clock.sleep,
    )
    assert clock.now > 20 * STALL_WINDOW_S


def test_process_that_stalls_is_an_error_after_one_window() -> None:
    clock = FakeClock()
    with pytest.raises(StalledError, match=r"the server: no progress for 30 s \(0\.20 s"):
        wait_with_progress(
            lambda: False,
            "the server",
            cpu_seconds=lambda _: min(clock.now, 10) + (0.2 if clock.now > 30 + STALL_WINDOW_S else 0),
            clock=clock,
            sleep=clock.sleep,
        )
    assert clock.now < 3 * STALL_WINDOW_S


def test_sum_that_falls_is_progress() -> None:
    """A descendant has ended whose CPU time nobody keeps, as vLLM's do at its start."""
    clock = FakeClock()
    wait_with_progress(
        lambda: clock.now > 2 * STALL_WINDOW_S,
        "the server",
        cpu_seconds=lambda _: 20.0 if clock.now < 10 else 5.0 + clock.now / 50,
        clock=clock,
        sleep=clock.sleep,
    )
    assert clock.now > 2 * STALL_WINDOW_S


def test_error_of_the_condition_ends_the_wait() -> None:
    def fail() -> bool:
        raise AssertionError("the process has exited")

    with pytest.raises(AssertionError, match="has exited"):
        wait_with_progress(fail, "the server")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_cpu_time_includes_descendants() -> None:
    busy = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\nprint('done', flush=True)\ninput()"
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", nested], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "done\n"
        seconds = tree_cpu_seconds(process.pid)
        own = tree_cpu_seconds(os.getpid())
        process.communicate("\n")
    assert seconds >= 0.3 and own >= seconds
    assert tree_cpu_seconds(process.pid) == 0


def test_server_that_cannot_start_reports_its_own_error() -> None:
    class BrokenRegistryError(Exception):
        pass

    registry = scripted_registry([{"name": "hello", "output": ["Hello."]}])

    async def fail() -> None:
        raise BrokenRegistryError

    registry.served[0].engine.start = fail  # type: ignore[method-assign]
    with pytest.raises(BrokenRegistryError), serve(registry):
        pass
