"""Reads of a store on a disk that does not answer: each request that waits for one gets an error in time."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx
import pytest

from antiphon.app.store.history import bounded_read
from antiphon.app.store.sqlite.database import SharedConnection
from antiphon.app.turns.continuation import continuer
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, serve

SCRIPT = [{"name": "words", "output": ["one two three"], "tokens_per_chunk": 1}]
BODY = {"model": "scripted", "input": "Hi"}
WAIT_S = 0.3
KEY = "sk-one"
OPTIONS: dict[str, Any] = {"headers": {"authorization": f"Bearer {KEY}"}, "timeout": HANG_TIMEOUT_S}
Ids = dict[str, str]
SERVER = partial(serve, SCRIPT, api_keys=(KEY,), file_store=True, inspect="store")


@pytest.fixture(scope="module")
def ids(server: RunningServer) -> Ids:
    """Returns the ids of a response, which this server has in memory no more, of a conversation, and of a file."""
    item = {"role": "user", "content": "Hi"}
    with httpx.Client(base_url=server.url, **OPTIONS) as client:
        conversation = client.post("/conversations", json={"items": [item]}).json()
        response = client.post("/responses", json=BODY).json()
        file = client.post("/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", b"{}")}).json()
    server.loop.call_soon_threadsafe(server.context.store.debug.logs.recent.clear)
    return {"response": response["id"], "conversation": conversation["id"], "file": file["id"]}


@contextmanager
def hold_reads(server: RunningServer) -> Iterator[None]:
    """Keeps the connection of the threads that read busy."""
    connection = server.context.store.debug.reader._connection
    server.context.store.history._sizes.clear()
    assert isinstance(connection, SharedConnection)
    with connection.lock:
        yield


READS: dict[str, Callable[[Ids], tuple[str, str, Any]]] = {
    "response": lambda ids: ("GET", f"/responses/{ids['response']}", None),
    "input items": lambda ids: ("GET", f"/responses/{ids['response']}/input_items", None),
    "deletion": lambda ids: ("DELETE", f"/responses/{ids['response']}", None),
    "items": lambda ids: ("GET", f"/conversations/{ids['conversation']}/items", None),
    "item": lambda ids: ("GET", f"/conversations/{ids['conversation']}/items/msg_1", None),
    "new items": lambda ids: (
        "POST",
        f"/conversations/{ids['conversation']}/items",
        {"items": [{"role": "user", "content": "Hi"}]},
    ),
    "file": lambda ids: ("GET", f"/files/{ids['file']}", None),
    "batches": lambda _: ("GET", "/batches", None),
    "turns": lambda _: ("GET", "/inspect/turns", None),
    "turn": lambda ids: ("GET", f"/inspect/turns/{ids['response']}", None),
    "previous response": lambda ids: ("POST", "/responses", BODY | {"previous_response_id": ids["response"]}),
    "conversation": lambda ids: ("POST", "/responses", BODY | {"conversation": ids["conversation"]}),
}
"""Method, path and body of requests that read the store in a thread."""


@pytest.mark.parametrize("name", READS)
def test_read_that_is_not_answered_is_an_error_in_time(
    server: RunningServer, ids: Ids, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(bounded_read, "MAX_READ_WAIT_S", WAIT_S)
    method, path, body = READS[name](ids)
    with hold_reads(server):
        reply = httpx.request(method, f"{server.url}{path}", json=body, **OPTIONS)
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "storage_unavailable"), reply.text
    assert reply.headers["retry-after"] == "1"


async def test_timeout_of_the_read_itself_is_no_overdue_read() -> None:
    def fail() -> None:
        raise TimeoutError("of the event loop")

    with pytest.raises(TimeoutError, match="of the event loop"):
        await bounded_read.read_in_thread(fail)


def test_background_request_does_not_wait_for_the_files_of_models_without_a_limit(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(continuer, "MAX_DIGEST_WAIT_S", WAIT_S)
    turns, never = server.context.turn_manager, asyncio.Event()

    async def hang() -> None:
        async with asyncio.timeout(HANG_TIMEOUT_S):
            await never.wait()

    async def begin() -> None:
        turns.continuer._started = asyncio.create_task(hang())

    asyncio.run_coroutine_threadsafe(begin(), server.loop).result(HANG_TIMEOUT_S)
    try:
        reply = httpx.post(f"{server.url}/responses", json=BODY | {"background": True}, **OPTIONS)
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_unavailable"), reply.text
        assert "'background'" in reply.json()["error"]["message"] and reply.headers["retry-after"] == "1"
        assert httpx.post(f"{server.url}/responses", json=BODY, **OPTIONS).status_code == 200
    finally:
        server.loop.call_soon_threadsafe(never.set)
    reply = httpx.post(f"{server.url}/responses", json=BODY | {"background": True}, **OPTIONS)
    assert reply.status_code == 200
