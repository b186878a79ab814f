"""Embeddings while the worker process fails, restarts or is busy, with a function in place of the model."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import Struct

from antiphon.app.registry.model_registry import EncoderModel, ModelRegistry
from antiphon.app.registry.text_tokenizer import TextTokenizer
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.client import ProcessEngine
from tests.app.server_helpers import WORKER_TIMEOUTS
from tests.clients.sdk_helpers import get, post, wait_until
from tests.engine.embeddings.fake_encoder import FAIL_TOKEN, KILL_TOKEN, SLOW_TOKEN
from tests.engine.embeddings.tiny_repositories import save_tokenizer
from tests.serving import RunningServer, scripted_registry, serve

FAKE_FACTORY = "tests.engine.embeddings.fake_encoder:build_fake_encoder"
MAX_WAITING = 1
CAPACITY = MAX_WAITING + 2
CHAT = [{"name": "any", "output": ["Yes."]}]


class FakeServer(Struct):
    """A server with an embedding model, and the folder by which its worker is controlled."""

    running: RunningServer
    folder: Path
    engine: ProcessEngine

    def embed(self, *inputs: list[int], **fields: Any) -> httpx.Response:
        return post(f"{self.running.url}/embeddings", json={"input": list(inputs), **fields})

    def count_inputs(self) -> int:
        """Returns the number of inputs that have been computed."""
        return len((self.folder / "passes").read_text(encoding="ascii"))


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeServer]:
    save_tokenizer(tmp_path)
    options = EngineOptions(max_waiting=MAX_WAITING)
    engine = ProcessEngine(tmp_path, options, core_factory=FAKE_FACTORY, timeouts=WORKER_TIMEOUTS)
    model = EncoderModel(
        names=("fake",), kind="embedding", engine=engine, tokenizer=TextTokenizer(tmp_path), created=1_700_000_000
    )
    with serve(ModelRegistry(scripted_registry(CHAT).served, [model])) as running:
        yield FakeServer(running, tmp_path, engine)


def test_request_during_a_restart_is_told_to_retry(fake: FakeServer) -> None:
    assert fake.embed([1, 2]).json()["data"][0]["embedding"] == [2.0] * 4
    pid = fake.engine.pid
    (fake.folder / "wait").touch()
    crashed = fake.embed([1, KILL_TOKEN])
    later = fake.embed([1])
    for reply in (crashed, later):
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_unavailable")
        assert int(reply.headers["retry-after"]) >= 1
    ready = get(f"{fake.running.root}/ready")
    assert (ready.status_code, list(ready.json()["unready_models"])) == (200, ["fake"])
    chat = post(f"{fake.running.url}/responses", json={"model": "scripted", "input": "Hi", "store": False})
    assert chat.json()["status"] == "completed"
    (fake.folder / "wait").unlink()
    assert wait_until(20, lambda: fake.embed([1]).status_code == 200)
    assert fake.engine.pid != pid


def test_failed_pass_is_an_error_of_its_request_only(fake: FakeServer) -> None:
    reply = fake.embed([1], [FAIL_TOKEN])
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "server_error")
    assert fake.embed([1]).status_code == 200


def test_job_of_a_client_that_left_is_cancelled(fake: FakeServer) -> None:
    inputs = [[SLOW_TOKEN] * 8] * 1000  # 500 passes of 20 ms
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{fake.running.url}/embeddings", json={"input": inputs}, timeout=0.2)
    assert wait_until(5, lambda: fake.engine.stats().running == 0)
    computed = fake.count_inputs()
    time.sleep(0.1)
    assert fake.count_inputs() == computed < 500


def test_load_counts_the_jobs_of_encoders(fake: FakeServer) -> None:
    assert get(f"{fake.running.root}/load").json() == {"server_load": 0}
    with send_slow_request(fake):
        assert wait_until(5, lambda: get(f"{fake.running.root}/load").json() == {"server_load": 1})
    assert wait_until(5, lambda: get(f"{fake.running.root}/load").json() == {"server_load": 0})


def send_slow_request(fake: FakeServer) -> socket.socket:
    """Returns a connection on which a request runs until the connection is closed."""
    body = json.dumps({"input": [[SLOW_TOKEN] * 8] * 1000}).encode()
    head = f"POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    connection = socket.create_connection(("127.0.0.1", fake.running.port))
    connection.sendall(head.encode() + b"\r\n\r\n" + body)
    return connection


def test_excess_request_is_told_to_retry(fake: FakeServer) -> None:
    with ExitStack() as stack:
        for _ in range(CAPACITY):
            stack.enter_context(send_slow_request(fake))
        assert wait_until(5, lambda: fake.engine.stats().running == CAPACITY)
        reply = fake.embed([1])
        assert (reply.status_code, reply.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(reply.headers["retry-after"]) >= 1
    assert wait_until(5, lambda: fake.embed([1]).status_code == 200)


def test_metrics_count_the_tokens_of_encoders(fake: FakeServer) -> None:
    assert fake.embed([1, 2], [3]).status_code == 200
    lines = get(f"{fake.running.root}/metrics").text.splitlines()
    assert 'antiphon:prompt_tokens_total{model_name="fake"} 3.0' in lines


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank", "/v1/score"])
def test_server_without_a_model_names_the_option(tmp_path: Path, path: str) -> None:
    bodies: dict[str, Any] = {
        "/v1/embeddings": {"input": "a"},
        "/v1/rerank": {"query": "a", "documents": ["a"]},
        "/v1/score": {"text_1": "a", "text_2": "a"},
    }
    with serve(CHAT) as server:
        reply = post(server.root + path, json=bodies[path])
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert ("--embedding-model" if path == "/v1/embeddings" else "--rerank-model") in error["message"]
