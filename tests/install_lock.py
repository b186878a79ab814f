"""What the processes of a test run share: a folder, and locks, so that what a test needs is made only once."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def hold_lock(folder: Path) -> Iterator[None]:
    """Creates the folder and holds its lock while the caller installs into it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def find_run_folder(factory: pytest.TempPathFactory) -> Path:
    """Returns a folder that all processes of this test run share."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
