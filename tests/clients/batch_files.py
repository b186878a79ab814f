"""The script of the tests of batches, and their input and output files."""

import json
import time
from collections.abc import Mapping
from typing import Any

import openai
from openai.types import Batch

from tests.clients.sdk_helpers import Json
from tests.progress import HANG_TIMEOUT_S, POLL_INTERVAL_S
from tests.serving import RunningServer

ENDED = ("completed", "failed", "expired", "cancelled")
SCRIPT: list[Json] = [
    {"name": "slow", "when": ["Slowly"], "output": [{"pause": 0.1}, "At last."]},
    {"name": "think", "when": ["six times seven"], "output": ["<think>\nSix sevens.\n</think>\n\n", "42."]},
    {"name": "endless", "when": ["Forever"], "output": ["On and on", {"stall": True}]},
    {"name": "text", "output": ["Hello", " there."]},
]
MODEL = "scripted"
HELLO: Json = {"model": MODEL, "input": "Hi"}
DAY_S = 86_400
UNKNOWN_FILE = "file-000000000000000000000000"
UNKNOWN_BATCH = "batch_000000000000000000000000"


def open_client(server: RunningServer, key: str = "none") -> openai.OpenAI:
    """Returns a client that never retries."""
    return openai.OpenAI(base_url=server.url, api_key=key, max_retries=0, timeout=HANG_TIMEOUT_S)


def list_methods(resource: type) -> set[str]:
    """Returns the names of the methods that users of a resource of the SDK call."""
    return {name for name in dir(resource) if not name.startswith(("_", "with_"))}


def write_lines(endpoint: str, bodies: Mapping[str, object]) -> bytes:
    """Returns an input file: a line for each body, by its `custom_id`."""
    lines = [
        json.dumps({"custom_id": custom_id, "method": "POST", "url": endpoint, "body": body})
        for custom_id, body in bodies.items()
    ]
    return "\n".join(lines).encode()


def upload(client: openai.OpenAI, content: bytes, **fields: Any) -> str:
    """Uploads the input file of a batch. Returns its id."""
    return client.files.create(file=("batch.jsonl", content), purpose="batch", **fields).id


def start_batch(client: openai.OpenAI, content: bytes, endpoint: Any = "/v1/responses", **fields: Any) -> Batch:
    """Uploads a file and starts a batch with it."""
    file_id = upload(client, content)
    return client.batches.create(input_file_id=file_id, endpoint=endpoint, completion_window="24h", **fields)


def wait_batch(client: openai.OpenAI, batch: Batch, *, ended_lines: int | None = None) -> Batch:
    """Polls a batch until it has ended, or `ended_lines` of its lines have."""
    deadline = time.monotonic() + HANG_TIMEOUT_S
    while time.monotonic() < deadline:
        batch = client.batches.retrieve(batch.id)
        counts = batch.request_counts
        assert counts is not None
        if batch.status in ENDED or (ended_lines is not None and counts.completed + counts.failed >= ended_lines):
            return batch
        time.sleep(POLL_INTERVAL_S)
    raise AssertionError(f"the batch did not end: {batch}")


def read_file(client: openai.OpenAI, file_id: str | None) -> list[Json]:
    """Returns the lines of a file of a batch; none if it has no such file."""
    if file_id is None:
        return []
    return parse_lines(client.files.content(file_id).text)


def parse_lines(text: str) -> list[Json]:
    """Returns the lines of a file of a batch, each of which ends with a line break."""
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]
