"""The file in which a running server tells programs of the same user its address and the key of its page.

One file a port, which only its owner can read: `$XDG_RUNTIME_DIR/antiphon/PORT.json`, or in a folder of the user below
the system's folder for temporary files.
"""

import contextlib
import os
import tempfile
from pathlib import Path

import msgspec


class RuntimeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A running server. `url` is the base URL for clients."""

    url: str
    page_key: str = ""
    """Key of the page and of `/v1/inspect`; empty if API keys are required."""
    control_key: str = ""
    """Key of `/v1/admin`."""
    pid: int = 0


def runtime_folder() -> Path:
    """Returns the folder of the files, which may not exist."""
    chosen = os.environ.get("XDG_RUNTIME_DIR", "")
    if chosen and Path(chosen).is_dir():
        return Path(chosen) / "antiphon"
    return Path(tempfile.gettempdir()) / f"antiphon-{os.getuid()}"


def write_runtime_file(port: int, info: RuntimeInfo) -> Path:
    """Writes the file of a server on this port, in place of an older one. Raises `OSError`.

    A folder of another user, or one that others may write to, is refused: they could replace the file.
    """
    folder = runtime_folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    check_folder(folder)
    path, partial = folder / f"{port}.json", folder / f"{port}.{os.getpid()}.new"
    with contextlib.suppress(FileNotFoundError):
        partial.unlink()
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(info) + b"\n")
    partial.replace(path)
    return path


def check_folder(folder: Path) -> None:
    """Raises `OSError` for a folder that is missing, or that other users can reach."""
    status = folder.lstat()
    if not folder.is_dir() or folder.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{folder}: other users can reach this folder")


def read_runtime_file(port: int) -> RuntimeInfo | None:
    """Returns what the server on this port has written; None if there is no file of this user that can be read."""
    path = runtime_folder() / f"{port}.json"
    try:
        if path.lstat().st_uid != os.getuid():
            return None
        return msgspec.json.decode(path.read_bytes(), type=RuntimeInfo)
    except (OSError, msgspec.DecodeError):
        return None


def list_runtime_infos() -> list[RuntimeInfo]:
    """Returns what the servers of this user have written whose processes are alive, by port.

    A server that was killed leaves its file, which counts as alive once another process has its number.
    """
    try:
        ports = sorted({int(path.stem) for path in runtime_folder().glob("*.json") if path.stem.isdecimal()})
    except OSError:
        return []
    found = [read_runtime_file(port) for port in ports]
    return [info for info in found if info is not None and _is_alive(info.pid)]


def _is_alive(pid: int) -> bool:
    """Tells whether a process of this user has this id."""
    if pid <= 0:
        return False  # such a number would name a group of processes
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError):
        return False
    return True


def delete_runtime_file(port: int) -> None:
    """Deletes the file of this process. A server that has started on the port since keeps its own."""
    info = read_runtime_file(port)
    if info is not None and info.pid == os.getpid():
        with contextlib.suppress(OSError):
            (runtime_folder() / f"{port}.json").unlink()
