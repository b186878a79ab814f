"""Servers that run every kind of turn, and what they expose on `/metrics`."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import httpx
from msgspec import structs
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from antiphon.app.models.memory_pool import ModelMemoryPool
from antiphon.app.models.on_demand_engine import OnDemandEngine
from antiphon.app.registry.model_registry import EncoderModel, ModelRegistry
from antiphon.app.registry.text_tokenizer import TextTokenizer
from antiphon.engine.fallbacks import Fallback
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.client import ProcessEngine
from antiphon.harmony.detection.detect import bytes_format
from tests.app.grpc.grpc_helpers import SERVICE, connect
from tests.app.media.documents import make_pdf
from tests.app.observability.span_collector import ReceivedSpan, run_collector
from tests.app.remote.served_engine import serve_remote, tokens_of
from tests.app.server_helpers import WORKER_TIMEOUTS, process_engine_registry
from tests.clients.tool_servers import name_server, serve_sdk_tools
from tests.engine.embeddings.tiny_repositories import save_tokenizer
from tests.engine.remote.fake_server import play_vllm
from tests.progress import HANG_TIMEOUT_S, wait_with_progress
from tests.serving import RunningServer, scripted_registry, serve

ADD = '<tool_call>\n{"name": "tools__add", "arguments": {"a": 19, "b": 23}}\n</tool_call>'
FAIL = '<tool_call>\n{"name": "tools__fail", "arguments": {}}\n</tool_call>'
SCRIPT: list[dict[str, Any]] = [
    {"name": "fault", "when": ["Fault"], "output": ["Oh", {"fault": "it burns", "code": "server_error"}]},
    {"name": "sum", "when": ["Add it", "42"], "output": ["It is 42."]},
    {"name": "broken", "when": ["Break it", "The call failed"], "output": ["It failed."]},
    {"name": "add", "when": ["Add it"], "output": [ADD]},
    {"name": "fail", "when": ["Break it"], "output": [FAIL]},
    {"name": "any", "output": ["Yes, indeed."], "tokens_per_chunk": 1},
]
ENCODER_FACTORY = "tests.engine.embeddings.fake_encoder:build_fake_encoder"
Exposed = dict[str, set[str]]
"""The labels of each sample, by its name."""


def post(server: RunningServer, path: str, **body: Any) -> int:
    return httpx.post(f"{server.url}/{path}", json=body, timeout=HANG_TIMEOUT_S).status_code


def run_turns(server: RunningServer, model: str) -> None:
    """Runs turns on each API, streamed and not, some of which fail."""
    message = {"role": "user", "content": "Hi"}
    for stream in (False, True):
        assert post(server, "responses", model=model, input="Hi", max_output_tokens=20, stream=stream) == 200
        assert post(server, "chat/completions", model=model, messages=[message], max_tokens=20, stream=stream) == 200
        assert post(server, "completions", model=model, prompt="Hi", max_tokens=20, stream=stream) == 200
        assert post(server, "messages", model=model, messages=[message], max_tokens=20, stream=stream) == 200
    post(server, "responses", model=model, input="Fault", max_output_tokens=20)
    assert post(server, "responses", model=model, input="Hi", temperature=9) == 400


def _with_fallback() -> ModelRegistry:
    registry = scripted_registry(SCRIPT)
    player: Any = registry.served[0].engine
    fallbacks = (Fallback("norms", "a norm is not replaced"),)
    return scripted_registry(SCRIPT, info=structs.replace(player.info, fallbacks=fallbacks))


@contextmanager
def _serve_scripted(**settings: Any) -> Iterator[RunningServer]:
    pdf = f"data:application/pdf;base64,{base64.b64encode(make_pdf('alpha')).decode()}"
    with (
        serve_sdk_tools() as (url, _),
        serve(_with_fallback(), file_store=True, tool_servers=(f"tools={url}",), grpc_port=0, **settings) as server,
    ):
        run_turns(server, "scripted")
        for prompt in ("Add it", "Break it"):
            assert post(server, "responses", model="scripted", input=prompt, tools=[name_server("tools")]) == 200
        parts = [{"type": "input_file", "filename": "a.pdf", "file_data": pdf}]
        first = {"model": "scripted", "input": [{"role": "user", "content": parts}], "conversation": _create(server)}
        assert post(server, "responses", **first) == 200
        found = httpx.post(
            f"{server.url}/responses", json={"model": "scripted", "input": "Hi"}, timeout=HANG_TIMEOUT_S
        ).json()
        assert post(server, "responses", model="scripted", input="Hi", previous_response_id=found["id"]) == 200
        assert post(server, "responses", model="scripted", input="Hi", background=True) == 200
        sampling = {"temperature": 0.5, "top_p": 0.5, "top_k": 5, "seed": 1, "presence_penalty": 1}
        messages = [{"role": "user", "content": "Hi"}]
        fields = {"n": 2, "frequency_penalty": 1, "max_tokens": 20, **sampling}
        assert post(server, "chat/completions", model="scripted", messages=messages, **fields) == 200
        ids = list(bytes_format("hermes").encode("Hi"))
        with connect(server) as client:
            request = {"requestId": "r", "tokenized": {"inputIds": ids}, "samplingParams": {"maxTokens": 5}}
            list(client.call(f"{SERVICE}/Generate", request))
        wait_with_progress(lambda: not server.context.turn_manager.num_running, "all turns have ended")
        yield server


def _create(server: RunningServer) -> str:
    reply = httpx.post(f"{server.url}/conversations", json={}, timeout=HANG_TIMEOUT_S)
    return str(reply.json()["id"])


@contextmanager
def _serve_remote(**settings: Any) -> Iterator[RunningServer]:
    with serve_remote(play_vllm(*tokens_of("Hi")), settings=settings) as (server, _):
        run_turns(server, "tiny")
        yield server


@contextmanager
def _serve_worker(**settings: Any) -> Iterator[RunningServer]:
    (model,) = process_engine_registry().served
    engine = OnDemandEngine(model.engine, ModelMemoryPool(), "chatter", on_demand=True)
    with serve(ModelRegistry([structs.replace(model, engine=engine)]), **settings) as server:
        run_turns(server, "chatter")
        yield server


@contextmanager
def serve_encoder(folder: Path, **settings: Any) -> Iterator[RunningServer]:
    """Serves an embedding model called `fake`, besides the scripted one."""
    save_tokenizer(folder)
    engine = ProcessEngine(folder, EngineOptions(), core_factory=ENCODER_FACTORY, timeouts=WORKER_TIMEOUTS)
    encoder = EncoderModel(
        names=("fake",), kind="embedding", engine=engine, tokenizer=TextTokenizer(folder), created=1_700_000_000
    )
    with serve(ModelRegistry(scripted_registry(SCRIPT).served, [encoder]), **settings) as server:
        yield server


@contextmanager
def _serve_embeddings(**settings: Any) -> Iterator[RunningServer]:
    with TemporaryDirectory(prefix="antiphon-encoder-") as folder, serve_encoder(Path(folder), **settings) as server:
        assert post(server, "embeddings", input=[[1, 2]], model="fake") == 200
        yield server


class Observed(NamedTuple):
    """What servers expose and send after every kind of turn."""

    samples: Exposed
    families: dict[str, Metric]
    """Families by the name of their samples, those of histograms without a suffix."""
    spans: list[ReceivedSpan]


@cache
def observe() -> Observed:
    """Runs every kind of turn once."""
    samples, families = Exposed(), dict[str, Metric]()
    with run_collector() as collector:
        for open_server in (_serve_scripted, _serve_remote, _serve_worker, _serve_embeddings):
            with open_server(otlp_endpoint=collector.url) as server:
                page = httpx.get(f"{server.root}/metrics", timeout=HANG_TIMEOUT_S).text
            for family in text_string_to_metric_families(page):
                for sample in family.samples:
                    samples.setdefault(sample.name, set()).update(sample.labels)
                name = f"{family.name}_total" if family.type == "counter" else family.name
                families.setdefault(name, family)
        return Observed(samples, families, collector.spans)


def read_exposed() -> Exposed:
    """Returns the labels of each sample that servers expose after every kind of turn."""
    return observe().samples


def find_family(sample: str) -> str:
    """Returns the family of a sample: the name of a histogram without its suffix."""
    for suffix in ("_bucket", "_count", "_sum"):
        if sample.endswith(suffix) and f"{sample.removesuffix(suffix)}_bucket" in read_exposed():
            return sample.removesuffix(suffix)
    return sample
