"""Two servers on one store: what one writes the other reads, resumes, cancels and deletes."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients.sdk_helpers import PLAIN, get, post
from tests.invariants import check
from tests.serving import RunningServer, scripted_registry, serve

SCRIPT: list[dict[str, Any]] = [
    {"name": "more", "when": ["three."], "output": ["Four."]},
    {"name": "endless", "when": ["Forever"], "output": ["On and on", {"stall": True}]},
    {
        "name": "slow",
        "when": ["Slowly"],
        "output": ["One", {"pause": 0.4}, " two", {"pause": 0.4}, " three."],
        "tokens_per_chunk": 1,
    },
    {"name": "any", "output": ["Yes."]},
]
Pair = tuple[RunningServer, RunningServer]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    store = tmp_path / "responses.db"
    with (
        serve(scripted_registry(SCRIPT), store_file=store) as one,
        serve(scripted_registry(SCRIPT), store_file=store) as two,
    ):
        yield one, two


def begin(served: RunningServer, text: str) -> str:
    made = post(f"{served.url}/responses", json={"model": "scripted", "input": text, "background": True}).json()
    assert made["status"] == "queued"
    return str(made["id"])


def stream(served: RunningServer, response_id: str, after: int = -1) -> list[dict[str, Any]]:
    reply = get(f"{served.url}/responses/{response_id}?stream=true&starting_after={after}", timeout=30)
    assert reply.text.endswith("data: [DONE]\n\n")
    return [json.loads(row[6:]) for row in reply.text.splitlines() if row.startswith("data: {")]


def test_a_stream_is_read_on_from_any_number_at_the_other_one(pair: Pair) -> None:
    one, two = pair
    made = begin(one, "Slowly")
    told = stream(two, made)
    check(told)
    assert told == stream(one, made)
    for number in range(len(told)):
        assert stream(two, made, number) == told[number + 1 :]
    on = {"model": "scripted", "input": "And?", "previous_response_id": made}
    assert post(f"{two.url}/responses", json=on).json()["output"][0]["content"][0]["text"] == "Four."


def test_the_other_one_may_cancel(pair: Pair) -> None:
    one, two = pair
    made = begin(one, "Forever")
    time.sleep(0.3)
    reply = post(f"{two.url}/responses/{made}/cancel", timeout=20)
    assert reply.status_code == 200, reply.text
    cancelled = reply.json()
    assert cancelled["status"] == "cancelled"
    assert get(f"{one.url}/responses/{made}").json() == cancelled == get(f"{two.url}/responses/{made}").json()
    assert not one.engine.stats().running
    check(stream(two, made))
    assert post(f"{two.url}/responses/{made}/cancel").json() == cancelled, "twice is once"


def test_what_the_other_one_deletes_is_gone_here_and_runs_no_more(pair: Pair) -> None:
    one, two = pair
    made = begin(one, "Forever")
    time.sleep(0.3)
    assert httpx.delete(f"{two.url}/responses/{made}", verify=PLAIN).json()["deleted"]
    assert get(f"{two.url}/responses/{made}").status_code == 404
    for _ in range(100):
        if not one.engine.stats().running and get(f"{one.url}/responses/{made}").status_code == 404:
            return
        time.sleep(0.05)
    raise AssertionError("it goes on")
