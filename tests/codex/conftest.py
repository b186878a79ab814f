"""Codex as a fixture, and a tape of what it and the server said. Without Codex its tests are skipped, with the reason."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.codex import codex_process
from tests.codex.recorder import Tape


@pytest.fixture(scope="session")
def program() -> Path:
    try:
        return codex_process.install()
    except codex_process.Missing as why:
        pytest.skip(str(why))


@pytest.fixture
def codex(program: Path, tmp_path: Path) -> codex_process.Codex:
    """In a home that nobody else has."""
    return codex_process.Codex(program=program, home=tmp_path)


@pytest.fixture
def tape() -> Iterator[Tape]:
    """Put it `around` a server; when the test ends, every stream on it must have been legal."""
    recorded = Tape()
    yield recorded
    recorded.check()
