"""A WebSocket whose events are kept by lane."""

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer

ENDINGS = ("response.completed", "response.incomplete", "response.failed")


class LaneClient:
    """A connection whose events are kept by lane."""

    def __init__(self, websocket: ClientConnection) -> None:
        self.websocket = websocket
        self.events: defaultdict[str | None, list[dict[str, Any]]] = defaultdict(list)
        self.ended: defaultdict[str | None, list[dict[str, Any]]] = defaultdict(list)
        self.order: list[str | None] = []

    def create(self, lane: str | None, text: Any = "Hi", **fields: Any) -> None:
        named = {} if lane is None else {"stream_id": lane}
        body = {"type": "response.create", "model": "scripted", "input": text, "store": False}
        self.websocket.send(json.dumps(body | named | fields))

    def receive(self) -> dict[str, Any]:
        """Returns the next event, and keeps it in its lane without the lane's name."""
        event: dict[str, Any] = json.loads(self.websocket.recv(timeout=HANG_TIMEOUT_S))
        lane = event.pop("stream_id", None)
        self.events[lane].append(event)
        self.order.append(lane)
        if event["type"] in ENDINGS:
            self.ended[lane].append(event["response"])
        return event

    def finish(self, lane: str | None, number: int = 1) -> dict[str, Any]:
        """Returns the last of the first `number` responses of a lane."""
        while len(self.ended[lane]) < number:
            self.receive()
        return self.ended[lane][number - 1]

    def receive_error(self, lane: str | None) -> tuple[int, str | None, str | None]:
        """Returns the next error of a lane."""
        while not (errors := [e for e in self.events[lane] if e["type"] == "error" and "status" in e]):
            self.receive()
        self.events[lane].remove(errors[0])
        return errors[0]["status"], errors[0]["error"]["code"], errors[0]["error"]["param"]

    def streams(self, lane: str | None) -> list[list[dict[str, Any]]]:
        """Returns the events of a lane, one list for each response."""
        streams: list[list[dict[str, Any]]] = []
        for event in self.events[lane]:
            if event["type"] == "response.created":
                streams.append([])
            streams[-1].append(event)
        return streams


@contextmanager
def open_lanes(server: RunningServer, key: str = "") -> Iterator[LaneClient]:
    headers, url = {"x-api-key": key} if key else {}, server.url.replace("http", "ws") + "/responses"
    with connect(url, max_size=None, max_queue=None, additional_headers=headers) as websocket:
        yield LaneClient(websocket)


def text_of(response: dict[str, Any]) -> str:
    return str(response["output"][0]["content"][0]["text"])
