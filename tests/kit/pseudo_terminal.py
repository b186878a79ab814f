"""Runs a command in a pseudo-terminal: types into it, and keeps every byte that it writes."""

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tests.progress import HANG_TIMEOUT_S

COMMAND = (sys.executable, "-m", "antiphon")
CTRL_C, CTRL_D = "\x03", "\x04"
READ_BYTES = 1 << 16
UNFINISHED_CONTROL = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*|[ -/]*)?\Z")
"""The end of an output that stopped inside a control sequence: `ESC [ … final`, `ESC ] … BEL`, `ESC … final`."""


def is_cut(output: bytes) -> bool:
    """True if the output ends inside a UTF-8 character or a control sequence.

    An unfinished UTF-8 character is at most three bytes long; other bytes that are no UTF-8 are not waited for.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(output[-4:])
    return bool(decoder.getstate()[0]) or UNFINISHED_CONTROL.search(output) is not None


class PseudoTerminal:
    """A running command. `output` has the bytes that it wrote to the terminal so far."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.process, self._terminal = process, terminal
        self.output = b""

    @property
    def text(self) -> str:
        return self.output.decode("utf-8", "replace").replace("\r\n", "\n")

    def type(self, text: str) -> None:
        """Types text. A line ends with CR, the Enter key."""
        os.write(self._terminal, text.encode())

    def wait_for(self, text: str, *, count: int = 1) -> None:
        """Reads until the output has this text so many times."""
        self.wait_until(lambda: self.output.count(text.encode()) >= count, text)

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + HANG_TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline, f"no {what!r} in {self.output[-3000:]!r}"
            if not self._read(0.05) and self.process.poll() is not None and not self._read(0.05):
                assert condition(), f"ended without {what!r}: {self.output[-3000:]!r}"

    def wait_quiet(self) -> None:
        """Reads until nothing comes for a moment, and the output does not end inside a character or a control sequence.

        The terminal takes a long write in parts, and a busy machine may pause the command between two of them.
        """
        deadline = time.monotonic() + HANG_TIMEOUT_S
        while self._read(0.2) or (is_cut(self.output) and self.process.poll() is None):
            assert time.monotonic() < deadline, f"the output ends inside a character: {self.output[-3000:]!r}"

    def wait_end(self, timeout_s: float = HANG_TIMEOUT_S) -> int:
        """Reads to the end. Returns the exit status."""
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"the command does not end: {self.output[-3000:]!r}"
            self._read(0.05)
        while self._read(0.05):
            pass
        return self.process.returncode

    def _read(self, wait_s: float) -> bool:
        if not select.select([self._terminal], [], [], wait_s)[0]:
            return False
        try:
            data = os.read(self._terminal, READ_BYTES)
        except OSError:  # Linux: the other side is closed
            return False
        self.output += data
        return bool(data)


def keep_output_at_signals(terminal: int) -> None:
    """Makes a signal character such as Ctrl-C leave the output alone.

    Otherwise the kernel discards what was written and not yet read, from the middle of a character on.
    """
    attributes = termios.tcgetattr(terminal)
    attributes[3] |= termios.NOFLSH
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)


@contextmanager
def run_in_terminal(*arguments: str, columns: int = 100, **environment: str) -> Iterator[PseudoTerminal]:
    """Runs `antiphon` with these arguments in a terminal of its own. The command is killed at the end of the block."""
    terminal, child_side = pty.openpty()
    fcntl.ioctl(child_side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    keep_output_at_signals(child_side)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ANTIPHON_", "OPENAI_"))}
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        kept.pop(name, None)
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=child_side,
        stdout=child_side,
        stderr=child_side,
        env=kept | {"TERM": "xterm-256color", "PYTHONUTF8": "1"} | environment,
        start_new_session=True,
        preexec_fn=_take_terminal,  # noqa: PLW1509  it makes one system call
    )
    os.close(child_side)
    try:
        yield PseudoTerminal(process, terminal)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(terminal)


def _take_terminal() -> None:
    """Makes standard input the controlling terminal, so that Ctrl-C is a signal."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
