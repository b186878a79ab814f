"""A client of the engine's protocol written from its documentation alone."""

import json
import threading
import time
from typing import Any, Self

import httpx

from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer

NUM_WORDS = 150
SCRIPT: list[dict[str, Any]] = [
    {"name": "long", "when": ["At length"], "output": ["word " * NUM_WORDS], "tokens_per_chunk": 5},
    {"name": "any", "output": ["Yes."]},
]


class SecondClient:
    """Streams a long response and asks `/health` all the while, in two threads."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self.events: list[dict[str, Any]] = []
        self.health_s: list[float] = []
        self._threads = [threading.Thread(target=self._stream), threading.Thread(target=self._ask_health)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        while not self.events:
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join()

    def _stream(self) -> None:
        body = {"model": "scripted", "input": "At length", "stream": True}
        with httpx.stream("POST", f"{self._server.url}/responses", json=body, timeout=HANG_TIMEOUT_S) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    self.events.append(json.loads(line.removeprefix("data: ")))

    def _ask_health(self) -> None:
        with httpx.Client(timeout=HANG_TIMEOUT_S) as client:
            while self._threads[0].is_alive():
                started = time.monotonic()
                assert client.get(f"{self._server.root}/health").status_code == 200
                self.health_s.append(time.monotonic() - started)
                time.sleep(0.02)
