"""Codex as a fixture, and a tape of what it and the server said. Without Codex its tests are skipped, with the reason."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.codex import cli
from tests.codex.tape import Tape


@pytest.fixture(scope="session")
def program() -> Path:
    try:
        return cli.install()
    except cli.Missing as why:
        pytest.skip(str(why))


@pytest.fixture
def codex(program: Path, tmp_path: Path) -> cli.Codex:
    """In a home that nobody else has."""
    return cli.Codex(program=program, home=tmp_path)


@pytest.fixture
def tape() -> Iterator[Tape]:
    """Put it `around` a server; when the test ends, every stream on it must have been legal."""
    recorded = Tape()
    yield recorded
    recorded.check()
