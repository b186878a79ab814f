"""Sums of usage over two servers of a store, one of which is killed: nothing that was written is lost, nothing doubled."""

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.server_helpers import free_port
from tests.app.store.store_helpers import StorePlace
from tests.counts import FULL_COUNTS
from tests.progress import HANG_TIMEOUT_S, wait_with_progress
from tests.syntax import ROOT

pytestmark = pytest.mark.processes

NUM_TURNS = 10_000 if FULL_COUNTS else 120
NUM_THREADS = 8
SCRIPT = '[[reply]]\nname = "any"\noutput = ["<think>\\nHm.\\n</think>\\n\\nHello, ", "you."]\n'
KEYS = (
    '[[key]]\nowner = "a"\nkey = "sk-a"\n[[key]]\nowner = "b"\nkey = "sk-b"\n[[key]]\nkey = "sk-o"\nrole = "operator"\n'
)
MESSAGES = [{"role": "user", "content": "Hi there"}]
REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/responses", {"input": "Hi", "store": False}),
    ("/responses", {"input": "Hi", "store": True}),
    ("/chat/completions", {"messages": MESSAGES, "n": 2}),
    ("/completions", {"prompt": ["Hi", "Hello"]}),
    ("/messages", {"messages": MESSAGES, "max_tokens": 50}),
)


@contextmanager
def run_server(folder: Path, place: StorePlace) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    port = free_port()
    options = ["--engine", "scripted", "--script", str(folder / "script.toml"), "--store", place.name]
    options += ["--api-key-file", str(folder / "keys.toml"), "--encryption-key-file", str(folder / "key")]
    command = [sys.executable, "-m", "antiphon", "serve", "--port", str(port), "--log-format", "json", *options]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:

        def is_ready() -> bool:
            assert process.poll() is None, "the server has ended"
            try:
                return httpx.get(f"{url}/ready", timeout=HANG_TIMEOUT_S).status_code == 200
            except httpx.ConnectError:
                return False

        wait_with_progress(is_ready, "the server is not ready")
        yield f"{url}/v1", process
    finally:
        process.kill()
        process.wait()


def run_turns(url: str, start: int, count: int) -> tuple[int, int]:
    """Sends requests of all kinds. Returns the sums of input and output tokens that their replies tell."""

    def send(number: int) -> tuple[int, int]:
        path, body = REQUESTS[number % len(REQUESTS)]
        headers = {"authorization": f"Bearer sk-{'ab'[number % 2]}"}
        reply = httpx.post(f"{url}{path}", json={"model": "scripted", **body}, headers=headers, timeout=HANG_TIMEOUT_S)
        assert reply.status_code == 200, reply.text
        usage = reply.json()["usage"]
        return usage.get("input_tokens", usage.get("prompt_tokens")), usage.get(
            "output_tokens", usage.get("completion_tokens")
        )

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        sums = list(pool.map(send, range(start, start + count)))
    return sum(each[0] for each in sums), sum(each[1] for each in sums)


def read_sums(url: str, since: int) -> tuple[int, int, int]:
    """Returns input tokens, output tokens and requests of all owners. The server writes its own sums before."""
    query: dict[str, Any] = {"start_time": since, "bucket_width": "1h", "group_by": ["user_id", "model"]}
    headers = {"authorization": "Bearer sk-o"}
    reply = httpx.get(f"{url}/organization/usage/completions", params=query, headers=headers, timeout=HANG_TIMEOUT_S)
    results = [result for bucket in reply.json()["data"] for result in bucket["results"]]
    return tuple(  # type: ignore[return-value]
        sum(result[name] for result in results) for name in ("input_tokens", "output_tokens", "num_model_requests")
    )


def test_sums_over_two_servers_and_a_kill(place: StorePlace, tmp_path: Path) -> None:
    (tmp_path / "script.toml").write_text(SCRIPT)
    (tmp_path / "keys.toml").write_text(KEYS)
    since, part = int(time.time()) - 60, NUM_TURNS // 4
    with run_server(tmp_path, place) as (first, killed), run_server(tmp_path, place) as (second, _):
        written = run_turns(first, 0, part)
        assert read_sums(first, since)[2] == part, "from here on, they are in the store"
        unsure = run_turns(first, part, part)
        killed.kill()
        killed.wait()
        safe = run_turns(second, 2 * part, part)
        with run_server(tmp_path, place) as (third, _):
            more = run_turns(third, 3 * part, part)
            assert read_sums(third, since)[2] >= part
            found = read_sums(second, since)
    sure = [sum(each) for each in zip(written, safe, more, strict=True)]
    for index in range(2):
        assert sure[index] <= found[index] <= sure[index] + unsure[index]
    assert 3 * part <= found[2] <= 4 * part
