"""Turns that are being prepared when a server is told to end: each gets its whole reply, or an error, on every API."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from websockets.sync.client import connect as connect_websocket

from antiphon.app.main import server as server_module
from antiphon.app.options.api_keys import key_digest
from antiphon.app.store.sqlite.store import SqliteStore
from antiphon.app.turns.continuation.continuer import TurnContinuer
from tests.app.grpc.grpc_helpers import SERVICE, connect
from tests.invariants import check_stream
from tests.progress import HANG_TIMEOUT_S, wait_with_progress
from tests.serving import RunningServer, serve

OUTPUT = ["Hello, ", {"pause": 1.5}, "you."]
SCRIPT: list[dict[str, Any]] = [{"name": "any", "output": OUTPUT}]
MESSAGES = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/responses": {"input": "Hi"},
    "/chat/completions": {"messages": MESSAGES},
    "/completions": {"prompt": "Hi"},
    "/messages": {"messages": MESSAGES, "max_tokens": 50},
    "/responses/compact": {"input": "Hi"},
}
Outcome = tuple[int, str]
"""Status of a reply, and its body or its events."""
Send = Callable[[RunningServer], Outcome]


def post(path: str, **fields: Any) -> Send:
    def send(server: RunningServer) -> Outcome:
        body = {"model": "scripted", **BODIES[path], **fields}
        reply = httpx.post(server.url + path, json=body, timeout=HANG_TIMEOUT_S)
        return reply.status_code, reply.text

    return send


def send_over_websocket(server: RunningServer) -> Outcome:
    with connect_websocket(f"ws://127.0.0.1:{server.port}/v1/responses") as websocket:
        websocket.send(json.dumps({"type": "response.create", "model": "scripted", "input": "Hi", "store": False}))
        events: list[dict[str, Any]] = []
        while not events or events[-1]["type"] not in ("response.completed", "response.failed", "error"):
            events.append(json.loads(websocket.recv(HANG_TIMEOUT_S)))
    return events[-1].get("status", 200), json.dumps(events)


def call_grpc(server: RunningServer) -> Outcome:
    request = {"request_id": "r", "text": "Hi", "stream": True}
    with connect(server) as caller:
        try:
            return 200, str(list(caller.call(f"{SERVICE}/Generate", request)))
        except grpc.RpcError as error:
            return 503 if error.code() is grpc.StatusCode.UNAVAILABLE else 500, str(error.details())


KINDS: dict[str, Send] = {
    **{
        f"{path} {stream}": post(path, stream=stream)
        for path in BODIES
        for stream in (True, False)
        if "compact" not in path
    },
    "/responses/compact": post("/responses/compact"),
    "background": post("/responses", background=True),
    "background stream": post("/responses", background=True, stream=True),
    "several choices": post("/chat/completions", n=2),
    "websocket": send_over_websocket,
    "grpc": call_grpc,
}
NUM_TURNS = len(KINDS) + 1
ENDS = {
    "/responses True": "response.completed",
    "background stream": "response.completed",
    "websocket": "response.completed",
    "/chat/completions True": "[DONE]",
    "/completions True": "[DONE]",
    "/messages True": "message_stop",
    "/responses/compact": "compaction",
    "background": "resp_",
    "grpc": "complete",
}
"""Ends of replies that do not have the whole text in one piece."""


class HeldPreparation:
    """Keeps the turns of a server in their preparation until `release`."""

    def __init__(self, server: RunningServer) -> None:
        self._server, self._released = server, asyncio.Event()
        resolver = server.context.turn_manager.preparer._media
        self._resolve = resolver.resolve
        resolver.resolve = self._wait  # type: ignore[method-assign]  # stands for pictures, tool lists, long prompts

    async def _wait(self, *values: Any) -> Any:
        await self._released.wait()
        return await self._resolve(*values)

    def release(self) -> None:
        self._server.loop.call_soon_threadsafe(self._released.set)


@contextmanager
def send_all(server: RunningServer) -> Iterator[dict[str, Outcome]]:
    """Sends a request of each kind, and yields when all are being prepared. Their outcomes are whole at the end."""
    outcomes: dict[str, Outcome] = {}

    def run(name: str, send: Send) -> None:
        try:
            outcomes[name] = send(server)
        except Exception as error:  # noqa: BLE001  # shown by the test
            outcomes[name] = 0, repr(error)

    threads = [threading.Thread(target=run, args=kind) for kind in KINDS.items()]
    for thread in threads:
        thread.start()
    capacity = server.context.capacity
    wait_with_progress(lambda: capacity.open_turns(server.engine) == NUM_TURNS, "not all requests are admitted")
    yield outcomes
    wait_with_progress(lambda: not any(thread.is_alive() for thread in threads), "a request does not end")


def begin_shutdown(server: RunningServer) -> None:
    server.stop()
    wait_with_progress(lambda: server.context.turn_manager._shutting_down, "no shutdown begins")


def test_turn_that_is_being_prepared_counts_as_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "CLOSE_GRACE_SECONDS", 1.0)  # shorter than a turn
    file = tmp_path / "store.db"
    with serve(SCRIPT, grpc_port=0, store_file=file, shutdown_timeout=HANG_TIMEOUT_S) as server:
        held = HeldPreparation(server)
        with send_all(server) as outcomes:
            begin_shutdown(server)
            held.release()
    assert {name: status for name, (status, _) in outcomes.items()} == dict.fromkeys(KINDS, 200), outcomes
    events = [
        json.loads(line[6:]) for line in outcomes["/responses True"][1].splitlines() if line.startswith("data: {")
    ]
    check_stream(events)
    for name, (_, text) in outcomes.items():
        assert ENDS.get(name, "you.") in text, name
    response_id = json.loads(outcomes["background"][1])["id"]
    with serve(SCRIPT, store_file=file, continue_within=0.0) as server:
        assert httpx.get(f"{server.url}/responses/{response_id}").json()["status"] == "completed"


def test_turn_that_is_prepared_for_too_long_is_refused() -> None:
    with serve(SCRIPT, grpc_port=0, file_store=True, shutdown_timeout=0.1) as server:
        HeldPreparation(server)
        with send_all(server) as outcomes:
            server.stop()
    assert {name: status for name, (status, _) in outcomes.items()} == dict.fromkeys(KINDS, 503), outcomes
    for name, (_, text) in outcomes.items():
        assert "shutting down" in text, name


def test_turn_that_is_being_prepared_is_cancelled_with_its_key() -> None:
    outcomes: list[httpx.Response] = []
    with serve(SCRIPT, api_keys=("sk-one",)) as server:
        held, manager = HeldPreparation(server), server.context.turn_manager

        def send() -> None:
            body, headers = {"model": "scripted", "input": "Hi"}, {"authorization": "Bearer sk-one"}
            outcomes.append(httpx.post(f"{server.url}/responses", json=body, headers=headers, timeout=HANG_TIMEOUT_S))

        thread = threading.Thread(target=send)
        thread.start()
        wait_with_progress(lambda: server.context.capacity.open_turns(server.engine) == 1, "it is not admitted")

        async def cancel() -> int:
            return manager.cancel_turns_of_keys(frozenset({key_digest("sk-one")}))

        assert asyncio.run_coroutine_threadsafe(cancel(), server.loop).result(HANG_TIMEOUT_S) == 1
        thread.join()
        held.release()
    assert (outcomes[0].status_code, outcomes[0].json()["error"]["code"]) == (401, "invalid_api_key")


async def test_background_turn_that_waits_for_digests_is_not_cut_off(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    continuer = TurnContinuer(store, lambda *_: asyncio.sleep(0))
    continuer._started = asyncio.create_task(asyncio.Event().wait())  # type: ignore[assignment]  # a slow disk
    waiting = asyncio.create_task(continuer.wait_started())
    await asyncio.sleep(0)
    await continuer.close()
    await waiting
    await store.close()
