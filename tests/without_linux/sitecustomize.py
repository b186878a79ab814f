"""Takes away from Python what macOS lacks. Active in every Python process with this folder in `PYTHONPATH`.

Not all of macOS can be imitated: `sys.platform` stays "linux", and C libraries still find what Linux has.
"""

import builtins
import ctypes
import io
import os
import resource
import select
import socket
import time
from typing import Any

for module, names in {
    os: ("sched_getaffinity", "sched_setaffinity", "memfd_create", "pidfd_open", "posix_fadvise", "eventfd", "splice"),
    select: ("epoll",),
    time: ("pthread_getcpuclockid",),
    socket: ("AF_NETLINK", "AF_VSOCK", "SOCK_CLOEXEC", "SOCK_NONBLOCK"),
}.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)

_set_limit, _CDLL = resource.setrlimit, ctypes.CDLL


def _set_other_limit(kind: int, limits: tuple[int, int]) -> None:
    if kind == resource.RLIMIT_AS:
        raise ValueError("current limit exceeds maximum limit")
    _set_limit(kind, limits)


class _LibraryWithoutGlibc(_CDLL):
    def __getattr__(self, name: str) -> Any:
        if name in ("mallopt", "malloc_trim"):
            raise AttributeError(f"symbol not found: {name}")
        return super().__getattr__(name)


def _hide_folders(function: Any) -> Any:
    """Returns a function that finds nothing in `/proc` and `/sys`."""

    def without_folders(path: Any, *args: Any, **kwargs: Any) -> Any:
        text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
        if text.startswith(("/proc/", "/sys/")) or text in ("/proc", "/sys"):
            raise FileNotFoundError(2, "No such file or directory", text)
        return function(path, *args, **kwargs)

    return without_folders


class _Socket(socket.socket):
    def bind(self, address: Any) -> None:
        if self.family == socket.AF_UNIX and len(os.fsencode(address)) > 103:
            raise OSError("AF_UNIX path too long")
        super().bind(address)


resource.setrlimit = _set_other_limit
ctypes.CDLL = _LibraryWithoutGlibc  # type: ignore[misc]
socket.socket = _Socket  # type: ignore[misc]
for module, names in {
    os: ("open", "stat", "lstat", "listdir", "scandir", "readlink", "access"),
    io: ("open",),
    builtins: ("open",),
}.items():
    for name in names:
        setattr(module, name, _hide_folders(getattr(module, name)))
