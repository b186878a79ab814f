"""Drives Codex's terminal interface in a pseudo-terminal: types prompts and answers the terminal's queries."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.codex.codex_process import CodexCli
from tests.progress import StalledError, wait_with_progress
from tests.serving import RunningServer

PASTE_PAUSE_S = 0.4
"""Codex takes an Enter that follows other keys sooner for a part of pasted text."""
ENTER_INTERVAL_S = 5.0
ANSWERS = {
    b"\x1b[6n": b"\x1b[1;1R",
    b"\x1b[c": b"\x1b[?62;c",
    b"\x1b[?u": b"\x1b[?0u",
    b"\x1b]10;?": b"\x1b]10;rgb:ffff/ffff/ffff\x1b\\",
    b"\x1b]11;?": b"\x1b]11;rgb:0000/0000/0000\x1b\\",
}
"""What a terminal answers: cursor position, attributes, keyboard protocol, foreground and background color."""


class CodexTerminal:
    """A running terminal interface. `screen` is all that it wrote, without control sequences."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._output = b""

    @property
    def screen(self) -> str:
        text = re.sub(r"\x1b\][^\x07\x1b]*(\x07|\x1b\\)", "", self._output.decode("utf-8", "replace"))
        return re.sub(r"\x1b\[[0-9;?<>=]*[ -/]*[A-Za-z]", "", text)

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Reads the terminal until `condition` holds. Raises `StalledError` if Codex and the server do nothing more."""

        def read_and_check() -> bool:
            self._read()
            return condition()

        try:
            wait_with_progress(read_and_check, what)
        except StalledError as error:
            raise StalledError(f"{error}: {self.screen[-1500:]}") from None

    def send_prompt(self, prompt: str, is_received: Callable[[], bool]) -> None:
        """Types a prompt and presses Enter until the server has received it."""
        os.write(self._terminal, prompt.encode())
        while not is_received():
            time.sleep(PASTE_PAUSE_S)
            os.write(self._terminal, b"\r")
            end = time.monotonic() + ENTER_INTERVAL_S
            self.wait_until(lambda end=end: is_received() or time.monotonic() > end, "the request")  # type: ignore[misc]

    def _read(self) -> None:
        if not select.select([self._terminal], [], [], 0.05)[0]:
            return
        chunk = os.read(self._terminal, 1 << 16)
        self._output += chunk
        for query, answer in ANSWERS.items():
            os.write(self._terminal, answer * chunk.count(query))


@contextmanager
def open_terminal(codex: CodexCli, server: RunningServer) -> Iterator[CodexTerminal]:
    """Starts Codex without a command in a pseudo-terminal and waits for its prompt. Kills it at the end."""
    codex.work_folder.mkdir(parents=True, exist_ok=True)
    codex.write_config(server)
    arguments = [str(codex.program), "--dangerously-bypass-approvals-and-sandbox", "-C", str(codex.work_folder)]
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 45, 140, 0, 0))
    process = subprocess.Popen(
        arguments,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=codex.make_environment() | {"TERM": "xterm-256color"},
        start_new_session=True,
    )
    os.close(theirs)
    terminal = CodexTerminal(ours)
    try:
        terminal.wait_until(lambda: "Ask Codex" in terminal.screen, "the start of Codex")
        yield terminal
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(ours)
        _kill_daemons(str(codex.home))


def _kill_daemons(home: str) -> None:
    """Kills the processes that Codex started in the background: their programs are in its home folder."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if entry.read_bytes().decode(errors="replace").startswith(home):
                os.kill(int(entry.parent.name), signal.SIGKILL)
