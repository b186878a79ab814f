"""Waits for servers that start or stop: as long as they make progress, however slow the machine is.

A fixed deadline fails on a busy machine, and its message does not tell a slow server from a dead one. Progress is CPU
time of the process and its descendants, and the time in which they wait for a CPU: a process that computes will be done
some time, however few turns the others leave to it, and one that hangs does neither.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

HANG_TIMEOUT_S = 100.0
"""Time after which what a test waits for counts as hanging: generous, since it decides no result on a busy machine."""
POLL_INTERVAL_S = 0.01
STALL_WINDOW_S = 30.0
"""Time without progress after which a process counts as stalled."""
MIN_CPU_S_PER_WINDOW = 0.5
"""CPU time, and time of waiting for a CPU, in a window that counts as progress. Polling takes less."""
PROC = Path("/proc")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class StalledError(AssertionError):
    """The process neither reached the state nor used the CPU."""


def wait_with_progress(
    condition: Callable[[], object],
    what: str,
    *,
    pid: int | None = None,
    cpu_seconds: Callable[[int], float] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Waits until the condition is true. Raises `StalledError` if the process `pid` (default: this one) stalls.

    The condition may raise an error of its own, such as that the process has exited.
    """
    pid, measure = pid or os.getpid(), cpu_seconds or tree_cpu_seconds
    window_start, cpu_at_start = clock(), measure(pid)
    while not condition():
        sleep(POLL_INTERVAL_S)
        if clock() - window_start < STALL_WINDOW_S:
            continue
        cpu = measure(pid)
        # The sum falls where a process has ended whose CPU time no other one takes over: that is progress, too.
        if abs(cpu - cpu_at_start) < MIN_CPU_S_PER_WINDOW and not condition():
            raise StalledError(f"{what}: no progress for {STALL_WINDOW_S:g} s ({cpu - cpu_at_start:.2f} s of CPU time)")
        window_start, cpu_at_start = clock(), cpu


def tree_cpu_seconds(pid: int) -> float:
    """Returns the CPU time of a process and its descendants in seconds; without `/proc`, wall-clock time.

    The time in which their first threads could have run, but other processes did, is part of it. A descendant that
    exits and was waited for is counted by its parent.
    """
    if not (PROC / "self/stat").exists():
        return time.monotonic()  # the test's own time limit is then the only one
    parents: dict[int, int] = {}
    times: dict[int, float] = {}
    for entry in PROC.iterdir():
        if entry.name.isdecimal():
            try:
                # The name of the program, in parentheses, may contain blanks.
                fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            except OSError:  # it has exited
                continue
            parents[int(entry.name)] = int(fields[1])
            times[int(entry.name)] = sum(map(int, fields[11:15])) / _TICKS_PER_SECOND + _waited_seconds(entry)
    return sum(seconds for process, seconds in times.items() if _descends(process, pid, parents))


def _waited_seconds(entry: Path) -> float:
    """Returns how long the first thread of a process was ready to run, and did not."""
    try:
        return int((entry / "schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, IndexError):  # it has exited, or the kernel counts nothing
        return 0.0


def _descends(process: int, ancestor: int, parents: dict[int, int]) -> bool:
    while process > 0:
        if process == ancestor:
            return True
        process = parents.get(process, 0)
    return False
