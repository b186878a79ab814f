"""Returning freed memory to the system, with C libraries that can do it and others."""

import ctypes
import platform
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.engine.heap import map_large_blocks, return_freed_memory

BLOCK_BYTES, NUM_BLOCKS = 4 << 20, 30


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
    with map_large_blocks():
        pass


def read_resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_large_blocks_freed_between_others_are_given_back() -> None:
    torch = pytest.importorskip("torch")
    small, large = [], []
    with map_large_blocks():
        for _ in range(NUM_BLOCKS):
            large.append(torch.ones(BLOCK_BYTES, dtype=torch.uint8))
            small.append(torch.ones(1000, dtype=torch.uint8))
        before = read_resident_bytes()
        large.clear()
        assert before - read_resident_bytes() > 0.9 * BLOCK_BYTES * NUM_BLOCKS
    assert len(small) == NUM_BLOCKS
