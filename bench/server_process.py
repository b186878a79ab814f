"""A server process with all its descendants: started in a session of its own, observed through /proc, and terminated."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ServerProcess:
    """A server and every process that it starts. The output is written to `log`."""

    def __init__(self, command: list[str], log: Path, env_vars: Mapping[str, str]) -> None:
        self.log = log
        self.started_at = time.perf_counter()
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | env_vars,
                start_new_session=True,
            )
        self.pid = self._popen.pid
        self._start_times: dict[int, str] = {}
        # Start time of each process by pid, so that a reused pid is not mistaken for one of the server's processes.

    @property
    def has_exited(self) -> bool:
        """True if the first process has exited."""
        return self._popen.poll() is not None

    def cpu_seconds(self) -> float:
        """Returns the CPU seconds used so far, including exited children that were waited for."""
        return sum(sum(map(int, fields[11:15])) for _, fields in self.process_stats()) / CLOCK_TICKS_PER_S

    def peak_memory(self) -> int:
        """Returns the sum of the peak resident memory of each process, in bytes."""
        return sum(_status_bytes(pid, "VmHWM") for pid, _ in self.process_stats())

    def resident_memory(self) -> int:
        """Returns the sum of the resident memory of each process now, in bytes."""
        return sum(_status_bytes(pid, "VmRSS") for pid, _ in self.process_stats())

    def largest_process_memory(self) -> tuple[int, int]:
        """Returns the peak and the present resident memory, in bytes, of the process that holds most now."""
        sizes = {pid: _status_bytes(pid, "VmRSS") for pid, _ in self.process_stats()}
        largest = max(sizes, key=lambda pid: sizes[pid])
        return _status_bytes(largest, "VmHWM"), sizes[largest]

    def pause(self) -> None:
        """Stops every process with SIGSTOP, until `resume`."""
        self._send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continues every process with SIGCONT."""
        self._send_signal(signal.SIGCONT)

    def terminate(self, timeout_s: float = 10.0) -> None:
        """Sends SIGTERM, and after `timeout_s` seconds SIGKILL, to every process."""
        self.resume()
        self._send_signal(signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and (not self.has_exited or self.process_stats()):
            time.sleep(0.1)
        self._send_signal(signal.SIGKILL)
        self._popen.wait(timeout_s)

    def kill(self, timeout_s: float = 10.0) -> None:
        """Sends SIGKILL to every process, and waits until the first one has ended."""
        self._send_signal(signal.SIGKILL)
        self._popen.wait(timeout_s)

    def tail(self, count: int = 5) -> str:
        """Returns the last `count` lines of the output."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])

    def _send_signal(self, number: signal.Signals) -> None:
        for pid, _ in self.process_stats():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def process_stats(self) -> list[tuple[int, list[str]]]:
        """Returns (pid, fields of /proc/PID/stat from the state on) of the server's running processes.

        These are the processes of the session and all descendants. A descendant with a session of its own is still
        recognized after its parent has exited, if an earlier call found it.
        """
        running = dict(_running_processes())
        pids = {
            pid
            for pid, fields in running.items()
            if int(fields[3]) == self.pid or self._start_times.get(pid) == fields[19]
        }
        while children := {pid for pid, fields in running.items() if int(fields[1]) in pids} - pids:
            pids |= children
        self._start_times |= {pid: running[pid][19] for pid in pids}
        return [(pid, running[pid]) for pid in sorted(pids)]


def _running_processes() -> Iterator[tuple[int, list[str]]]:
    """Yields (pid, fields of /proc/PID/stat from the state on) of all processes of the machine except zombies."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if fields[0] != "Z":
            yield int(folder.name), fields


def _status_bytes(pid: int, name: str) -> int:
    """Returns a size from /proc/PID/status in bytes, or 0 if the process has exited."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)
