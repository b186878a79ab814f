"""The folder of pages: its limit, what is deleted first, who can read it, and disks that are full or read-only."""

import errno
import os
import stat
import time
from pathlib import Path

import pytest

from antiphon.engine.pack_cache.folder import MAX_UNFINISHED_AGE_S
from antiphon.engine.prefix_disk import folder as folders
from antiphon.engine.prefix_disk.folder import (
    KEY_FILE,
    PREFIX_KEY_BYTES,
    PageFolder,
    find_page_folder,
    load_or_create_key,
)

SIZE = 1000


def write_pages(folder: PageFolder, *names: str) -> None:
    for name in names:
        folder.write(f"{name}.page", [b"x" * SIZE], SIZE)


def list_names(path: Path) -> set[str]:
    return {file.name.removesuffix(".page") for file in path.iterdir()}


def test_pages_used_longest_ago_are_deleted_first(tmp_path: Path) -> None:
    folder = PageFolder(tmp_path, 4 * SIZE)
    write_pages(folder, "a", "b", "c", "d")
    for age, name in enumerate("dcba"):
        os.utime(tmp_path / f"{name}.page", (time.time() - 100 - age,) * 2)
    folder.mark_used(["a.page", "b.page"])
    write_pages(folder, "e")
    assert list_names(tmp_path) == {"a", "b", "d", "e"}
    write_pages(folder, "f", "g")
    assert list_names(tmp_path) == {"a", "e", "f", "g"}, "the end of a prompt is deleted before its beginning"
    assert [folder.has(f"{name}.page") for name in "abg"] == [True, False, True]


def test_pages_of_other_processes_count(tmp_path: Path) -> None:
    folder, other = PageFolder(tmp_path, 4 * SIZE), PageFolder(tmp_path, 4 * SIZE)
    write_pages(other, "a", "b", "c")
    write_pages(folder, "d", "e", "f")
    assert len(list_names(tmp_path)) <= 4
    assert PageFolder(tmp_path, 4 * SIZE).has("f.page")


def test_leftovers_of_interrupted_writes_are_deleted(tmp_path: Path) -> None:
    old, young, foreign = tmp_path / "a.page.1.tmp", tmp_path / "b.page.2.tmp", tmp_path / "notes.txt"
    for path in (old, young, foreign):
        path.write_bytes(b"")
    os.utime(old, (time.time() - MAX_UNFINISHED_AGE_S - 10,) * 2)
    PageFolder(tmp_path, SIZE)
    assert {path.name for path in tmp_path.iterdir()} == {young.name, foreign.name}


def test_failed_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = PageFolder(tmp_path, 4 * SIZE)
    with pytest.raises(OSError, match="No space"):
        folder.write("a.page", (part() for part in (lambda: b"x", fail)), SIZE)
    with pytest.raises(OSError, match="more than --prefix-cache-disk"):
        folder.write("a.page", [], 5 * SIZE)
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda _: os.terminal_size((0, 0)) and _Usage())
    with pytest.raises(OSError, match=r"has 0\.5 GiB left"):
        write_pages(folder, "a")
    assert not list(tmp_path.iterdir()) and not folder.has("a.page")


class _Usage:
    free = 1 << 29


def test_key_and_pages_belong_to_the_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "antiphon" / "prefixes").mkdir(parents=True, mode=0o755)
    path = find_page_folder()
    assert path is not None and stat.S_IMODE(path.stat().st_mode) == 0o700
    key = load_or_create_key(path)
    assert len(key) == PREFIX_KEY_BYTES and load_or_create_key(path) == key
    write_pages(PageFolder(path, SIZE), "a")
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()} == {0o600}
    (path / KEY_FILE).write_bytes(b"short")
    assert len(load_or_create_key(path)) == PREFIX_KEY_BYTES
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert find_page_folder() is None
