"""Runs a server of another project, such as vLLM, as a child process, and starts it again when it exits."""

import asyncio
import contextlib
import logging
import os
import shutil
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from antiphon.engine.process.spawn import child_environment, describe_exit

log = logging.getLogger(__name__)

GUARD = """
import os, signal, subprocess, sys, threading, time
timeout = float(sys.argv[1])
watched, held = os.pipe()
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.close(held)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.read(watched, 1)
    os.killpg(0, signal.SIGTERM)
    time.sleep(timeout)
    os.killpg(0, signal.SIGKILL)
os.close(watched)
child = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def end_group():
    os.killpg(0, signal.SIGTERM)
    try:
        child.wait(timeout)
    except subprocess.TimeoutExpired:
        pass
    code = child.poll()
    print(f"exit {code}", file=sys.stderr, flush=True)
    os.killpg(0, signal.SIGKILL)
def watch_parent():
    sys.stdin.read()
    end_group()
threading.Thread(target=watch_parent, daemon=True).start()
child.wait()
end_group()
"""
"""Code of the process between this one and the server. It ends the server with all its processes when the server exits,
and when its standard input ends, which also happens if this process is killed.

If the guard is killed itself, a second process, which waits for the end of a pipe that the guard holds open, ends the
server with all its processes. A pipe works on every system, unlike a signal at the death of a parent.
"""
EXIT_LINE = "exit "
TERM_TIMEOUT_S = 5.0
"""Time that the server has to exit after SIGTERM."""
RESTART_DELAYS_S = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Delays before the first and the later restarts."""
KEPT_LINES = 40
MAX_LOG_LINE_BYTES = 1 << 20


class ChildServer:
    """A server that `command` starts. `on_exit` is called with the reason when it exits.

    What the server prints is logged at the level DEBUG. If it exits before it has ever served, `failure` says why, and
    it is not started again. `folder`, in which its socket is, is deleted at the end.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        folder: Path | None = None,
        on_exit: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.name, self._folder = Path(command[0]).name, folder
        self.on_exit = on_exit
        self.status: str | None = None
        """The step that the server is at while it cannot be reached."""
        self.failure: str | None = None
        self.has_served = False
        self.pid: int | None = None
        self.command, self._lines = tuple(command), deque[str](maxlen=KEPT_LINES)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts the server and watches it."""
        if self._task is None:
            self.failure, self.has_served = None, False
            self._task = asyncio.create_task(self._supervise(), name=f"child-{self.name}")

    async def close(self) -> None:
        """Ends the server and all its processes."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def _supervise(self) -> None:
        exits = 0
        while True:
            self.status = f"starting {self.name}"
            reason = await self._run_once()
            if not self.has_served:
                self.failure = self.status = reason
                self.on_exit(reason)
                return
            delay_s = RESTART_DELAYS_S[min(exits, len(RESTART_DELAYS_S) - 1)]
            exits += 1
            log.warning("%s; it is started again in %g s", reason, delay_s)
            self.status = f"{reason}, restarting"
            self.on_exit(reason)
            await asyncio.sleep(delay_s)

    async def _run_once(self) -> str:
        """Runs the server until it exits. Returns the reason in one line."""
        self._lines.clear()
        arguments = (sys.executable, "-P", "-c", GUARD, str(TERM_TIMEOUT_S), *self.command)
        guard = await asyncio.create_subprocess_exec(
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # The operator's own program: it downloads models, with a token of the hub, perhaps through a proxy.
            env=child_environment(os.environ, keep_credentials=True),
            start_new_session=True,
            limit=MAX_LOG_LINE_BYTES,
        )
        self.pid = guard.pid
        try:
            exit_code = await self._read_output(guard)
        finally:
            self.pid = None
            await asyncio.shield(_end_guard(guard))
        return f"{self.name} stopped ({describe_exit(exit_code)}){self._find_error()}"

    async def _read_output(self, guard: asyncio.subprocess.Process) -> int:
        """Logs the server's lines. Returns its exit status."""
        assert guard.stdout is not None
        exit_code = 1
        while True:
            try:
                line = (await guard.stdout.readline()).decode(errors="replace").rstrip()
            except ValueError:  # a line over the limit
                continue
            if not line and guard.stdout.at_eof():
                return exit_code
            if line.startswith(EXIT_LINE) and line.removeprefix(EXIT_LINE).lstrip("-").isdigit():
                exit_code = int(line.removeprefix(EXIT_LINE))
            elif line:
                self._lines.append(line)
                log.debug("%s: %s", self.name, line)

    def _find_error(self) -> str:
        """Returns the last line that names an error, else the last line."""
        errors = [line for line in self._lines if "error" in line.lower()]
        line = (errors or list(self._lines) or [""])[-1]
        return f": {line.strip()[:300]}" if line else ""


async def _end_guard(guard: asyncio.subprocess.Process) -> None:
    """Ends the guard, and with it the server."""
    if guard.stdin is not None:
        guard.stdin.close()
    await guard.wait()
