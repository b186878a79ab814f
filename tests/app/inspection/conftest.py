"""Fixtures of the tests of `/v1/inspect`: a server that records, and its client."""

from collections.abc import Iterator

import pytest

from tests.app.inspection.inspector import SCRIPT, Inspector
from tests.serving import RunningServer, scripted_registry, serve


@pytest.fixture(scope="module")
def recording_server() -> Iterator[RunningServer]:
    with serve(lambda: scripted_registry(SCRIPT, max_num_seqs=64)) as running:
        yield running


@pytest.fixture(scope="module")
def inspector(recording_server: RunningServer) -> Iterator[Inspector]:
    with Inspector(recording_server) as opened:
        yield opened
