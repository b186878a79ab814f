"""Names of the processes that write to a store, by which another process sees whether one is still alive.

A name has the machine's boot id, the process id, the start time of the process and a random part. The boot id is
followed by the namespace of process ids: in another container of the same machine, the process id means nothing.
"""

import os
import re
import secrets
import time
from pathlib import Path

NAME = re.compile(r"(?P<machine>[^:]*):(?P<pid>\d+):(?P<start_time>\d*):[0-9a-f]*")


def create_name() -> str:
    """Returns a new name for this process."""
    return f"{_machine_id()}:{os.getpid()}:{_process_start_time(os.getpid())}:{secrets.token_hex(4)}"


def is_alive(name: str, heartbeat_at: float, lease_s: float) -> bool:
    """Tells whether a writer is alive: its heartbeat is recent and, on this machine, its process still exists."""
    if (found := NAME.fullmatch(name)) and found["machine"] == _machine_id():
        start_time = _process_start_time(int(found["pid"]))
        if found["start_time"] and start_time != found["start_time"]:
            return False
    return time.time() - heartbeat_at < lease_s


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
