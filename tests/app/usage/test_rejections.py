"""Each reply with 429 counts once as a rejection of its key, wherever it comes from; other replies count none."""

import json
import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from antiphon.app.http import request_body
from antiphon.app.options.api_keys import ApiKey, KeyLimits, key_digest
from tests.app.grpc.grpc_helpers import SERVICE
from tests.app.grpc.grpc_helpers import connect as connect_grpc
from tests.clients.lane_client import open_lanes
from tests.progress import HANG_TIMEOUT_S, wait_with_progress
from tests.serving import RunningServer, scripted_registry, serve

KEY, OTHER = "sk-one", "sk-other"
REFUSAL = {"refuse": "too many requests wait", "code": "server_is_overloaded"}
SCRIPT: list[dict[str, Any]] = [
    {"name": "refused", "when": ["refused"], "output": [REFUSAL]},
    {"name": "endless", "when": ["endless"], "output": [{"stall": True}]},
    {"name": "hi", "output": ["Hello."]},
]
BODY = json.dumps({"model": "scripted", "input": "hi"}).encode()


def create_keys(**limits: Any) -> tuple[ApiKey, ...]:
    return tuple(
        ApiKey(digest=key_digest(key), owner=key, name=key, limits=KeyLimits(**limits)) for key in (KEY, OTHER)
    )


def count_rejections(server: RunningServer, key: str = KEY) -> int:
    usage: Any = server.context.usage
    return sum(row.counts.rejections for row in usage.list_minutes() if row.owner == key)


def check_counted(server: RunningServer, action: Callable[[], object], number: int = 1) -> None:
    """Checks that an act makes so many rejections of the key, and none of the other one."""
    before = count_rejections(server)
    action()
    wait_with_progress(lambda: count_rejections(server) >= before + number, "the rejection is not counted")
    assert count_rejections(server) == before + number
    assert count_rejections(server, OTHER) == 0


def post(server: RunningServer, path: str, status: int, **options: Any) -> None:
    with httpx.Client(base_url=server.root, headers={"x-api-key": KEY}, timeout=HANG_TIMEOUT_S) as client:
        assert client.post(path, **options).status_code == status


def send_pieces(server: RunningServer, *pieces: bytes) -> None:
    """Sends a request with its key in pieces, and reads the head of its reply."""
    head = b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\nx-api-key: %s\r\ncontent-type: application/json\r\n"
    head = head % KEY.encode() + b"content-length: %d\r\n\r\n" % len(b"".join(pieces))
    with socket.create_connection(("127.0.0.1", server.port), timeout=HANG_TIMEOUT_S) as client:
        if len(pieces) == 1:
            client.sendall(head + pieces[0])
        else:
            for piece in (head, *pieces):
                client.sendall(piece)
        assert client.recv(65536).startswith(b"HTTP/1.1 429 ")


def test_rejections_of_a_full_server() -> None:
    registry = scripted_registry(SCRIPT, max_num_seqs=1, max_waiting=0)
    with serve(registry, api_keys=create_keys(), grpc_port=0) as server, open_lanes(server, key=KEY) as lanes:
        lanes.create("a", "endless")
        wait_with_progress(lambda: not server.context.capacity.total_free_slots(), "the server is not full")
        check_counted(server, lambda: send_pieces(server, BODY))
        check_counted(server, lambda: [send_pieces(server, BODY) for _ in range(3)], 3)
        check_counted(server, lambda: send_pieces(server, BODY[:5], BODY[5:]))
        chat = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
        check_counted(server, lambda: post(server, "/v1/chat/completions", 429, json=chat))
        check_counted(server, lambda: (lanes.create("b"), lanes.receive_error("b")))
        with connect_grpc(server) as caller:
            check_counted(
                server,
                lambda: caller.read_error(f"{SERVICE}/Generate", {"text": "hi"}, key=KEY),
            )


def test_rejections_by_limits_of_the_key() -> None:
    keys = create_keys(requests_per_minute=1)
    with serve(SCRIPT, api_keys=keys, grpc_port=0) as server, connect_grpc(server) as caller:
        post(server, "/v1/responses", 200, json=json.loads(BODY))
        assert count_rejections(server) == 0
        check_counted(server, lambda: post(server, "/v1/responses", 429, json=json.loads(BODY)))
        check_counted(server, lambda: post(server, "/v1/embeddings", 429, json={"model": "x", "input": "x"}))
        check_counted(server, lambda: caller.read_error(f"{SERVICE}/Generate", {"text": "hi"}, key=KEY))
        with open_lanes(server, key=KEY) as lanes:
            check_counted(server, lambda: (lanes.create("a"), lanes.receive_error("a")))
        post(server, "/v1/embeddings", 415, content=b"x")
        post(server, "/v1/nope", 404, json={})
    assert count_rejections(server) == 4


def test_rejections_by_places_of_the_key() -> None:
    with serve(SCRIPT, api_keys=create_keys(max_concurrent=1)) as server, open_lanes(server, key=KEY) as lanes:
        lanes.create("a", "endless")
        wait_with_progress(lambda: server.engine.stats().running == 1, "the first turn does not run")
        check_counted(server, lambda: post(server, "/v1/responses", 429, json=json.loads(BODY)))
        check_counted(server, lambda: (lanes.create("b"), lanes.receive_error("b")))


def test_rejections_by_the_engine() -> None:
    with serve(SCRIPT, api_keys=create_keys()) as server:
        for stream in (False, True):
            refused = {"model": "scripted", "input": "refused", "stream": stream}
            check_counted(server, lambda refused=refused: post(server, "/v1/responses", 429, json=refused))


def test_rejections_by_the_memory_of_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_body, "SMALL_BODY_BYTES", 10)
    with serve(SCRIPT, api_keys=create_keys()) as server:
        monkeypatch.setattr(server.context.body_memory, "max_bytes", 20)
        check_counted(server, lambda: post(server, "/v1/responses", 429, json=json.loads(BODY)))
