"""Memory of requests that wait: those of all connections, and the bodies of other requests, take a bounded part together."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import httpx
import pytest

from tests.clients.lane_client import LaneClient, open_lanes, text_of
from tests.clients.sdk_helpers import wait_until
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, scripted_registry, serve

SCRIPT: list[dict[str, Any]] = [
    {"name": "endless", "when": ["Forever"], "output": ["On and on", {"stall": True}]},
    {"name": "any", "output": ["Yes", "."]},
]
KEYS = ("sk-one", "sk-two")
LARGE, SMALL = "x" * 1_200_000, "y" * 1000
MAX_BYTES = 2_500_000
"""Two of the large requests."""

SERVER = partial(serve, partial(scripted_registry, SCRIPT, max_num_seqs=64), api_keys=KEYS)


@pytest.fixture
def filled(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[LaneClient]]:
    """Connections of the first key that hold all the memory that requests may take."""
    monkeypatch.setattr(server.context.body_memory, "max_bytes", MAX_BYTES)
    with ExitStack() as stack:
        clients = [stack.enter_context(open_lanes(server, KEYS[0])) for _ in range(2)]
        for client in clients:
            client.create("a", "Forever")
            client.create("a", LARGE)
        assert wait_until(60, lambda: server.context.body_memory.used_bytes > MAX_BYTES - 200_000)
        yield clients
    assert wait_until(60, lambda: server.context.body_memory.used_bytes == 0)


def test_requests_that_wait_on_connections_take_bounded_memory(server: RunningServer, filled: list[LaneClient]) -> None:
    """A large one that would wait is refused. Small ones wait, and those that need not wait run, also of another key."""
    for key in KEYS:
        with open_lanes(server, key) as other:
            other.create("a", "Forever")
            other.create("a", LARGE)
            assert other.receive_error("a") == (429, "rate_limit_exceeded", None)
            other.create("a", SMALL)
            other.create("b", SMALL)
            assert text_of(other.finish("b")) == "Yes."
    filled[0].create("c", SMALL)
    assert text_of(filled[0].finish("c")) == "Yes."


def test_large_body_is_refused_while_connections_take_the_memory(
    server: RunningServer, filled: list[LaneClient]
) -> None:
    assert filled

    def post(text: str) -> int:
        body, headers = {"model": "scripted", "input": text}, {"authorization": f"Bearer {KEYS[1]}"}
        return httpx.post(f"{server.url}/responses", json=body, headers=headers, timeout=HANG_TIMEOUT_S).status_code

    assert (post(LARGE), post(SMALL)) == (429, 200)
