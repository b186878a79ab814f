"""Reads files that others may have written: regular ones only, and no more than a limit. Needs no torch.

A named pipe would block the reader, a device such as `/dev/zero` has no end, and deeply nested JSON exhausts the stack.
"""

import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from antiphon.engine.errors import LoadError

MAX_JSON_BYTES = 64 << 20
"""Largest JSON file that is read: the index of a model with 200 000 tensors takes 24 MiB."""

MAX_JSON_FILE_DEPTH = 50
"""Deepest nesting of a JSON file. Configurations have five levels, and libraries walk through them recursively."""

READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""Flags with which no file blocks the call that opens it."""

FILE_TYPES = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}
"""Types of files that are not regular, for messages."""


class UnreadableFileError(OSError):
    """The file is not regular, too large, or outside of the folder that it must be in."""


def open_regular_file(path: Path, root: Path | None = None) -> BinaryIO:
    """Opens a regular file. Raises `OSError` for others, and for a file outside of the folder `root`.

    Links below `root` are followed as they are now, and those that appear while the path is opened are refused.
    """
    try:
        descriptor = os.open(path, READ_FLAGS) if root is None else _open_below(root, path)
    except ValueError as error:  # a null character
        raise UnreadableFileError(f"{error}") from None
    file = os.fdopen(descriptor, "rb")
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        file.close()
        raise UnreadableFileError(f"it is {describe_kind(mode)}, not a regular file")
    return file


def _open_below(root: Path, path: Path) -> int:
    """Opens a path below a folder, one part after another, without following links. Returns the descriptor."""
    real_root, real_path = os.path.realpath(root), os.path.realpath(path)
    if not _is_part(real_path, real_root):
        raise UnreadableFileError(f"it is outside of {root}")
    *folders, name = Path(os.path.relpath(real_path, real_root)).parts or (".",)
    descriptor = os.open(real_root, READ_FLAGS | os.O_DIRECTORY)
    for part in (*folders, name):
        try:
            following = os.open(
                part, READ_FLAGS | os.O_NOFOLLOW | (0 if part is name else os.O_DIRECTORY), dir_fd=descriptor
            )
        finally:
            os.close(descriptor)
        descriptor = following
    return descriptor


def is_below(path: Path, root: Path) -> bool:
    """Tells whether a path is a folder or in it, once links are followed."""
    try:
        return _is_part(os.path.realpath(path), os.path.realpath(root))
    except (OSError, ValueError):  # a name that is too long, or with a null character
        return False


def _is_part(real_path: str, real_root: str) -> bool:
    return os.path.commonpath([real_root, real_path]) == real_root


def read_regular_file(path: Path, max_bytes: int, root: Path | None = None) -> bytes:
    """Returns the bytes of a regular file. Raises `OSError` for others, and for more than `max_bytes`."""
    with open_regular_file(path, root) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise UnreadableFileError(f"it has more than {max_bytes} bytes")
        data = file.read(size + 1)
    if len(data) > size:
        raise UnreadableFileError("another process writes to it")
    return data


def read_json_object(path: Path, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Returns the object in a JSON file of a model. Raises `LoadError`."""
    table = read_json(path, max_bytes)
    if not isinstance(table, dict):
        raise LoadError(f"{path}: not a JSON object; fetch the file again")
    return table


def read_json(path: Path, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Returns the value in a JSON file of a model. Raises `LoadError`."""
    try:
        return parse_json(read_regular_file(path, max_bytes))
    except (OSError, ValueError) as error:
        raise LoadError(f"{path}: not readable as JSON ({error}); fetch the file again") from error


def parse_json(data: bytes) -> Any:
    """Returns the value of a JSON text. Raises `ValueError`, also for one that is nested too deeply."""
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level = [value]
    for _ in range(MAX_JSON_FILE_DEPTH):
        level = [child for parent in level if isinstance(parent, dict | list) for child in _list_children(parent)]
        if not level:
            return value
    raise ValueError("it is nested too deeply")


def _list_children(parent: dict[str, Any] | list[Any]) -> list[Any]:
    children = list(parent.values()) if isinstance(parent, dict) else parent
    return [child for child in children if isinstance(child, dict | list)]


def check_folder_entries(folder: Path) -> None:
    """Raises `LoadError` if an entry of a model's folder is neither a file nor a folder: a library may open it.

    Links count as what they point to. Those that point to nothing are missing files.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                mode = entry.stat().st_mode
            except OSError:
                continue
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise LoadError(f"{entry.path} is {describe_kind(mode)}, not a regular file; remove it")


def describe_kind(mode: int) -> str:
    """Returns the type of a file in words. `mode`: its `st_mode`."""
    return FILE_TYPES.get(stat.S_IFMT(mode), "of an unknown kind")
