"""A server as a process: started in a session of its own, watched through /proc, and ended for sure."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")


class Process:
    """One server and everything it starts. Its output goes to `log`."""

    def __init__(self, words: list[str], log: Path, environ: Mapping[str, str]) -> None:
        self.log = log
        self.begun = time.perf_counter()
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as out:
            self._child = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=os.environ | environ,
                start_new_session=True,
            )
        self.pid = self._child.pid
        self._seen: dict[int, str] = {}
        # Process to the time it began, so that a number that is given out again is not taken for ours.

    @property
    def over(self) -> bool:
        """Whether the first process has ended."""
        return self._child.poll() is not None

    def cpu(self) -> float:
        """CPU seconds so far, those of ended children that were waited for included."""
        return sum(sum(map(int, fields[11:15])) for _, fields in self._stats()) / TICK

    def peak(self) -> int:
        """Bytes: the sum of the most that each process has had in memory at once."""
        return sum(_status(pid, "VmHWM") for pid, _ in self._stats())

    def pause(self) -> None:
        """Stop every process of the session until :meth:`resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        self._signal(signal.SIGCONT)

    def end(self, patience: float = 10.0) -> None:
        """SIGTERM, and after `patience` seconds SIGKILL; nothing of the session is left."""
        self.resume()
        self._signal(signal.SIGTERM)
        until = time.monotonic() + patience
        while time.monotonic() < until and (not self.over or self._stats()):
            time.sleep(0.1)
        self._signal(signal.SIGKILL)
        self._child.wait(patience)

    def tail(self, lines: int = 5) -> str:
        """The end of what it printed."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _signal(self, number: signal.Signals) -> None:
        for pid, _ in self._stats():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _stats(self) -> list[tuple[int, list[str]]]:
        """(pid, fields of /proc/PID/stat from the state on) of every living process of the session, and of every
        descendant that has a session of its own, once it was seen.
        """
        living = dict(_living())
        ours = {
            pid for pid, fields in living.items() if int(fields[3]) == self.pid or self._seen.get(pid) == fields[19]
        }
        while more := {pid for pid, fields in living.items() if int(fields[1]) in ours} - ours:
            ours |= more
        self._seen |= {pid: living[pid][19] for pid in ours}
        return [(pid, living[pid]) for pid in sorted(ours)]


def _living() -> Iterator[tuple[int, list[str]]]:
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if fields[0] != "Z":
            yield int(folder.name), fields


def _status(pid: int, name: str) -> int:
    """A size of /proc/PID/status in bytes; 0 when the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)
