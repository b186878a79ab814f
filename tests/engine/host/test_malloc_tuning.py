"""Returning freed memory to the system, with C libraries that can do it and others."""

import ctypes
import platform
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.engine.host.malloc_tuning import keep_large_blocks_mapped, map_large_blocks, return_freed_memory


def test_glibc_is_told_to_return_all_freed_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(malloc_trim=calls.append))
    return_freed_memory()
    assert calls == [0]


def _fail_to_open(_: Any) -> None:
    raise OSError("no such library")


@pytest.mark.parametrize("open_library", [lambda _: SimpleNamespace(), _fail_to_open])
def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch, open_library: Any) -> None:
    monkeypatch.setattr(ctypes, "CDLL", open_library)
    return_freed_memory()
    keep_large_blocks_mapped()
    with map_large_blocks():
        pass


MEASURE_RETURNED_SHARE = """
import resource
from pathlib import Path
from antiphon.engine.host.malloc_tuning import map_large_blocks

BLOCK_BYTES, NUM_BLOCKS = 4 << 20, 30
read_resident_bytes = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
small, large = [], []
with map_large_blocks():
    pass  # from here on, glibc maps larger blocks only
with map_large_blocks():
    for _ in range(NUM_BLOCKS):
        large.append(bytearray(BLOCK_BYTES))
        small.append(bytearray(1000))
    before = read_resident_bytes()
    large.clear()
    print((before - read_resident_bytes()) / (BLOCK_BYTES * NUM_BLOCKS))
"""
"""Program that frees large blocks between small ones, and prints the share that the system gets back.

It needs a process of its own: where earlier tests have left large holes in the heap, glibc puts the blocks there.
"""


MEASURE_IN_A_FRONT_END = """
from antiphon.engine.host.malloc_tuning import keep_large_blocks_mapped as map_large_blocks_from_now_on
from contextlib import nullcontext as map_large_blocks
map_large_blocks_from_now_on()
del bytearray(4 << 20)[:]  # after which glibc itself would map larger blocks only
""" + MEASURE_RETURNED_SHARE.replace("from antiphon.engine.host.malloc_tuning import map_large_blocks\n", "")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
@pytest.mark.parametrize("program", [MEASURE_RETURNED_SHARE, MEASURE_IN_A_FRONT_END])
def test_large_blocks_freed_between_others_are_given_back(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert float(done.stdout) > 0.9
