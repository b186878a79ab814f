"""The folder of pages: its place, its files, its limit. All models and processes of a user share it."""

import errno
import logging
import os
import shutil
import stat
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from antiphon.engine.kernels.compiler import cache_folder
from antiphon.engine.pack_cache.folder import MAX_UNFINISHED_AGE_S, MIN_FREE_DISK_BYTES, UNFINISHED_SUFFIX
from antiphon.engine.pack_cache.pack_file import create_unfinished_file
from antiphon.engine.prefix_disk.page_id import PAGE_SUFFIX
from antiphon.engine.regular_files import open_regular_file, read_regular_file

log = logging.getLogger(__name__)

FOLDER_NAME, KEY_FILE = "prefixes", "page.key"
PREFIX_KEY_BYTES = 32

EVICTION_DIVISOR = 16
"""When the limit is reached, a sixteenth of it is freed, so that the folder is not listed for every page. It is also
listed after that much was written, since other processes write to it, too."""


def find_page_folder() -> Path | None:
    """Returns the folder of pages, `prefixes` in the folder of compiled kernels; None if there can be none.

    Only this user can read it.
    """
    parent = cache_folder()
    if parent is None:
        return None
    folder = parent / FOLDER_NAME
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        mode = folder.stat().st_mode
        if stat.S_IMODE(mode) & 0o077:
            folder.chmod(0o700)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def load_or_create_key(folder: Path) -> bytes:
    """Returns the key of pages of a server without a key of its own; creates it if it is missing. Raises `OSError`.

    It lies beside the pages, and hence keeps nothing secret; with it, tags detect damage. Of several processes that
    start at the same time, the first to link its draft provides the key.
    """
    path = folder / KEY_FILE
    with suppress(OSError):
        key = read_regular_file(path, PREFIX_KEY_BYTES)
        if len(key) == PREFIX_KEY_BYTES:
            return key
        path.unlink(missing_ok=True)
    file, draft = create_unfinished_file(path)
    try:
        with file:
            file.write(os.urandom(PREFIX_KEY_BYTES))
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return read_regular_file(path, PREFIX_KEY_BYTES)


class PageFolder:
    """The files of pages, of at most about `limit_bytes` together.

    `has` answers from memory, for the thread of the steps. The others access the disk. Names that other processes have
    written since the folder was listed are unknown.
    """

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self._path, self._limit_bytes = path, limit_bytes
        self._lock = threading.Lock()
        self._sizes: dict[str, int] = {}
        self._total = self._unlisted = 0
        with self._lock:
            self._list_files()

    def has(self, name: str) -> bool:
        """Tells whether there is a page of this name, as far as is known."""
        return name in self._sizes

    def open(self, name: str) -> BinaryIO:
        """Opens a page. Raises `OSError`."""
        return open_regular_file(self._path / name)

    def write(self, name: str, parts: Iterable[bytes], size: int, used_ns: int | None = None) -> None:
        """Writes a page of `size` bytes, after deleting others if it does not fit. Raises `OSError`.

        `used_ns`: when it was used, as `time.time_ns` tells it; None means now.

        It is not flushed: after a crash of the system, its tag shows what is missing.
        """
        self._make_room(size)
        file, unfinished = create_unfinished_file(self._path / name)
        try:
            with file:
                for part in parts:
                    file.write(part)
                    time.sleep(0)  # lets a step continue, which waits for the interpreter's lock
            if used_ns is not None:
                os.utime(unfinished, ns=(used_ns, used_ns))
            unfinished.replace(self._path / name)
        except BaseException:  # the file is removed for a cancellation, too, and the error is raised again
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise
        with self._lock:
            self._total += size - self._sizes.get(name, 0)
            self._unlisted += size
            self._sizes[name] = size

    def delete(self, name: str) -> None:
        """Deletes a page, if it is there."""
        with suppress(OSError):
            (self._path / name).unlink(missing_ok=True)
        self.forget(name)

    def forget(self, name: str) -> None:
        """Removes the name of a page that is gone."""
        with self._lock:
            self._total -= self._sizes.pop(name, 0)

    def mark_used(self, names: Sequence[str], used_ns: int | None = None) -> None:
        """Makes the first pages of a prompt, in order, the last to be deleted; of these, the last one first."""
        now = time.time_ns() if used_ns is None else used_ns
        for index, name in enumerate(names):
            with suppress(OSError):
                at = place_in_time(now, index)
                os.utime(self._path / name, ns=(at, at))

    def _make_room(self, size: int) -> None:
        if size > self._limit_bytes:
            message = f"a page of {size / 2**20:.1f} MiB is more than --prefix-cache-disk allows"
            raise OSError(errno.EFBIG, message)
        with self._lock:
            slack = self._limit_bytes // EVICTION_DIVISOR
            if self._total + size > self._limit_bytes or self._unlisted > slack:
                oldest_first = self._list_files()
                if self._total + size > self._limit_bytes:
                    self._delete_oldest(oldest_first, self._limit_bytes - max(slack, size))
        free = shutil.disk_usage(self._path).free
        if free - size < MIN_FREE_DISK_BYTES:
            raise OSError(errno.ENOSPC, f"the disk of {self._path} has {free / 2**30:.1f} GiB left")

    def _delete_oldest(self, oldest_first: list[str], target_bytes: int) -> None:
        for name in oldest_first:
            if self._total <= target_bytes:
                break
            (self._path / name).unlink(missing_ok=True)
            self._total -= self._sizes.pop(name)

    def _list_files(self) -> list[str]:
        """Lists the folder, and deletes what interrupted writes have left. Returns names of pages, the oldest first."""
        used_at: dict[str, int] = {}
        self._sizes = {}
        with os.scandir(self._path) as entries:
            for entry in entries:
                with suppress(OSError):  # another process has deleted it
                    status = entry.stat(follow_symlinks=False)
                    if entry.name.endswith(PAGE_SUFFIX):
                        used_at[entry.name], self._sizes[entry.name] = status.st_mtime_ns, status.st_size
                    elif entry.name.endswith(UNFINISHED_SUFFIX) and _is_left_over(status):
                        Path(entry.path).unlink(missing_ok=True)
        self._total, self._unlisted = sum(self._sizes.values()), 0
        return sorted(used_at, key=lambda name: used_at[name])


def place_in_time(used_ns: int, index: int) -> int:
    """Returns the time of use of a page of a prompt: a later page counts as used earlier, since it is worth less."""
    return used_ns - index * 1000


def _is_left_over(status: os.stat_result) -> bool:
    return time.time() - status.st_mtime > MAX_UNFINISHED_AGE_S
