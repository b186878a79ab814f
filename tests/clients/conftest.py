"""Fixtures of the client tests: a server that plays every case, and Node with SDKs."""

from collections.abc import Iterator
from pathlib import Path

import anthropic
import pytest

from tests.clients.node_install import install_node_sdk
from tests.clients.sdk_helpers import make_case_registry, open_anthropic
from tests.clients.tool_thread import ToolThread, run_tools
from tests.serving import RunningServer, serve


@pytest.fixture(scope="session")
def case_server() -> Iterator[RunningServer]:
    """A server with a model for each dialect. A model plays the case that the prompt names."""
    with serve(make_case_registry()) as server:
        yield server


@pytest.fixture(scope="module")
def tools() -> Iterator[ToolThread]:
    """A tool server with the tools `add`, `fail`, `search` and `read_page`."""
    with run_tools() as running:
        yield running


@pytest.fixture(scope="session")
def node() -> Path:
    """A Node program with the SDKs of `programs/node.lock`. Skips the test where npm cannot install them."""
    return install_node_sdk()


@pytest.fixture
def anthropic_client(server: RunningServer) -> Iterator[anthropic.Anthropic]:
    """The SDK of Anthropic for `server`, with its first key. A module where all tests use it says `client = anthropic_client`."""
    with open_anthropic(server, server.first_key) as sdk:
        yield sdk
