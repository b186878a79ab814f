"""Requests that fail between admission and the first token: none of them costs a place, however many there are."""

import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import pytest

from tests.app.server_helpers import wait_until
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, scripted_registry, serve

NUM_REQUESTS = 330
"""More than an engine has places by default: 64 running and 256 waiting."""
SCRIPT: list[dict[str, Any]] = [
    {"name": "refuse", "when": ["Refuse"], "output": [{"refuse": "full", "code": "server_is_overloaded"}]},
    {"name": "fault", "when": ["Fault"], "output": [{"fault": "broken", "code": "server_error"}]},
    {"name": "stall", "when": ["Stall"], "output": [{"stall": True}]},
    {"name": "any", "output": ["Yes."]},
]
SERVER = partial(serve, partial(scripted_registry, SCRIPT, max_num_seqs=2, max_waiting=2))
DEEP_SCHEMA = {
    "$ref": "#/$defs/d0",
    "$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(4_000)} | {"d4000": {"type": "string"}},
}
BODIES: dict[str, tuple[dict[str, Any], set[int]]] = {
    "huge integer": ({"input": "Hi", "max_output_tokens": 2**64}, {400}),
    "huge seed": ({"input": "Hi", "seed": 2**70}, {400}),
    "token outside the vocabulary": ({"input": "Hi", "logit_bias": {"999999999": 1}}, {400}),
    "schema that crashes its compiler": (
        {"input": "Hi", "text": {"format": {"type": "json_schema", "name": "x", "schema": DEEP_SCHEMA}}},
        {400},
    ),
    "prompt beyond the context": ({"input": "word " * 150_000}, {400}),
    "refused by the engine": ({"input": "Refuse"}, {429}),
    "fault of the engine": ({"input": "Fault"}, {200}),
    "unknown previous response": ({"input": "Hi", "previous_response_id": "resp_none"}, {400}),
}


def create_response(server: RunningServer, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/responses", json={"model": "scripted", **body}, timeout=HANG_TIMEOUT_S)


def assert_all_places_are_free(server: RunningServer) -> None:
    engine = server.engine
    assert wait_until(10, lambda: server.context.capacity.free_slots(engine) == engine.capacity())
    # Requests of clients that have left may still wait to be read, and are counted until then.
    assert wait_until(10, lambda: create_response(server, input="Hi").json().get("status") == "completed")


@pytest.mark.parametrize("kind", BODIES)
def test_failed_requests_cost_no_place(kind: str, server: RunningServer) -> None:
    body, statuses = BODIES[kind]
    count = NUM_REQUESTS if len(str(body)) < 10_000 else 12
    with httpx.Client(timeout=HANG_TIMEOUT_S) as client:
        for _ in range(count):
            reply = client.post(f"{server.url}/responses", json={"model": "scripted", **body})
            assert reply.status_code in statuses, reply.text
    assert_all_places_are_free(server)


def leave_after_the_head(server: RunningServer, body: bytes) -> None:
    head = b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body[:10])


def leave_after_the_request(server: RunningServer, body: bytes) -> None:
    head = b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)


@pytest.mark.parametrize("leave", [leave_after_the_head, leave_after_the_request])
def test_clients_that_leave_cost_no_place(leave: Callable[[RunningServer, bytes], None], server: RunningServer) -> None:
    for _ in range(NUM_REQUESTS):
        leave(server, b'{"model": "scripted", "input": "Stall"}')
    assert_all_places_are_free(server)
