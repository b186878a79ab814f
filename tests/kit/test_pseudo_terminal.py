"""The harness of terminals itself: it waits for the rest of what the command had only half written."""

import os
import pty
import select
import subprocess
import sys
import time

import pytest

from tests.kit.pseudo_terminal import CTRL_C, PseudoTerminal, is_cut, keep_output_at_signals
from tests.progress import HANG_TIMEOUT_S

WRITE_IN_TWO_PARTS = "import os, sys, time; os.write(1, {0!r}); time.sleep(1); os.write(1, {1!r}); sys.stdin.read()"


@pytest.mark.parametrize(
    ("first", "rest"),
    [(b"a \xe2\x90", b"\x9b b"), (b"a \x1b[3", b"8;5m b"), (b"a \x1b]8;;http", b"://x\x07 b")],
)
def test_quiet_output_is_whole(first: bytes, rest: bytes) -> None:
    terminal, child_side = pty.openpty()
    program = WRITE_IN_TWO_PARTS.format(first, rest)
    with subprocess.Popen([sys.executable, "-c", program], stdin=child_side, stdout=child_side) as process:
        os.close(child_side)
        reader = PseudoTerminal(process, terminal)
        try:
            reader.wait_until(lambda: reader.output.endswith(first), "first part")
            reader.wait_quiet()
            assert first + rest in reader.output
        finally:
            process.kill()
    os.close(terminal)


def test_ctrl_c_discards_no_output() -> None:
    """By default the kernel discards what is more than its buffer of 4 096 bytes, here of 15 000."""
    terminal, child_side = pty.openpty()
    keep_output_at_signals(child_side)
    program = "import sys; print('␛' * 5_000 + '.', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=child_side, stdout=child_side) as process:
        os.close(child_side)
        reader = PseudoTerminal(process, terminal)
        try:
            assert select.select([terminal], [], [], HANG_TIMEOUT_S)[0]
            time.sleep(0.2)  # until the rest is written, or the terminal takes no more
            reader.type(CTRL_C)
            reader.wait_for(".")
            assert reader.output.replace(b"^C", b"").startswith(("␛" * 5_000 + ".").encode())
        finally:
            process.kill()
    os.close(terminal)


@pytest.mark.parametrize("output", [b"", b"text", b"\xe2\x90\x9b", b"\x1b[31m", b"\x1b]8;;\x07", b"\x1bM", b"\xff\xfe"])
def test_whole_output(output: bytes) -> None:
    assert not is_cut(output)
