"""Fixtures of the client tests: one server that plays every case, and clients of it."""

from collections.abc import Iterator

import pytest

from tests.clients.sdk_helpers import all_cases
from tests.serving import RunningServer, serve


@pytest.fixture(scope="session")
def house() -> Iterator[RunningServer]:
    """A server with a model for each dialect, which plays any case when asked by name."""
    with serve(all_cases()) as served:
        yield served
