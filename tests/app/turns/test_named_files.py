"""Files that a small request names by their ids: their size is limited, and counts as memory of bodies, before a read."""

from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import pytest

from antiphon.app.http.request_body import BodyReservation
from antiphon.app.turns.media import reading
from tests.app.batches.batch_client import BatchClient
from tests.conftest import fresh_server
from tests.progress import wait_with_progress
from tests.serving import RunningServer, serve

SCRIPT = [{"name": "any", "output": ["Hello."]}]
FILE_BYTES = 1 << 20
NUM_FILES = 4
Send = Callable[[BatchClient, list[str]], httpx.Response]


def ask(client: BatchClient, ids: list[str]) -> httpx.Response:
    content = [{"type": "input_file", "file_id": file_id} for file_id in ids]
    return client.post("/responses", json={"model": "scripted", "input": [{"role": "user", "content": content}]})


def ask_chat(client: BatchClient, ids: list[str]) -> httpx.Response:
    content = [{"type": "file", "file": {"file_id": file_id}} for file_id in ids]
    return client.post(
        "/chat/completions", json={"model": "scripted", "messages": [{"role": "user", "content": content}]}
    )


def count_tokens(client: BatchClient, ids: list[str]) -> httpx.Response:
    content = [{"type": "input_file", "file_id": file_id} for file_id in ids]
    body = {"model": "scripted", "input": [{"role": "user", "content": content}]}
    return client.post("/responses/input_tokens", json=body)


def add_items(client: BatchClient, ids: list[str]) -> httpx.Response:
    content = [{"type": "input_file", "file_id": file_id} for file_id in ids]
    conversation = client.post("/conversations", json={}).json()["id"]
    return client.post(f"/conversations/{conversation}/items", json={"items": [{"role": "user", "content": content}]})


def wait_for_used_bytes(server: RunningServer, expected: int) -> None:
    """Waits until the bodies take `expected` bytes: a request gives its memory back after its reply was sent."""
    memory = server.context.body_memory
    wait_with_progress(lambda: memory.used_bytes == expected, f"the bodies do not take {expected} bytes")


SENDS: dict[str, Send] = {"responses": ask, "chat": ask_chat, "input_tokens": count_tokens, "conversations": add_items}
SERVER = partial(serve, SCRIPT, file_store=True)
server = fresh_server


@pytest.fixture
def ids(server: RunningServer) -> list[str]:
    client = BatchClient(server)
    return [client.upload_id(bytes([65 + number]) * FILE_BYTES, "user_data") for number in range(NUM_FILES)]


@pytest.fixture
def read(server: RunningServer) -> list[tuple[str, int]]:
    """Files that are read, with the memory that counts for bodies then."""
    found: list[tuple[str, int]] = []
    store, memory = server.context.store, server.context.body_memory
    read_file_bytes = store.read_file_bytes

    async def read_counted(owner: str, file_id: str, *values: Any) -> Any:
        result = await read_file_bytes(owner, file_id, *values)
        found.append((file_id, memory.used_bytes))
        return result

    store.read_file_bytes = read_counted  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize("name", SENDS)
def test_files_above_the_limit_are_not_read(
    server: RunningServer,
    ids: list[str],
    read: list[tuple[str, int]],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.setattr(reading, "MAX_NAMED_BYTES", 2 * FILE_BYTES)
    reply = SENDS[name](BatchClient(server), ids)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (400, "file_too_large")
    assert "[2]" in error["param"] and str(2 * FILE_BYTES) in error["message"]
    assert [file_id for file_id, _ in read] == ids[:2]
    assert SENDS[name](BatchClient(server), ids[:2]).json().get("error", {}).get("code") != "file_too_large"


@pytest.mark.parametrize("name", SENDS)
def test_files_count_as_memory_of_bodies_while_they_are_read(
    server: RunningServer, ids: list[str], read: list[tuple[str, int]], name: str
) -> None:
    SENDS[name](BatchClient(server), ids)
    assert [used >= number * FILE_BYTES for number, (_, used) in enumerate(read, 1)] == [True] * NUM_FILES
    wait_for_used_bytes(server, 0)


@pytest.mark.parametrize("name", SENDS)
def test_files_are_refused_while_bodies_take_all_memory(
    server: RunningServer, ids: list[str], read: list[tuple[str, int]], name: str
) -> None:
    wait_for_used_bytes(server, 0)  # the uploads have been answered, but may not have given their memory back
    memory = server.context.body_memory
    server.loop.call_soon_threadsafe(BodyReservation(memory).try_add, memory.max_bytes)
    reply = SENDS[name](BatchClient(server), ids)
    assert reply.status_code == 429, reply.text
    assert len(read) == 1, "the first is not large by itself"
    wait_for_used_bytes(server, memory.max_bytes)
