"""Turns of a client on one WebSocket connection."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer

KEYS = ("sk-one", "sk-two")


@contextmanager
def open_websocket(server: RunningServer, key: str = KEYS[0], **options: Any) -> Iterator[ClientConnection]:
    headers = {"authorization": f"Bearer {key}", "openai-beta": "responses_websockets=2026-02-06"}
    url = server.url.replace("http", "ws") + "/responses"
    with connect(url, additional_headers=headers, max_size=None, **options) as websocket:
        yield websocket


def send_create(websocket: ClientConnection, text: Any = "Hi", **fields: Any) -> None:
    websocket.send(json.dumps({"type": "response.create", "model": "scripted", "input": text, **fields}))


def receive_events(websocket: ClientConnection) -> list[dict[str, Any]]:
    """Returns the events up to a terminal event or a request error."""
    events: list[dict[str, Any]] = []
    while True:
        events.append(json.loads(websocket.recv(timeout=HANG_TIMEOUT_S)))
        kind = events[-1]["type"]
        if kind in ("response.completed", "response.incomplete", "response.failed") or (
            kind == "error" and "status" in events[-1]
        ):
            return events


def run_turn(websocket: ClientConnection, text: Any = "Hi", **fields: Any) -> list[dict[str, Any]]:
    send_create(websocket, text, **fields)
    return receive_events(websocket)
