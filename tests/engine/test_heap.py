"""Returning freed memory to the system, with C libraries that can do it and others."""

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.engine.heap import return_freed_memory


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
