"""Sizes of conversations count for the limits of their owner and of the store, however the items were added."""

import base64
import math
from typing import Any

import httpx
import pytest

from antiphon.app.options.api_keys import ApiKey, key_digest
from antiphon.app.store.history import reads
from tests.conftest import StartServer
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer

SCRIPT = [{"name": "any", "output": ["Hello."]}]
KEYS = tuple(ApiKey(digest=key_digest(name), owner=name, name=name) for name in ("alice", "bob"))
LIMITED = ApiKey(digest=key_digest("carol"), owner="carol", store_gib=50_000 / 2**30)
PNG = base64.b64encode(b"\x89PNG" + bytes(9000)).decode()


@pytest.fixture(params=[True, False], ids=["file", "memory"])
def server(request: pytest.FixtureRequest, start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> RunningServer:
    monkeypatch.setattr(reads, "SIZE_AGE_S", 0.0)
    return start_server(SCRIPT, api_keys=(*KEYS, LIMITED), file_store=request.param)


def connect(server: RunningServer, key: str) -> httpx.Client:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.Client(base_url=server.url, headers=headers, timeout=HANG_TIMEOUT_S)


def create(client: httpx.Client, **body: Any) -> str:
    reply = client.post("/conversations", json=body)
    assert reply.status_code == 200, reply.text
    found: str = reply.json()["id"]
    return found


def fill(client: httpx.Client, conversation: str) -> int:
    """Adds items of 10 kB until one is refused. Returns the number of those that were taken."""
    for number in range(100):
        item = {"role": "user", "content": "x" * 10_000}
        reply = client.post(f"/conversations/{conversation}/items", json={"items": [item]})
        if reply.status_code != 200:
            error = reply.json()["error"]
            assert (reply.status_code, error["code"]) == (400, "storage_limit_exceeded"), reply.text
            return number
    raise AssertionError("no limit")


@pytest.mark.parametrize("limit", ["max_owner_bytes", "max_kept_bytes", "store_gib"])
def test_items_are_refused_above_the_limit(server: RunningServer, limit: str) -> None:
    if limit != "store_gib":
        setattr(server.context.store, limit, 50_000)
    owner = "carol" if limit == "store_gib" else "alice"
    with connect(server, owner) as client, connect(server, "bob") as other:
        conversation = create(client)
        assert 3 <= fill(client, conversation) <= 4
        items = [{"role": "user", "content": "x" * 20_000}]
        assert client.post("/conversations", json={"items": items}).status_code == 400
        reply = other.post("/conversations", json={"items": items})
        assert reply.status_code == (400 if limit == "max_kept_bytes" else 200)
        assert client.delete(f"/conversations/{conversation}").status_code == 200
        assert fill(client, create(client)) >= 1, "what is deleted does not count"


@pytest.mark.parametrize("limit", ["max_owner_bytes", "max_kept_bytes"])
def test_deletion_makes_room_at_once(server: RunningServer, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """Sizes are counted rarely, and the error asks for a deletion."""
    monkeypatch.setattr(reads, "SIZE_AGE_S", math.inf)
    setattr(server.context.store, limit, 50_000)
    with connect(server, "alice") as client:
        first = create(client)
        num_items = fill(client, first)
        assert client.delete(f"/conversations/{first}").status_code == 200
        second = create(client)
        assert fill(client, second) == num_items
        [newest, *_] = client.get(f"/conversations/{second}/items").json()["data"]
        assert client.delete(f"/conversations/{second}/items/{newest['id']}").status_code == 200
        assert fill(client, second) == 1


def test_items_that_are_refused_for_all_do_not_count_for_their_owner(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "SIZE_AGE_S", math.inf)
    store = server.context.store
    store.max_owner_bytes, store.max_kept_bytes = 50_000, 20_000
    with connect(server, "alice") as client:
        conversation = create(client)
        for _ in range(5):
            fill(client, conversation)
        store.max_kept_bytes = 100_000
        assert fill(client, conversation) >= 2


def test_pictures_and_empty_conversations_count(server: RunningServer) -> None:
    server.context.store.max_owner_bytes = 60_000
    with connect(server, "alice") as client:
        picture = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}
        pictures = [{**picture, "image_url": picture["image_url"][:-4] + f"AA{number:02d}"} for number in range(20)]
        conversation, statuses = create(client), list[int]()
        for part in pictures:
            body = {"items": [{"role": "user", "content": [part]}]}
            statuses.append(client.post(f"/conversations/{conversation}/items", json=body).status_code)
        assert 3 <= statuses.count(200) <= 6 and statuses[-1] == 400
        client.delete(f"/conversations/{conversation}")
        server.context.store.max_owner_bytes = 3000
        created = [client.post("/conversations", json={}).status_code for _ in range(20)]
        assert 5 <= created.count(200) <= 12 and created[-1] == 400


def test_turns_that_add_to_conversations_are_refused_above_the_limit(server: RunningServer) -> None:
    server.context.store.max_owner_bytes = 50_000
    with connect(server, "alice") as client:
        conversation, statuses = create(client), list[int]()
        for _ in range(8):
            body = {"model": "scripted", "input": "x" * 10_000, "conversation": conversation}
            statuses.append(client.post("/responses", json=body).status_code)
        assert 4 <= statuses.count(200) <= 6 and statuses[-1] == 400
        assert client.post("/responses", json={"model": "scripted", "input": "Hi"}).status_code == 200
