"""Resident memory of a process, read from the operating system."""

import subprocess
from pathlib import Path

_PS = "/bin/ps"
"""Its place on macOS. On Linux it is not needed."""
_PS_TIMEOUT_S = 5.0
"""Longest wait for `ps`."""


def read_resident_bytes(pid: int) -> int | None:
    """Returns the resident memory of a process; None if it is unknown.

    Linux has it in `/proc`; elsewhere `ps` is run, which takes some milliseconds.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None if Path("/proc/self").exists() else _ask_ps(pid)
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")), None)


def _ask_ps(pid: int) -> int | None:
    command = [_PS, "-o", "rss=", "-p", str(pid)]
    try:
        reply = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PS_TIMEOUT_S)  # noqa: S603
        return int(reply.stdout) * 1024
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
