"""Marks of files, by which a later change is noticed. The start takes them before it reads the files.

This module imports nothing heavy, since the command line uses it.
"""

import contextlib
from collections.abc import Iterable
from pathlib import Path

from antiphon.app.options.settings import FileMark


def mark_files(paths: Iterable[Path]) -> dict[Path, FileMark]:
    """Returns the marks of files as they are now. Take them before the files are read."""
    return {path: _mark_file(path) for path in paths}


def _mark_file(path: Path) -> FileMark:
    with contextlib.suppress(OSError):
        status = path.stat()
        return status.st_ino, status.st_size, status.st_mtime_ns
    return None
