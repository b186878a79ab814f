"""A server with several models: each has its own names, format and limits, and is loaded when a client needs it."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from openai import NotFoundError, OpenAI
from websockets.sync.client import connect

from antiphon.app.context import create_context
from antiphon.app.http import stream_writer
from antiphon.app.models.memory_pool import ModelMemory, ModelMemoryPool, PoolTimeouts
from antiphon.app.models.on_demand_engine import OnDemandEngine
from antiphon.app.options.settings import Settings
from antiphon.app.registry.model_registry import EncoderModel, ModelRegistry
from antiphon.app.registry.text_tokenizer import TextTokenizer
from antiphon.app.routes.health import unready_reason
from antiphon.app.store.sqlite.store import MemoryStore
from antiphon.app.turns.timeouts import TurnTimeouts
from antiphon.engine.protocol import Chunk, EngineInfo, Job, OnChunk
from tests.app.models.fake_engines import GatedEngine
from tests.app.server_helpers import wait_until
from tests.engine.embeddings.tiny_repositories import save_tokenizer
from tests.invariants import check_stream
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, scripted_registry, serve

THOUGHT = "<think>Let me see.</think>"
TIMEOUTS = PoolTimeouts(min_stay_s=0.0, room_timeout_s=0.05)


class Gate:
    """Lets an engine of the server start, and its jobs end, when the test in the other thread says so."""

    def __init__(self) -> None:
        self.may_start, self.may_finish = threading.Event(), threading.Event()
        self.may_start.set()
        self.may_finish.set()


def hold_start(engine: Any, gate: Gate) -> Any:
    """Makes the engine wait for the gate before it starts, and before each job."""
    start, generate = engine.start, engine.generate

    async def wait_for(event: threading.Event) -> None:
        while not event.is_set():
            await asyncio.sleep(0.002)

    async def start_later() -> None:
        await wait_for(gate.may_start)
        await start()

    async def generate_later(job: Job, on_chunk: OnChunk) -> None:
        await wait_for(gate.may_finish)
        await generate(job, on_chunk)

    engine.start, engine.generate = start_later, generate_later
    return engine


class Models:
    """Two scripted models of different formats, an encoder, and the host that they share."""

    def __init__(self, folder: Path, memory: int | None = None, **options: Any) -> None:
        self.host = ModelMemoryPool(memory, TIMEOUTS)
        self.gates = {"thinker": Gate(), "writer": Gate()}
        served = []
        for name, dialect, context in (("thinker", "hermes", 131_072), ("writer", "llama3", 4096)):
            replies = [{"name": "any", "output": [THOUGHT, f"I am {name}."]}]
            info = EngineInfo(max_model_len=context, vocab_size=262_144, device="none")
            (model,) = scripted_registry(replies, dialect=dialect, names=(name, f"{name}-alias"), info=info).served
            engine = self.add_host(hold_start(model.engine, self.gates[name]), name, 6, **options)
            served.append(type(model)(**{**as_fields(model), "engine": engine}))
        save_tokenizer(folder)
        encoder = EncoderModel(
            names=("encoder",),
            kind="embedding",
            engine=self.add_host(FakeEncoder(), "encoder", 1, **options),
            tokenizer=TextTokenizer(folder),
            created=1_700_000_000,
        )
        self.registry = ModelRegistry(served, [encoder])

    def add_host(self, engine: Any, name: str, need: int, **options: Any) -> OnDemandEngine:
        return OnDemandEngine(engine, self.host, name, memory=ModelMemory(need), **{"on_demand": True, **options})


def as_fields(model: Any) -> dict[str, Any]:
    return {name: getattr(model, name) for name in model.__struct_fields__}


class FakeEncoder(GatedEngine):
    async def generate(self, job: Job, on_chunk: OnChunk) -> None:
        assert self.is_running
        vector = np.ones(4, dtype="<f4").tobytes()
        on_chunk(Chunk(vectors=tuple((index, vector) for index in range(len(job.encoder_inputs))), finish="stop"))


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., Any]:
    @contextmanager
    def start_models(
        memory: int | None = None, keepalive_s: float = 60.0, **options: Any
    ) -> Iterator[tuple[RunningServer, Models]]:
        models = Models(tmp_path, memory, **options)
        timeouts = TurnTimeouts(queue_after_s=0.02, keepalive_after_s=keepalive_s)
        with serve(models.registry, timeouts=timeouts) as server:
            yield server, models

    return start_models


def statuses(server: RunningServer) -> dict[str, str]:
    data = httpx.get(f"{server.url}/models").json()["data"]
    return {model["id"]: model["status"]["value"] for model in data if "alias" not in model["id"]}


def respond(server: RunningServer, model: str, **fields: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/responses", json={"model": model, "input": "Hi", **fields}, timeout=HANG_TIMEOUT_S)


def metric(server: RunningServer, name: str, model: str) -> float:
    lines = httpx.get(f"{server.root}/metrics").text.splitlines()
    return next(
        float(line.split()[-1]) for line in lines if line.startswith(f'antiphon:{name}{{model_name="{model}"}}')
    )


def test_each_model_has_its_names_format_and_limits(start: Callable[..., Any]) -> None:
    with start() as (server, _), OpenAI(base_url=server.url, api_key="none") as client:
        for name, kinds, text in (
            ("thinker", ["reasoning", "message"], "I am thinker."),
            ("writer-alias", ["message"], f"{THOUGHT}I am writer."),
        ):
            response = client.responses.create(model=name, input="Hi")
            assert [item.type for item in response.output] == kinds
            assert (response.model, response.output_text) == (name, text)
        listed = {model["id"]: model for model in httpx.get(f"{server.url}/models").json()["data"]}
        assert list(listed) == ["thinker", "thinker-alias", "writer", "writer-alias", "encoder"]
        assert (listed["thinker"]["max_model_len"], listed["writer"]["max_model_len"]) == (131_072, 4096)
        long = client.responses.with_raw_response
        with pytest.raises(Exception, match="maximum context length is 4096 tokens"):
            long.create(model="writer", input="x" * 5000)
        assert client.responses.create(model="thinker", input="x" * 5000).status == "completed"
        with pytest.raises(NotFoundError) as caught:
            client.responses.create(model="other", input="Hi")
        assert caught.value.code == "model_not_found"
        for name in ("thinker", "thinker-alias", "writer", "writer-alias"):
            assert f"'{name}'" in caught.value.message


def test_a_conversation_may_change_its_model(start: Callable[..., Any]) -> None:
    with start() as (server, _), OpenAI(base_url=server.url, api_key="none") as client:
        first = client.responses.create(model="thinker", input="Hi")
        second = client.responses.create(model="writer", input="And you?", previous_response_id=first.id)
        third = client.responses.create(model="thinker", input="Again", previous_response_id=second.id)
        assert second.output_text.endswith("I am writer.") and third.output_text == "I am thinker."
        assert third.usage is not None and second.usage is not None and first.usage is not None
        assert first.usage.input_tokens < second.usage.input_tokens < third.usage.input_tokens


def test_models_are_loaded_at_their_first_use_and_unloaded_when_idle(start: Callable[..., Any]) -> None:
    with start(idle_unload_s=0.02) as (server, _):
        assert set(statuses(server).values()) == {"unloaded"}
        assert httpx.get(f"{server.root}/ready").status_code == 200
        assert "max_model_len" not in httpx.get(f"{server.url}/models/writer").json()
        for _ in range(2):
            assert respond(server, "writer").json()["status"] == "completed"
            assert wait_until(10, lambda: statuses(server)["writer"] == "unloaded")
        assert httpx.get(f"{server.url}/models/writer").json()["max_model_len"] == 4096
        assert statuses(server)["thinker"] == "unloaded"
        loads, unloads = (metric(server, f"model_{name}_total", "writer") for name in ("loads", "unloads"))
        assert loads == unloads >= 2 and metric(server, "model_loaded", "writer") == 0
        assert metric(server, "model_loads_total", "thinker") == 0


def test_models_are_loaded_at_the_start_by_default(start: Callable[..., Any]) -> None:
    with start(on_demand=False) as (server, _):
        assert statuses(server) == {"thinker": "loaded", "writer": "loaded", "encoder": "loaded"}


def test_server_stays_ready_while_one_of_its_models_restarts(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with start(on_demand=False) as (server, models):
        engines = [model.engine for model in models.registry.all_models]
        assert httpx.get(f"{server.root}/ready").json() == {"status": "ready"}
        monkeypatch.setattr(engines[1].inner, "unready_reason", lambda: "restarting")
        reply = httpx.get(f"{server.root}/ready")
        expected = {"status": "ready", "unready_models": {"writer": "restarting"}}
        assert (reply.status_code, reply.json()) == (200, expected)
        assert respond(server, "thinker").json()["status"] == "completed"
        monkeypatch.setattr(engines[2].inner, "unready_reason", lambda: "failed")
        assert httpx.get(f"{server.root}/ready").status_code == 200
        monkeypatch.setattr(engines[0].inner, "unready_reason", lambda: "down")
        reply = httpx.get(f"{server.root}/ready")
        expected = {"status": "not ready", "reason": "thinker: down; writer: restarting; encoder: failed"}
        assert (reply.status_code, reply.json()) == (503, expected)


def test_model_that_a_request_would_load_keeps_the_server_ready(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with start() as (server, models):
        respond(server, "writer")
        monkeypatch.setattr(models.registry.served[1].engine.inner, "unready_reason", lambda: "restarting")
        assert httpx.get(f"{server.root}/ready").json()["unready_models"] == {"writer": "restarting"}


async def test_server_is_not_ready_before_all_models_of_the_start_are_loaded(
    tmp_path: Path, memory_store: MemoryStore
) -> None:
    models = Models(tmp_path, on_demand=False)
    context = create_context(Settings(), models.registry, store=memory_store)
    models.gates["writer"].may_start.clear()
    loads = [asyncio.create_task(model.engine.start()) for model in models.registry.all_models]
    async with asyncio.timeout(HANG_TIMEOUT_S):
        await asyncio.gather(loads[0], loads[2])
        assert unready_reason(context) == "writer: loading"
        assert unready_reason(context, models.registry.served[0]) is None
        models.gates["writer"].may_start.set()
        await asyncio.gather(*loads)
    assert unready_reason(context) is None
    for model in models.registry.all_models:
        await model.engine.close()


def test_client_of_a_model_that_is_loaded_again_sees_a_live_stream(start: Callable[..., Any]) -> None:
    with start(keepalive_s=0.05) as (server, models):
        respond(server, "writer")
        unload(server, models, "writer")
        gate = models.gates["writer"]
        gate.may_start.clear()
        body = {"model": "writer", "input": "Hi", "stream": True}
        events: list[dict[str, Any]] = []
        with httpx.stream("POST", f"{server.url}/responses", json=body, timeout=HANG_TIMEOUT_S) as stream:
            for line in stream.iter_lines():
                if not line.startswith("data: {"):
                    continue
                events.append(json.loads(line.removeprefix("data: ")))
                types = [event["type"] for event in events]
                if types.count("response.queued") == 3 and not gate.may_start.is_set():  # it has been repeated
                    assert statuses(server)["writer"] == "loading"
                    assert httpx.get(f"{server.root}/ready").status_code == 200
                    assert respond(server, "thinker").json()["status"] == "completed"
                    gate.may_start.set()
        assert check_stream(events)["status"] == "completed"
        assert [event["type"] for event in events[:2]] == ["response.created", "response.queued"]


@pytest.mark.parametrize("path", ["chat/completions", "messages"])
def test_streams_of_other_apis_are_kept_alive_during_the_load(
    start: Callable[..., Any], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_writer, "PING_INTERVAL_S", 0.05)
    with start() as (server, models):
        respond(server, "writer")
        unload(server, models, "writer")
        models.gates["writer"].may_start.clear()
        messages = [{"role": "user", "content": "Hi"}]
        body = {"model": "writer", "messages": messages, "max_tokens": 99, "stream": True}
        signs_of_life, text = 0, ""
        with httpx.stream("POST", f"{server.url}/{path}", json=body, timeout=HANG_TIMEOUT_S) as stream:
            for line in stream.iter_lines():
                signs_of_life += line.startswith(":")
                if signs_of_life == 2:
                    models.gates["writer"].may_start.set()
                text += line
        assert signs_of_life >= 2 and ("end_turn" in text or '"finish_reason":"stop"' in text)


def test_background_and_websocket_turns_wait_for_the_load_and_keep_the_model(start: Callable[..., Any]) -> None:
    with start(idle_unload_s=0.02) as (server, models):
        respond(server, "writer")
        assert wait_until(10, lambda: statuses(server)["writer"] == "unloaded")
        gate = models.gates["writer"]
        gate.may_start.clear()
        gate.may_finish.clear()
        background = respond(server, "writer", background=True).json()
        assert background["status"] == "queued"
        with connect(f"{server.url.replace('http', 'ws', 1)}/responses") as websocket:
            websocket.send(json.dumps({"type": "response.create", "model": "writer", "input": "Hi"}))
            gate.may_start.set()
            assert wait_until(10, lambda: statuses(server)["writer"] == "loaded")
            assert not wait_until(0.1, lambda: statuses(server)["writer"] != "loaded"), "two turns run"
            gate.may_finish.set()
            last = {"type": ""}
            while last["type"] != "response.completed":
                last = json.loads(websocket.recv(timeout=HANG_TIMEOUT_S))
            assert wait_until(10, lambda: statuses(server)["writer"] == "unloaded"), "an open connection is no use"
        stored = httpx.get(f"{server.url}/responses/{background['id']}").json()
        assert stored["status"] == "completed"


def test_description_of_a_model_that_loads_can_be_asked_for_again(start: Callable[..., Any]) -> None:
    with start(memory=10) as (server, _):
        reply = httpx.post(f"{server.root}/api/show", json={"model": "writer"})
        assert (reply.status_code, reply.headers.get("retry-after")) == (503, "1"), reply.text


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("responses", {"input": "Hi"}, "engine_unavailable"),
        ("chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}, "engine_unavailable"),
        ("completions", {"prompt": "Hi"}, "engine_unavailable"),
        ("messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}, "overloaded_error"),
    ],
)
def test_model_without_room_is_an_error_to_retry(
    start: Callable[..., Any], path: str, body: dict[str, Any], kind: str
) -> None:
    with start(memory=10) as (server, models):
        models.gates["thinker"].may_finish.clear()
        running = respond(server, "thinker", background=True).json()
        assert wait_until(10, lambda: statuses(server)["thinker"] == "loaded")
        reply = httpx.post(
            f"{server.url}/{path}", json={"model": "writer", "stream": True, **body}, timeout=HANG_TIMEOUT_S
        )
        error = reply.json()["error"]
        assert (reply.status_code, error.get("code") or error["type"]) == (503, kind)
        assert int(reply.headers["retry-after"]) >= 1
        assert "writer does not fit into the memory beside models that are in use (thinker)" in error["message"]
        assert embed(server).status_code == 200, "the encoder fits beside it"
        models.gates["thinker"].may_finish.set()
        finished = httpx.get(f"{server.url}/responses/{running['id']}")
        assert wait_until(10, lambda: respond(server, "writer").status_code == 200), finished.text
        assert statuses(server) == {"thinker": "unloaded", "writer": "loaded", "encoder": "loaded"}
        assert metric(server, "model_memory_bytes", "writer") == 6


def embed(server: RunningServer) -> httpx.Response:
    return httpx.post(f"{server.url}/embeddings", json={"input": ["a cat"]}, timeout=HANG_TIMEOUT_S)


def test_encoder_is_loaded_when_it_is_needed(start: Callable[..., Any]) -> None:
    with start(idle_unload_s=0.02) as (server, _):
        for _ in range(2):
            assert embed(server).json()["data"][0]["embedding"] == [1.0] * 4
            assert wait_until(10, lambda: statuses(server)["encoder"] == "unloaded")
        loads = metric(server, "model_loads_total", "encoder")
        counted = httpx.post(
            f"{server.root}/tokenize", json={"model": "encoder", "prompt": "a cat"}, timeout=HANG_TIMEOUT_S
        )
        assert counted.status_code == 200 and statuses(server)["encoder"] == "unloaded"
        assert metric(server, "model_loads_total", "encoder") == loads


def test_requests_that_need_no_engine_load_no_known_model(start: Callable[..., Any]) -> None:
    with start() as (server, models):
        counts = [
            ("v1/responses/input_tokens", {"input": "Hi"}),
            ("v1/messages/count_tokens", {"messages": [{"role": "user", "content": "Hi"}]}),
            ("tokenize", {"prompt": "Hi"}),
            ("detokenize", {"tokens": [65]}),
        ]
        for path, body in counts:
            for _ in range(2):
                reply = httpx.post(f"{server.root}/{path}", json={"model": "writer", **body}, timeout=HANG_TIMEOUT_S)
                assert reply.status_code == 200, reply.text
                unload(server, models, "writer")
        assert metric(server, "model_loads_total", "writer") == 1


def unload(server: RunningServer, models: Models, name: str) -> None:
    engine = models.registry.find_model(name).engine
    assert isinstance(engine, OnDemandEngine)
    asyncio.run_coroutine_threadsafe(engine.unload("test"), server.loop).result(10)
    assert statuses(server)[name] == "unloaded"
