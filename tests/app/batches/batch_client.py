"""Requests of the tests to `/v1/files` and `/v1/batches`."""

import json
import time
from collections.abc import Sequence
from typing import Any

import httpx

from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer

ENDED = ("completed", "failed", "expired", "cancelled")


def make_lines(bodies: Sequence[Any], endpoint: str = "/v1/responses") -> bytes:
    """Returns an input file whose custom ids are `r0`, `r1`, …"""
    lines = [
        {"custom_id": f"r{number}", "method": "POST", "url": endpoint, "body": body}
        for number, body in enumerate(bodies)
    ]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


class BatchClient:
    """A client with one API key. Each request has a connection of its own, which is closed after it."""

    def __init__(self, server: RunningServer, key: str = "") -> None:
        self._url = server.url
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    def request(self, method: str, path: str, headers: dict[str, str] | None = None, **content: Any) -> httpx.Response:
        """Sends a request to a path below `/v1`."""
        all_headers = {**self._headers, **(headers or {})}
        return httpx.request(method, self._url + path, headers=all_headers, timeout=HANG_TIMEOUT_S, **content)

    def get(self, path: str, **content: Any) -> httpx.Response:
        """Sends a GET."""
        return self.request("GET", path, **content)

    def post(self, path: str, **content: Any) -> httpx.Response:
        """Sends a POST."""
        return self.request("POST", path, **content)

    def delete(self, path: str) -> httpx.Response:
        """Sends a DELETE."""
        return self.request("DELETE", path)

    def upload(
        self, content: bytes, purpose: str = "batch", filename: str = "in.jsonl", **fields: str
    ) -> httpx.Response:
        """Uploads a file."""
        return self.post("/files", files={"file": (filename, content)}, data={"purpose": purpose, **fields})

    def upload_id(self, content: bytes, purpose: str = "batch") -> str:
        """Uploads a file, and returns its id."""
        reply = self.upload(content, purpose)
        assert reply.status_code == 200, reply.text
        found: str = reply.json()["id"]
        return found

    def create(self, file_id: str, endpoint: str = "/v1/responses", **fields: Any) -> httpx.Response:
        """Creates a batch."""
        body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h", **fields}
        return self.post("/batches", json=body)

    def start(self, content: bytes, endpoint: str = "/v1/responses", **fields: Any) -> str:
        """Uploads a file and creates a batch of it. Returns the id of the batch."""
        reply = self.create(self.upload_id(content), endpoint, **fields)
        assert reply.status_code == 200, reply.text
        found: str = reply.json()["id"]
        return found

    def find(self, batch_id: str) -> Any:
        """Returns the batch as it is now."""
        return self.get(f"/batches/{batch_id}").json()

    def await_status(self, batch_id: str, *statuses: str) -> Any:
        """Returns the batch once it has one of these statuses, by default once it has ended."""
        deadline = time.monotonic() + HANG_TIMEOUT_S
        while (batch := self.find(batch_id))["status"] not in (statuses or ENDED):
            assert time.monotonic() < deadline, batch
            time.sleep(0.02)
        return batch

    def read_lines(self, file_id: str | None) -> list[Any]:
        """Returns the lines of an output file; none if there is no file."""
        if file_id is None:
            return []
        reply = self.get(f"/files/{file_id}/content")
        assert reply.status_code == 200, reply.text
        assert len(reply.content) == self.get(f"/files/{file_id}").json()["bytes"]
        return [json.loads(line) for line in reply.content.splitlines()]

    def read_results(self, batch: Any) -> tuple[list[Any], list[Any]]:
        """Returns the lines of the output file and of the error file of a batch."""
        return self.read_lines(batch["output_file_id"]), self.read_lines(batch["error_file_id"])


SCRIPT = [{"name": "any", "output": ["Yes."]}]
KEYS = ("alice", "bob")
BOUNDARY = "----xyz"


def count_rows(server: RunningServer, table: str, column: str, value: str) -> int:
    """Returns the number of rows in the database of the server."""
    reader: Any = server.context.store.debug.reader
    query = f"SELECT count(*) FROM {table} WHERE {column} = ?"
    return int(reader.query_rows(query, (value,))[0][0])
