"""The folder of packed files: its place, and its limit."""

import logging
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from antiphon.engine.kernels.compiler import cache_folder

log = logging.getLogger(__name__)

PACK_SUFFIX, CHECKS_SUFFIX, UNFINISHED_SUFFIX = ".packed", ".json", ".tmp"

MIN_FREE_DISK_BYTES = 1 << 30
"""Free space of the disk below which no file is written."""

MAX_UNFINISHED_AGE_S = 600.0
"""Seconds since the last write after which an unfinished file is deleted: the process that wrote it has ended."""


def find_pack_folder() -> Path | None:
    """Returns the folder of packed files, `packed` in the folder of compiled kernels; None if there can be none."""
    parent = cache_folder()
    if parent is None:
        return None
    folder = parent / "packed"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def make_room(folder: Path, needed_bytes: int, limit_bytes: int) -> str | None:
    """Deletes the files used longest ago until another one fits. Returns the reason if it cannot fit, else None."""
    if needed_bytes > limit_bytes:
        return f"its {needed_bytes / 2**30:.1f} GiB are more than --pack-cache-gib allows"
    packs = sorted(folder.glob(f"*{PACK_SUFFIX}"), key=_used_at)
    total = sum(_size_of(path) for path in packs)
    for path in packs:
        if total + needed_bytes <= limit_bytes:
            break
        total -= _size_of(path)
        delete_pack(path)
    for path in folder.glob(f"*{UNFINISHED_SUFFIX}"):
        if time.time() - _used_at(path) > MAX_UNFINISHED_AGE_S:
            _delete(path)
    free = shutil.disk_usage(folder).free
    if free - needed_bytes < MIN_FREE_DISK_BYTES:
        return f"the disk of {folder} has {free / 2**30:.1f} GiB left"
    return None


def mark_used(path: Path) -> None:
    """Makes a packed file the last to be deleted."""
    with suppress(OSError):
        os.utime(path)


def delete_pack(path: Path) -> None:
    """Deletes a packed file and the results of checks that belong to it. Processes that have mapped it keep it."""
    _delete(path)
    for checks in path.parent.glob(f"{path.name.removesuffix(PACK_SUFFIX)}*{CHECKS_SUFFIX}"):
        _delete(checks)


def _delete(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _used_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another process has deleted it
        return 0.0


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
