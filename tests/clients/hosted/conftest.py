"""Checks of every test with hosted tools."""

import logging
from collections.abc import Iterator

import pytest

from tests.clients.hosted.tool_servers import ToolTraffic, serve_tools
from tests.clients.media.conftest import folder

__all__ = ["folder"]


@pytest.fixture(autouse=True)
def _no_error_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No callback and no task of the server may raise."""
    yield
    records = [record for when in ("setup", "call") for record in caplog.get_records(when)]
    assert not [record.getMessage() for record in records if record.levelno >= logging.ERROR]


@pytest.fixture(scope="module")
def traffic() -> Iterator[ToolTraffic]:
    """A tool server for the tests of a module."""
    with serve_tools() as traffic:
        yield traffic
