"""Limits of API keys that bind their batches: models and budgets of the key, on every endpoint, and of a key that is gone."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon.app.batches import runner
from antiphon.app.batches.line_request import LineReply
from antiphon.app.batches.runner import BatchRunner
from antiphon.app.keys import reloader
from antiphon.app.keys.key_file import parse_key_file, read_key_file
from antiphon.app.main.application import ENDPOINT_TABLE
from antiphon.app.options.api_keys import ApiKey
from antiphon.app.registry.model_registry import EncoderModel, ModelRegistry
from antiphon.app.registry.text_tokenizer import TextTokenizer
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.client import ProcessEngine
from tests.app.batches.batch_client import BatchClient, make_lines
from tests.app.server_helpers import WORKER_TIMEOUTS
from tests.conftest import StartServer
from tests.engine.embeddings.tiny_repositories import save_tokenizer
from tests.progress import wait_with_progress
from tests.serving import RunningServer, scripted_registry, serve

SCRIPT: list[dict[str, Any]] = [{"name": "any", "output": ["Hello."]}]
KEY = "sk-limited"


def parse(fields: str, owner_fields: str = "") -> tuple[ApiKey, ...]:
    return parse_key_file(f'[[key]]\nowner = "a"\nkey = "{KEY}"\n{fields}\n{owner_fields}', Path("keys.toml"))


def list_results(reply: httpx.Response) -> list[dict[str, Any]]:
    return [result for bucket in reply.json()["data"] for result in bucket["results"]]


def last_hours() -> dict[str, Any]:
    return {"start_time": int(time.time()) - 7200, "bucket_width": "1h"}


def reload_keys(server: RunningServer) -> None:
    headers = {"authorization": f"Bearer {server.context.keys.control_key}"}
    reply = httpx.post(f"{server.url}/admin/reload", headers=headers, timeout=60)
    assert reply.json()["faults"] == [], reply.text


@pytest.fixture
def registry(tmp_path: Path) -> Callable[[], ModelRegistry]:
    """Two scripted models, and one for embeddings."""
    save_tokenizer(tmp_path)

    def create() -> ModelRegistry:
        factory = "tests.engine.embeddings.fake_encoder:build_fake_encoder"
        engine = ProcessEngine(tmp_path, EngineOptions(), core_factory=factory, timeouts=WORKER_TIMEOUTS)
        tokenizer = TextTokenizer(tmp_path)
        encoder = EncoderModel(names=("fake",), kind="embedding", engine=engine, tokenizer=tokenizer, created=1)
        models = [scripted_registry(SCRIPT, names=(name,)).served[0] for name in ("coder", "small")]
        return ModelRegistry(models, [encoder])

    return create


def test_lines_of_a_batch_have_the_models_of_their_key() -> None:
    models = [scripted_registry(SCRIPT, names=(name,)).served[0] for name in ("coder", "small")]
    keys = parse('models = ["small"]') + parse_key_file('[[key]]\nowner = "a"\nkey = "sk-all"', Path("keys.toml"))
    with serve(ModelRegistry(models), api_keys=keys, file_store=True) as server:
        batches = BatchClient(server, KEY)
        bodies = [{"model": name, "input": "Hi", "store": False} for name in ("coder", "small")]
        batch = batches.await_status(batches.start(make_lines(bodies)))
        done, failed = batches.read_results(batch)
        assert [line["custom_id"] for line in done] == ["r1"]
        assert [line["response"]["body"]["error"]["code"] for line in failed] == ["model_not_found"]


LINE_BODIES: dict[str, dict[str, Any]] = {
    "/v1/responses": {"model": "small", "input": "Hi", "store": False},
    "/v1/chat/completions": {"model": "small", "messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"model": "small", "prompt": "Hi"},
    "/v1/embeddings": {"model": "fake", "input": [[1, 2, 1, 2]]},
}


@pytest.mark.parametrize("fields", [("tokens_per_day = 3", ""), ("", "[owners.a]\ntokens_per_day = 3")])
@pytest.mark.parametrize("used_by", ["a request", "lines"])
def test_budget_binds_the_lines_of_every_endpoint(
    registry: Callable[[], ModelRegistry], fields: tuple[str, str], used_by: str
) -> None:
    assert set(LINE_BODIES) == set(ENDPOINT_TABLE.list_batchable())
    for endpoint, body in LINE_BODIES.items():
        with serve(registry, api_keys=parse(*fields), file_store=True) as server:
            batches = BatchClient(server, KEY)
            if used_by == "a request":
                assert batches.post(endpoint.removeprefix("/v1"), json=body).status_code == 200
            else:
                batches.await_status(batches.start(make_lines([body], endpoint), endpoint))
            batch = batches.await_status(batches.start(make_lines([body] * 3, endpoint), endpoint))
            assert batch["request_counts"] == {"total": 3, "completed": 0, "failed": 3}, endpoint
            _, failed = batches.read_results(batch)
            assert {line["response"]["body"]["error"]["code"] for line in failed} == {"insufficient_quota"}
            query = {**last_hours(), "group_by": "api_key_id"}
            sums = batches.get("/organization/usage/completions", params=query)
            [key] = [key for key in server.context.keys if key.owner == "a"]
            assert [(row["api_key_id"], row["num_model_requests"]) for row in list_results(sums)] == [(key.id, 1)], (
                endpoint
            )


def test_lines_wait_while_their_owner_has_no_key(
    start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, sent = list[None](), list[None]()
    find_batches, send_line = BatchRunner._find_batches, runner.send_line

    async def look(runner: BatchRunner) -> None:
        await find_batches(runner)
        looks.append(None)

    async def send(*values: Any) -> LineReply:
        sent.append(None)
        return await send_line(*values)

    monkeypatch.setattr(BatchRunner, "_find_batches", look)
    monkeypatch.setattr(runner, "send_line", send)
    monkeypatch.setattr(runner, "BATCH_POLL_INTERVAL_S", 0.05)
    monkeypatch.setattr(reloader, "STABLE_S", 0.0)
    file = tmp_path / "keys.toml"
    other = '[[key]]\nowner = "b"\nkey = "sk-other"\n'
    own = f'[[key]]\nowner = "a"\nkey = "{KEY}"\nmodels = ["scripted"]\n'
    file.write_text(own + other)
    script = [{"name": "first", "output": ["word "] * 30}, {"name": "second", "output": ["Hi"]}]
    models = scripted_registry(script, delay=0.02, max_num_seqs=1)
    server = start_server(models, file_keys=read_key_file(file), key_file=file, file_store=True)
    batches = BatchClient(server, KEY)
    batch_id = batches.start(make_lines([{"model": "scripted", "input": "Hi", "store": False}] * 3))
    wait_with_progress(lambda: server.context.turn_manager.num_running == 1, "no line runs")
    file.write_text(other)
    reload_keys(server)
    assert batches.get(f"/batches/{batch_id}").status_code == 401
    wait_with_progress(lambda: server.context.turn_manager.num_running == 0, "the line does not end")
    seen = len(looks)
    wait_with_progress(lambda: len(looks) > seen + 2, "the runner does not look again")
    assert server.context.turn_manager.num_running == 0
    assert len(sent) == 1, "the other lines wait"
    file.write_text(own + other)
    reload_keys(server)
    batch = batches.await_status(batch_id)
    assert batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}


def test_line_that_loses_its_key_between_two_tries_holds_no_place(
    start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "BATCH_POLL_INTERVAL_S", 0.05)
    monkeypatch.setattr(reloader, "STABLE_S", 0.0)
    file = tmp_path / "keys.toml"
    other = '[[key]]\nowner = "b"\nkey = "sk-other"\n'
    own = f'[[key]]\nowner = "a"\nkey = "{KEY}"\n'
    file.write_text(own + other)
    refused = [
        {"name": f"refused {number}", "output": [{"refuse": "no", "code": "server_is_overloaded"}]}
        for number in range(2)
    ]
    models = scripted_registry([*refused, *SCRIPT])
    server = start_server(models, file_keys=read_key_file(file), key_file=file, file_store=True)
    batches, open_lines = BatchClient(server, KEY), server.context.batches._open_lines
    batch_id = batches.start(make_lines([{"model": "scripted", "input": "Hi"}]))
    wait_with_progress(lambda: sum(open_lines.values()) == 1, "no line runs")
    file.write_text(other)
    reload_keys(server)
    wait_with_progress(lambda: sum(open_lines.values()) == 0, "the line holds its place")
    file.write_text(own + other)
    reload_keys(server)
    assert batches.await_status(batch_id)["request_counts"] == {"total": 1, "completed": 1, "failed": 0}


@pytest.mark.parametrize("code", ["server_is_overloaded", "engine_unavailable"])
def test_line_that_the_engine_refuses_is_counted_once(start_server: StartServer, code: str) -> None:
    refused = [{"name": f"refused {number}", "output": [{"refuse": "no", "code": code}]} for number in range(3)]
    server = start_server([*refused, *SCRIPT], api_keys=parse(""), file_store=True)
    batches = BatchClient(server, KEY)
    batch = batches.await_status(batches.start(make_lines([{"model": "scripted", "input": "word " * 50}])))
    assert batch["request_counts"] == {"total": 1, "completed": 1, "failed": 0}
    [sums] = list_results(batches.get("/organization/usage/completions", params=last_hours()))
    assert (sums["num_model_requests"], sums["num_rejected_requests"]) == (1, 0)
    assert sums["input_tokens"] == batch["usage"]["input_tokens"] > 50


@pytest.mark.parametrize(("code", "status"), [("server_is_overloaded", 429), ("engine_unavailable", 503)])
def test_turn_that_the_engine_refuses_costs_no_tokens(start_server: StartServer, code: str, status: int) -> None:
    refused = {"name": "refused", "output": [{"refuse": "no", "code": code}]}
    keys = parse("tokens_per_minute = 5000\ntokens_per_day = 5000")
    server = start_server([refused, {**refused, "name": "again"}, *SCRIPT], api_keys=keys)
    client = BatchClient(server, KEY)
    body = {"model": "scripted", "input": "word " * 900}  # 4500 tokens, so that one alone fits
    for expected in (status, status, 200):
        reply = client.post("/responses", json=body)
        assert reply.status_code == expected, reply.text
    assert int(reply.headers["x-ratelimit-remaining-tokens"]) >= 4990, "the refused ones gave theirs back"
    [sums] = list_results(client.get("/organization/usage/completions", params=last_hours()))
    assert (sums["num_rejected_requests"], sums["num_failed_requests"]) == ((2, 0) if status == 429 else (0, 2))
    assert sums["input_tokens"] == reply.json()["usage"]["input_tokens"]
