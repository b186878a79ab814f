"""Deletions and changes of conversations: each is answered once it is in the file, or it fails and changes nothing."""

import asyncio
import json
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon.app.store.sqlite.database import SqliteDatabase
from antiphon.app.store.sqlite.store import SqliteStore
from antiphon.app.store.writer import StoreWriter
from tests.app.store.store_helpers import SERVER_PROGRAM, add_log
from tests.conftest import StartServer
from tests.syntax import ROOT

HELLO = [{"name": f"hello {n}", "output": ["Hello."]} for n in range(8)]
BODY = {"model": "scripted", "input": "Hi"}


def read_rows(path: Path, table: str) -> list[tuple[Any, ...]]:
    """Returns the rows that are committed now."""
    with sqlite3.connect(path) as connection:
        rows = connection.execute(f"SELECT * FROM {table}").fetchall()
    connection.close()
    return rows


@pytest.fixture
def slow_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delays each commit, so that a reply that does not wait for it arrives first."""
    commit = SqliteDatabase.commit

    def delayed_commit(database: SqliteDatabase) -> None:
        time.sleep(0.2)
        commit(database)

    monkeypatch.setattr(SqliteDatabase, "commit", delayed_commit)


@pytest.mark.usefixtures("slow_commits")
def test_every_change_is_in_the_file_when_it_is_answered(tmp_path: Path, start_server: StartServer) -> None:
    path = tmp_path / "responses.db"
    server = start_server(HELLO, store_file=path)
    with httpx.Client(base_url=f"{server.url}/", timeout=20) as client:
        made = client.post("responses", json=BODY).json()
        assert client.delete(f"responses/{made['id']}").json()["deleted"]
        assert [row[0] for row in read_rows(path, "responses")] == []
        assert read_rows(path, "events") == read_rows(path, "items") == []
        conversation = client.post("conversations", json={"metadata": {"a": "1"}}).json()["id"]
        assert len(read_rows(path, "conversations")) == 1
        item = {"type": "message", "role": "user", "content": "Hi"}
        added = client.post(f"conversations/{conversation}/items", json={"items": [item]}).json()
        assert len(read_rows(path, "conversation_items")) == 1
        chat = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}], "store": True, "n": 2}
        completion = client.post("chat/completions", json=chat).json()["id"]
        client.post(f"chat/completions/{completion}", json={"metadata": {"a": "2"}})
        assert '"2"' in read_rows(path, "chat_completions")[0][5]
        assert client.delete(f"chat/completions/{completion}").json()["deleted"]
        for table in ("chat_completions", "chat_choices", "responses", "events"):
            assert read_rows(path, table) == [], table
        client.post(f"conversations/{conversation}", json={"metadata": {"a": "2"}})
        assert b'"2"' in read_rows(path, "conversations")[0][-1]
        client.delete(f"conversations/{conversation}/items/{added['data'][0]['id']}")
        assert read_rows(path, "conversation_items") == []
        client.delete(f"conversations/{conversation}")
        assert read_rows(path, "conversations") == []


@pytest.mark.usefixtures("slow_commits")
def test_cancelled_response_is_in_the_file_when_it_is_answered(tmp_path: Path, start_server: StartServer) -> None:
    path = tmp_path / "responses.db"
    server = start_server([{"name": "stall", "output": ["Hello ", {"stall": True}]}], store_file=path)
    made = httpx.post(f"{server.url}/responses", json={**BODY, "background": True}, timeout=20).json()
    assert httpx.post(f"{server.url}/responses/{made['id']}/cancel", timeout=20).json()["status"] == "cancelled"
    (last,) = [json.loads(row[2]) for row in read_rows(path, "events")][-1:]
    assert last["response"]["status"] == "cancelled"


def test_other_requests_do_not_wait_for_the_disk(
    tmp_path: Path, start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server(HELLO, store_file=tmp_path / "responses.db")
    run_transaction = StoreWriter._run_transaction

    has_begun, may_end = threading.Event(), threading.Event()

    def slow_transaction(*args: Any) -> Any:
        has_begun.set()
        assert may_end.wait(60)
        return run_transaction(*args)

    monkeypatch.setattr(StoreWriter, "_run_transaction", slow_transaction)

    async def ask_meanwhile() -> None:
        async with httpx.AsyncClient(timeout=30) as client:
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
    tmp_path: Path, start_server: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server(HELLO, store_file=tmp_path / "responses.db")
    made = httpx.post(f"{server.url}/responses", json=BODY, timeout=20).json()
    conversation = httpx.post(f"{server.url}/conversations", json={}, timeout=20).json()["id"]

    def fail(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("antiphon.app.store.writer.MAX_TRIES", 2)
        patch.setattr(SqliteDatabase, "begin", fail)
        for method, url in (("DELETE", f"responses/{made['id']}"), ("DELETE", f"conversations/{conversation}")):
            reply = httpx.request(method, f"{server.url}/{url}", timeout=20)
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "storage_unavailable")
    assert httpx.get(f"{server.url}/responses/{made['id']}").json() == made
    assert httpx.get(f"{server.url}/conversations/{conversation}").status_code == 200
    assert httpx.delete(f"{server.url}/responses/{made['id']}", timeout=20).status_code == 200


async def test_deletion_continues_when_its_client_leaves(tmp_path: Path) -> None:
    path = tmp_path / "responses.db"
    store = SqliteStore(path)
    try:
        await add_log(store, "a").wait_published()
        deleting = asyncio.create_task(store.delete_response("me", "resp_a"))
        await asyncio.sleep(0)
        deleting.cancel()
        assert store.find_log("me", "resp_a") is None
    finally:
        await store.close()
    assert read_rows(path, "responses") == []


@pytest.mark.timeout(120)
def test_acknowledged_deletions_survive_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "responses.db"
    command = [sys.executable, "-c", SERVER_PROGRAM.replace("ROOT", repr(str(ROOT))), str(path)]
    deleted: list[str] = []
    for _ in range(3):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            url = f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
            with httpx.Client(timeout=20) as client:
                for response_id in deleted:
                    assert client.get(f"{url}/responses/{response_id}").status_code == 404
                made = [client.post(f"{url}/responses", json=BODY).json()["id"] for _ in range(4)]
                for response_id in made:
                    assert client.delete(f"{url}/responses/{response_id}").json()["deleted"]
            deleted += made
            process.kill()
