"""Files that others may have written: links, pipes, devices, and JSON that is nested deeply."""

import json
import os
import socket
from pathlib import Path

import pytest

from antiphon.engine.errors import LoadError
from antiphon.engine.regular_files import (
    MAX_JSON_FILE_DEPTH,
    check_folder_entries,
    open_regular_file,
    parse_json,
    read_json_object,
    read_regular_file,
)


def nest(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


def test_size_is_checked_before_reading(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(b"x" * 10)
    assert read_regular_file(file, 10) == b"x" * 10
    with pytest.raises(OSError, match="more than 9 bytes"):
        read_regular_file(file, 9)


def test_file_that_grows_is_not_read_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "grows.json"
    file.write_bytes(b"x" * 10)
    stat = os.fstat
    # The size is that before the file grew.
    monkeypatch.setattr(os, "fstat", lambda number: os.stat_result((*stat(number)[:6], 0, *stat(number)[7:])))
    with pytest.raises(OSError, match="another process writes to it"):
        read_regular_file(file, 9)


@pytest.mark.parametrize("kind", ["pipe", "device", "socket", "folder", "link to a device"])
def test_other_kinds_of_files_are_neither_read_nor_waited_for(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    elif kind == "folder":
        path.mkdir()
    elif kind == "link to a device":
        path.symlink_to("/dev/zero")
    else:
        path = Path("/dev/zero")
    with pytest.raises(OSError):  # noqa: PT011  a socket cannot even be opened
        read_regular_file(path, 100)
    if kind not in ("folder", "device"):
        with pytest.raises(LoadError, match=r"config\.json is a .*, not a regular file"):
            check_folder_entries(tmp_path)
    with pytest.raises(LoadError, match=r"not readable as JSON"):
        read_json_object(path)


def test_links_and_folders_of_a_model_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs/1").write_text('{"a": 1}')
    (tmp_path / "config.json").symlink_to(tmp_path / "blobs/1")
    (tmp_path / "missing.json").symlink_to(tmp_path / "blobs/2")
    check_folder_entries(tmp_path)
    assert read_json_object(tmp_path / "config.json") == {"a": 1}


@pytest.mark.parametrize(
    ("place", "is_inside"),
    [
        ("root/a.json", True),
        ("root/sub/../a.json", True),
        ("root/link_inside", True),
        ("root/folder_inside/a.json", True),
        ("root/link_outside", False),
        ("root/folder_outside/a.json", False),
        ("root/../secret.json", False),
        ("secret.json", False),
        ("root_of_another/a.json", False),
        ("root/nothing", False),
        ("root/null\0", False),
        ("root", False),
    ],
)
def test_file_is_read_below_its_folder_only(place: str, is_inside: bool, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "root_of_another").mkdir()
    for folder in ("root", "root/sub", "root_of_another"):
        (tmp_path / folder / "a.json").write_text(folder)
    (tmp_path / "secret.json").write_text("secret")
    (root / "link_inside").symlink_to("sub/a.json")
    (root / "folder_inside").symlink_to("sub")
    (root / "link_outside").symlink_to("../secret.json")
    (root / "folder_outside").symlink_to("../root_of_another")
    if is_inside:
        assert read_regular_file(tmp_path / place, 100, root).startswith(b"root")
        return
    with pytest.raises(OSError):  # noqa: PT011  each for a reason of its own
        read_regular_file(tmp_path / place, 100, root)


@pytest.mark.parametrize("part", ["file", "folder"])
def test_link_that_appears_while_a_path_is_opened_is_not_followed(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, secret = tmp_path / "root", tmp_path / "secret"
    for folder in (root / "sub", secret):
        folder.mkdir(parents=True)
        (folder / "a.json").write_text(folder.name)
    target = root / "sub/a.json" if part == "file" else root / "sub"
    realpath = os.path.realpath

    def swap_after_the_check(path: Path) -> str:
        """Replaces a part of the path by a link once it was resolved."""
        resolved = realpath(path)
        if str(path).endswith("a.json") and not target.is_symlink():
            target.rename(tmp_path / "old")
            target.symlink_to(secret / "a.json" if part == "file" else secret)
        return resolved

    monkeypatch.setattr(os.path, "realpath", swap_after_the_check)
    with pytest.raises(OSError):  # noqa: PT011  ELOOP for a file, ENOTDIR for a folder
        open_regular_file(root / "sub/a.json", root).close()


@pytest.mark.parametrize(
    ("depth", "is_read"), [(MAX_JSON_FILE_DEPTH, True), (MAX_JSON_FILE_DEPTH + 1, False), (100_000, False)]
)
def test_depth_of_json_is_limited(depth: int, is_read: bool) -> None:
    if is_read:
        assert parse_json(nest(depth)) == json.loads(nest(depth))
        return
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(nest(depth))
