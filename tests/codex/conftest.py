"""Fixtures of the Codex tests: the program and a recorder. Tests are skipped where npm cannot install Codex."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.codex import codex_process
from tests.codex.recorder import TrafficRecorder


@pytest.fixture(scope="session")
def program() -> Path:
    try:
        return codex_process.install_codex()
    except codex_process.CodexUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def codex(program: Path, tmp_path: Path) -> codex_process.CodexCli:
    """A Codex with an empty home folder."""
    return codex_process.CodexCli(program=program, home=tmp_path)


@pytest.fixture
def recorder() -> Iterator[TrafficRecorder]:
    """A recorder for `serve(wrap_app=recorder.wrap_app)`. At the end of the test it checks every recorded stream."""
    recorder = TrafficRecorder()
    yield recorder
    recorder.check_streams()
