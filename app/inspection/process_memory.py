"""Memory of this process and of its children, from /proc."""

import contextlib
from pathlib import Path

from msgspec import Struct

_PROC = Path("/proc")


class ProcessMemory(Struct, frozen=True):
    """Resident memory of a process, in bytes."""

    pid: int
    name: str
    resident_bytes: int


def read_resident_bytes(proc: Path = _PROC) -> list[ProcessMemory]:
    """Returns this process, then its children; nothing on systems without /proc."""
    found: list[ProcessMemory] = []
    with contextlib.suppress(OSError, ValueError):
        own = int((proc / "self").resolve().name)
        children = (proc / f"{own}/task/{own}/children").read_text().split()
        for pid in (own, *map(int, children)):
            with contextlib.suppress(OSError, ValueError):  # it has ended meanwhile
                fields = dict(
                    line.split(":", 1) for line in (proc / f"{pid}/status").read_text().splitlines() if ":" in line
                )
                if "VmRSS" in fields:
                    resident = int(fields["VmRSS"].split()[0]) * 1024
                    found.append(ProcessMemory(pid, fields["Name"].strip(), resident))
    return found
