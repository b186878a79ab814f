"""The four processes of the sandbox as the system sees them: the same confinement, the same environment."""

import os
import sys
from pathlib import Path

import pytest

from antiphon.app.sandbox.confinement import MAX_OPEN_FILES
from antiphon.app.sandbox.sandbox_process import KEPT_VARIABLES, SINGLE_THREAD
from tests.app.sandbox.helper_processes import HELPERS, OpenHelper

pytestmark = pytest.mark.processes

MIB = 1 << 20
MEMORY_BYTES = {"image": 2048 * MIB, "pdf": 2048 * MIB, "grammar": 1024 * MIB, "template": 1024 * MIB}
FILE_BYTES = {"image": 512 * MIB, "pdf": 512 * MIB, "grammar": 128 * MIB, "template": 128 * MIB}


def read_limits(pid: int) -> dict[str, int]:
    """Returns the soft limits of a process, by the names of the system."""
    lines = Path(f"/proc/{pid}/limits").read_text(encoding="utf-8").splitlines()[1:]
    limits = {line[:26].strip(): line[26:].split()[0] for line in lines}
    return {name: int(value) for name, value in limits.items() if value.isdigit()}


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("name", HELPERS)
def test_every_process_is_confined(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNKNOWN_VARIABLE", "x")
    open_helper: OpenHelper = HELPERS[name]
    process, exchange = open_helper()
    try:
        exchange()
        assert process.pid is not None
        folder = Path(f"/proc/{process.pid}")
        limits = read_limits(process.pid)
        assert limits["Max address space"] <= MEMORY_BYTES[name]
        assert limits["Max file size"] <= FILE_BYTES[name]
        assert limits["Max open files"] <= MAX_OPEN_FILES and limits["Max core file size"] == 0
        assert "NoNewPrivs:\t1" in (folder / "status").read_text(encoding="utf-8")
        if "an own network namespace" not in process.missing:
            assert (folder / "ns" / "net").readlink() != Path("/proc/self/ns/net").readlink()
        names = {entry.partition(b"=")[0].decode() for entry in (folder / "environ").read_bytes().split(b"\0") if entry}
        assert names <= {*KEPT_VARIABLES, *SINGLE_THREAD} and "UNKNOWN_VARIABLE" in os.environ
    finally:
        process.close()
