"""Names of the processes that write to a store, by which another process sees whether one is still alive.

Clocks step, and those of two machines differ. So a heartbeat is no time to compare with: a process is alive while its
heartbeat changes, in the time of the process that watches.

A name has the machine's boot id, the process id, the start time of the process and a random part. The boot id is
followed by the namespace of process ids: in another container of the same machine, the process id means nothing.
"""

import os
import re
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

NAME = re.compile(r"(?P<machine>[^:]*):(?P<pid>\d+):(?P<start_time>\d*):[0-9a-f]*")


def create_name() -> str:
    """Returns a new name for this process."""
    return f"{_machine_id()}:{os.getpid()}:{_process_start_time(os.getpid())}:{secrets.token_hex(4)}"


class HeartbeatWatch:
    """Tells which writers are alive: those whose heartbeats have changed within `lease_s` seconds of watching.

    Time in which this process did not watch, because it paused or had no database, hardly counts: the others may have
    paused with it. Any thread may ask.
    """

    def __init__(self, own_name: str, lease_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._own_name, self._lease_s, self._clock, self._watched_at = own_name, lease_s, clock, clock()
        self.takes_requests: Callable[[str], bool] = lambda _: True
        """Tells from the figures of a server whether it takes requests. The observing thread calls it."""
        self.num_serving = 1
        """Number of live servers that take requests; 1 if there is none."""
        self._seen: dict[str, tuple[float, float]] = {}
        """The heartbeat of each writer, and the seconds of watching for which it has not changed."""

    def observe(self, writers: Sequence[tuple[str, float, str]]) -> None:
        """Notes name, heartbeat and figures of every writer. Call it at each heartbeat of this process."""
        now = self._clock()
        passed_s, self._watched_at = min(now - self._watched_at, self._lease_s / 2), now
        seen = self._seen
        self._seen = {
            name: (heartbeat, known[1] + passed_s if (known := seen.get(name)) and known[0] == heartbeat else 0.0)
            for name, heartbeat, _ in writers
        }
        alive = self.list_alive()
        self.num_serving = max(sum(name in alive and self.takes_requests(figures) for name, _, figures in writers), 1)

    def restart(self) -> None:
        """Begins to watch anew after an outage, in which no heartbeat could change: no silence before it counts."""
        self._watched_at = self._clock()
        self._seen = {name: (heartbeat, 0.0) for name, (heartbeat, _) in self._seen.items()}

    def is_alive(self, name: str, heartbeat: float) -> bool:
        """Tells whether a writer is alive that has this heartbeat now, or 0 if it has none."""
        if name == self._own_name:
            return True
        if not heartbeat or _has_ended(name):
            return False
        known = self._seen.get(name)
        return known is None or known[0] != heartbeat or known[1] < self._lease_s

    def list_alive(self) -> set[str]:
        """Returns the names of the writers that were alive when they were observed."""
        return {name for name, (heartbeat, _) in self._seen.items() if self.is_alive(name, heartbeat)}


def is_recent(name: str, heartbeat: float, lease_s: float) -> bool:
    """Tells whether a writer seems to be alive to a process that looks once: a guess, except on this machine."""
    if _runs_here(name):
        return not _has_ended(name)
    return abs(time.time() - heartbeat) < lease_s


def _runs_here(name: str) -> bool:
    found = NAME.fullmatch(name)
    return found is not None and found["machine"] == _machine_id() and bool(found["start_time"])


def _has_ended(name: str) -> bool:
    """Tells whether a writer ran on this machine, and its process exists no more."""
    found = NAME.fullmatch(name)
    return _runs_here(name) and found is not None and _process_start_time(int(found["pid"])) != found["start_time"]


def _machine_id() -> str:
    """Returns the boot id of this machine with the namespace of this process; without one, its host name."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot_id}.{Path('/proc/self/ns/pid').readlink().name.strip('pid:[]')}"
    except OSError:
        return f"unknown-{os.uname().nodename}"


def _process_start_time(pid: int) -> str:
    """Returns the start time of a process in clock ticks; empty if there is no such process or no `/proc`."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
