"""Deletions and changes of conversations: each is answered once it is in the file, or it fails and changes nothing."""

import asyncio
import json
import subprocess
import sys
import threading
import time
from typing import Any

import httpx
import pytest

from antiphon.app.store.database import Database
from antiphon.app.store.writing.writer import StoreWriter
from tests.app.store.store_helpers import SERVER_PROGRAM, StorePlace, add_log
from tests.conftest import StartServer
from tests.progress import HANG_TIMEOUT_S
from tests.syntax import ROOT

pytestmark = pytest.mark.processes

HELLO = [{"name": f"hello {n}", "output": ["Hello."]} for n in range(8)]
BODY = {"model": "scripted", "input": "Hi"}


def read_rows(place: StorePlace, table: str) -> list[tuple[Any, ...]]:
    """Returns the rows that are committed now."""
    return place.read_rows(f"SELECT * FROM {table}")


@pytest.fixture
def slow_commits(place: StorePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delays each commit, so that a reply that does not wait for it arrives first."""
    commit = place.database_class.commit

    def delayed_commit(database: Database) -> None:
        time.sleep(0.2)
        commit(database)

    monkeypatch.setattr(place.database_class, "commit", delayed_commit)


@pytest.mark.usefixtures("slow_commits")
def test_every_change_is_in_the_file_when_it_is_answered(place: StorePlace, start_server: StartServer) -> None:
    server = start_server(HELLO, **place.settings())
    with httpx.Client(base_url=f"{server.url}/", timeout=HANG_TIMEOUT_S) as client:
        made = client.post("responses", json=BODY).json()
        assert client.delete(f"responses/{made['id']}").json()["deleted"]
        assert [row[0] for row in read_rows(place, "responses")] == []
        assert read_rows(place, "events") == read_rows(place, "items") == []
        conversation = client.post("conversations", json={"metadata": {"a": "1"}}).json()["id"]
        assert len(read_rows(place, "conversations")) == 1
        item = {"type": "message", "role": "user", "content": "Hi"}
        added = client.post(f"conversations/{conversation}/items", json={"items": [item]}).json()
        assert len(read_rows(place, "conversation_items")) == 1
        chat = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}], "store": True, "n": 2}
        completion = client.post("chat/completions", json=chat).json()["id"]
        client.post(f"chat/completions/{completion}", json={"metadata": {"a": "2"}})
        assert '"2"' in read_rows(place, "chat_completions")[0][5]
        assert client.delete(f"chat/completions/{completion}").json()["deleted"]
        for table in ("chat_completions", "chat_choices", "responses", "events"):
            assert read_rows(place, table) == [], table
        client.post(f"conversations/{conversation}", json={"metadata": {"a": "2"}})
        assert b'"2"' in bytes(read_rows(place, "conversations")[0][-1])
        client.delete(f"conversations/{conversation}/items/{added['data'][0]['id']}")
        assert read_rows(place, "conversation_items") == []
        client.delete(f"conversations/{conversation}")
        assert read_rows(place, "conversations") == []


@pytest.mark.usefixtures("slow_commits")
def test_cancelled_response_is_in_the_file_when_it_is_answered(place: StorePlace, start_server: StartServer) -> None:
    server = start_server([{"name": "stall", "output": ["Hello ", {"stall": True}]}], **place.settings())
    made = httpx.post(f"{server.url}/responses", json={**BODY, "background": True}, timeout=HANG_TIMEOUT_S).json()
    assert (
        httpx.post(f"{server.url}/responses/{made['id']}/cancel", timeout=HANG_TIMEOUT_S).json()["status"]
        == "cancelled"
    )
    (last,) = [json.loads(row[2]) for row in read_rows(place, "events")][-1:]
    assert last["response"]["status"] == "cancelled"


def test_other_requests_do_not_wait_for_the_disk(
    place: StorePlace, start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server(HELLO, **place.settings())
    run_transaction = StoreWriter._run_transaction

    has_begun, may_end = threading.Event(), threading.Event()

    def slow_transaction(*args: Any) -> Any:
        has_begun.set()
        assert may_end.wait(60)
        return run_transaction(*args)

    monkeypatch.setattr(StoreWriter, "_run_transaction", slow_transaction)

    async def ask_meanwhile() -> None:
        async with httpx.AsyncClient(timeout=HANG_TIMEOUT_S) as client:
            creating = asyncio.create_task(client.post(f"{server.url}/conversations", json={}))
            try:
                assert await asyncio.to_thread(has_begun.wait, 30)
                assert (await client.get(f"{server.root}/health")).status_code == 200
                assert not creating.done()
            finally:
                may_end.set()
            assert (await creating).status_code == 200

    asyncio.run(ask_meanwhile())


def test_change_that_cannot_be_stored_is_a_503_and_changes_nothing(
    place: StorePlace, start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server(HELLO, **place.settings())
    made = httpx.post(f"{server.url}/responses", json=BODY, timeout=HANG_TIMEOUT_S).json()
    conversation = httpx.post(f"{server.url}/conversations", json={}, timeout=HANG_TIMEOUT_S).json()["id"]

    def fail(*_: object, **__: object) -> None:
        raise OSError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("antiphon.app.store.writing.writer.MAX_TRIES", 2)
        patch.setattr(place.database_class, "begin", fail)
        for method, url in (("DELETE", f"responses/{made['id']}"), ("DELETE", f"conversations/{conversation}")):
            reply = httpx.request(method, f"{server.url}/{url}", timeout=HANG_TIMEOUT_S)
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "storage_unavailable")
    assert httpx.get(f"{server.url}/responses/{made['id']}").json() == made
    assert httpx.get(f"{server.url}/conversations/{conversation}").status_code == 200
    assert httpx.delete(f"{server.url}/responses/{made['id']}", timeout=HANG_TIMEOUT_S).status_code == 200


async def test_deletion_continues_when_its_client_leaves(place: StorePlace) -> None:
    async with place.open() as store:
        await add_log(store, "a").wait_published()
        deleting = asyncio.create_task(store.delete_response("me", "resp_a"))
        await asyncio.sleep(0)
        deleting.cancel()
        assert await store.read_log("me", "resp_a") is None
    assert read_rows(place, "responses") == []


def test_acknowledged_deletions_survive_a_kill(place: StorePlace) -> None:
    command = [sys.executable, "-c", SERVER_PROGRAM.replace("ROOT", repr(str(ROOT))), place.name]
    deleted: list[str] = []
    for _ in range(3):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            url = f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
            with httpx.Client(timeout=HANG_TIMEOUT_S) as client:
                for response_id in deleted:
                    assert client.get(f"{url}/responses/{response_id}").status_code == 404
                made = [client.post(f"{url}/responses", json=BODY).json()["id"] for _ in range(4)]
                for response_id in made:
                    assert client.delete(f"{url}/responses/{response_id}").json()["deleted"]
            deleted += made
            process.kill()
