"""Traces of whole requests, as a collector receives them: each API, choices, background, endings, WebSocket, gRPC."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from websockets.sync.client import connect as connect_websocket

from antiphon.app.errors import from_engine
from antiphon.app.main.application import ENDPOINT_TABLE
from antiphon.app.options.api_keys import key_digest
from antiphon.app.tracing.content import MAX_CONTENT_BYTES, SPAN_CUT_MARK
from antiphon.app.tracing.conventions import SCHEMA_URL
from antiphon.app.tracing.spans import SpanBuilder
from antiphon.app.turn_types.access_record import AccessRecord
from antiphon.app.turn_types.turn_stats import Api
from antiphon.engine.protocol import overloaded_error
from antiphon.harmony.detection.detect import bytes_format
from tests.app.grpc.grpc_helpers import SERVICE, connect
from tests.app.observability.every_kind import serve_encoder
from tests.app.observability.span_collector import ReceivedSpan, SpanCollector, run_collector
from tests.app.remote.served_engine import serve_remote, tokens_of
from tests.app.tools.sdk_servers import serve_sdk
from tests.clients.tool_servers import name_server, run_in_thread
from tests.conftest import StartServer
from tests.engine.remote.fake_server import play_vllm
from tests.progress import HANG_TIMEOUT_S, wait_with_progress
from tests.serving import RunningServer, read_until_ready, serve
from tests.syntax import ROOT

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": "congo=1"}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
ADD = '<tool_call>\n{"name": "tools__add", "arguments": {"a": 19, "b": 23}}\n</tool_call>'
FAIL = '<tool_call>\n{"name": "tools__fail", "arguments": {}}\n</tool_call>'
SCRIPT: list[dict[str, Any]] = [
    {"name": "weather", "when": ["weather"], "output": ["<think>\nHm.\n</think>\n\n", CALL]},
    {"name": "stall", "when": ["Stall"], "output": ["Hello", {"stall": True}]},
    {"name": "fault", "when": ["Fault"], "output": ["Oh", {"fault": "it burns", "code": "server_error"}]},
    {"name": "refuse", "when": ["Refuse"], "output": [{"refuse": "no room", "code": "server_is_overloaded"}]},
    {"name": "sum", "when": ["Add it", "42"], "output": ["It is 42."]},
    {"name": "broken", "when": ["Break it", "The call failed"], "output": ["It failed."]},
    {"name": "add", "when": ["Add it"], "output": [ADD]},
    {"name": "fail", "when": ["Break it"], "output": [FAIL]},
    {"name": "any", "output": ["Yes, indeed."], "tokens_per_chunk": 1},
]
WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}
API_PATHS = {api: ENDPOINT_TABLE.path_of(api) for api in get_args(Api)}
PATHS = {api: path.removeprefix("/v1") for api, path in API_PATHS.items()}
OPERATIONS = {"completions": "text_completion", "compact": "compaction"}


@pytest.fixture(autouse=True)
def short_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are sent at once. Variables of the machine that runs the tests change nothing."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "5")
    for name in ("OTEL_TRACES_SAMPLER", "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def collector() -> Iterator[SpanCollector]:
    with run_collector() as running:
        yield running


@pytest.fixture
def server(collector: SpanCollector, start_server: StartServer) -> RunningServer:
    return start_server(SCRIPT, otlp_endpoint=collector.url)


@pytest.fixture
def late_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds the span of a request when the request has been over for longer than it took."""
    build = SpanBuilder.build_request

    def build_late(builder: SpanBuilder, record: AccessRecord) -> ReadableSpan:
        time.sleep(record.seconds)
        return build(builder, record)

    monkeypatch.setattr(SpanBuilder, "build_request", build_late)


def build_body(api: Api, prompt: str, **fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": prompt}
    asked: dict[Api, dict[str, Any]] = {
        "responses": {"input": prompt},
        "chat": {"messages": [message]},
        "completions": {"prompt": prompt},
        "messages": {"messages": [message], "max_tokens": 4096},
        "compact": {"input": prompt},
    }
    return {"model": "scripted", **asked[api], **fields}


def send(server: RunningServer, api: Api, prompt: str = "Hi", **fields: Any) -> httpx.Response:
    body = build_body(api, prompt, **fields)
    return httpx.post(f"{server.url}{PATHS[api]}", json=body, headers=HEADERS, timeout=HANG_TIMEOUT_S)


def check_tree(collector: SpanCollector, root: ReceivedSpan) -> None:
    """Checks that children lie within their parents, and that the stages of jobs follow one another."""
    assert root.start <= root.end and root.scope == ("antiphon", SCHEMA_URL)
    children, last = collector.children(root), 0
    for child in children:
        assert child.trace_id == root.trace_id
        assert root.start <= child.start <= child.end <= root.end, (root.name, child.name)
        if child.name in ("render", "queue", "prefill", "decode", "store commit"):
            assert child.start >= last, child.name
            last = child.end
        check_tree(collector, child)


@pytest.mark.usefixtures("late_spans")
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("api", list(API_PATHS))
def test_each_api(collector: SpanCollector, server: RunningServer, api: Api, stream: bool) -> None:
    fields = {} if api == "compact" else {"stream": stream, "temperature": 0.5}
    assert send(server, api, **fields).status_code == 200
    [request], [turn] = collector.wait_for("POST"), collector.wait_for(f"{OPERATIONS.get(api, 'chat')} scripted")
    assert (request.name, request.kind) == (f"POST {API_PATHS[api]}", "server")
    assert (request.trace_id, request.parent_id, request.state) == (TRACE, CALLER, "congo=1")
    assert (turn.name, turn.kind, turn.parent_id) == (
        f"{OPERATIONS.get(api, 'chat')} scripted", "internal", request.span_id,
    )  # fmt: skip
    check_tree(collector, request)
    assert not [span for span in collector.spans if span.is_error]
    found = request.attributes
    assert (found["http.request.method"], found["http.route"]) == ("POST", API_PATHS[api])
    assert (found["http.response.status_code"], found["url.path"]) == (200, API_PATHS[api])
    assert "error.type" not in found and "client.address" not in found
    found = turn.attributes
    assert found["gen_ai.operation.name"] == OPERATIONS.get(api, "chat")
    assert (found["antiphon.api"], found["antiphon.dialect"]) == (api, "hermes")
    assert (found["gen_ai.request.model"], found["gen_ai.provider.name"]) == ("scripted", "antiphon")
    assert found["gen_ai.response.finish_reasons"] == ["stop"]
    assert found["antiphon.ending"] == ("compacted" if api == "compact" else "stop_token")
    assert found["gen_ai.usage.input_tokens"] > 0 and found["gen_ai.usage.output_tokens"] > 0
    if api != "compact":
        assert found["gen_ai.request.temperature"] == 0.5
    [stats] = server.access_records[0].turns
    assert found["gen_ai.response.id"] == stats.response_id
    names = [child.name for child in collector.children(turn)]
    assert [name for name in names if name in ("render", "queue", "prefill", "decode")] == [
        "render", "queue", "prefill", "decode",
    ]  # fmt: skip


def test_times_of_spans_are_those_of_the_metrics(collector: SpanCollector, server: RunningServer) -> None:
    assert send(server, "responses").status_code == 200
    [turn] = collector.wait_for("chat")
    spans = {child.name: child for child in collector.children(turn)}
    page = httpx.get(f"{server.root}/metrics", timeout=HANG_TIMEOUT_S).text
    for span, family, attribute in (
        ("render", "render_time", ""),
        ("queue", "queue_time", "time_in_queue"),
        ("prefill", "prefill_time", "time_in_model_prefill"),
        ("decode", "decode_time", "time_in_model_decode"),
    ):
        [line] = [each for each in page.splitlines() if each.startswith(f"antiphon:{family}_seconds_sum")]
        shown = float(line.rpartition(" ")[2])
        assert spans[span].seconds == pytest.approx(shown, abs=1e-6)
        if attribute:
            assert turn.attributes[f"gen_ai.latency.{attribute}"] == pytest.approx(shown)
    assert spans["decode"].attributes["antiphon.steps"] == 13
    assert spans["render"].attributes["antiphon.prompt.tokens"] == turn.attributes["gen_ai.usage.input_tokens"]
    assert turn.attributes["gen_ai.latency.e2e"] >= turn.attributes["gen_ai.latency.time_to_first_token"] > 0


def test_exemplars_name_the_turn(collector: SpanCollector, server: RunningServer) -> None:
    assert send(server, "responses").status_code == 200
    [turn] = collector.wait_for("chat")
    headers = {"accept": "application/openmetrics-text"}
    page = httpx.get(f"{server.root}/metrics", headers=headers, timeout=HANG_TIMEOUT_S).text
    assert f'# {{span_id="{turn.span_id}",trace_id="{TRACE}"}}' in page


def test_items_and_calls_of_the_client(collector: SpanCollector, server: RunningServer) -> None:
    assert send(server, "responses", "the weather?", tools=[WEATHER]).status_code == 200
    [turn] = collector.wait_for("chat")
    assert turn.attributes["gen_ai.response.finish_reasons"] == ["tool_calls"]
    items = [child for child in collector.children(turn) if "antiphon.item.id" in child.attributes]
    assert [item.name for item in items] == ["reasoning", "function_call get_weather"]
    for item in items:
        assert item.attributes["antiphon.item.status"] == "completed" and item.attributes["antiphon.item.tokens"] > 0
    assert items[0].end <= items[1].start
    assert not collector.find("execute_tool")
    assert "Rome" not in json.dumps([span.attributes for span in collector.spans])


def test_choices_are_turns_of_one_request(collector: SpanCollector, server: RunningServer) -> None:
    assert send(server, "chat", n=3).status_code == 200
    [request], turns = collector.wait_for("POST"), collector.wait_for("chat", 3)
    assert {turn.parent_id for turn in turns} == {request.span_id}
    assert len({turn.span_id for turn in turns}) == 3
    assert {turn.attributes["gen_ai.request.choice.count"] for turn in turns} == {3}
    check_tree(collector, request)


def test_background_turn_is_a_trace_of_its_own(collector: SpanCollector, server: RunningServer) -> None:
    assert send(server, "responses", background=True).status_code == 200
    [request], [turn] = collector.wait_for("POST"), collector.wait_for("chat")
    assert turn.trace_id != TRACE and not turn.parent_id
    assert turn.links == [(TRACE, request.span_id)]
    check_tree(collector, turn)


def test_cancelled_turn(collector: SpanCollector, server: RunningServer) -> None:
    started = send(server, "responses", "Stall", background=True).json()
    cancel = httpx.post(f"{server.url}/responses/{started['id']}/cancel", timeout=HANG_TIMEOUT_S)
    assert cancel.status_code == 200
    [turn] = collector.wait_for("chat")
    assert (turn.attributes["antiphon.status"], turn.attributes["antiphon.ending"]) == ("cancelled", "cancelled")
    assert turn.attributes["gen_ai.response.finish_reasons"] == ["cancelled"] and not turn.is_error
    [route] = collector.wait_for("POST /v1/responses/{response_id")
    assert route.attributes["url.path"].endswith("/cancel")
    check_tree(collector, turn)


def test_turn_whose_client_leaves(collector: SpanCollector, server: RunningServer) -> None:
    body = build_body("responses", "Stall", stream=True)
    with httpx.stream(
        "POST", f"{server.url}/responses", json=body, headers=HEADERS, timeout=HANG_TIMEOUT_S
    ) as response:
        chunks = response.iter_bytes()
        next(chunks)
        chunks.close()  # type: ignore[attr-defined]
    [turn] = collector.wait_for("chat")
    assert turn.attributes["antiphon.ending"] == "client_left" and turn.trace_id == TRACE


def test_failed_turn(collector: SpanCollector, server: RunningServer) -> None:
    assert send(server, "responses", "Fault").json()["status"] == "failed"
    [turn] = collector.wait_for("chat")
    assert turn.is_error and turn.attributes["error.type"] == "server_error"
    assert turn.attributes["antiphon.ending"] == "engine_fault"
    assert turn.attributes["gen_ai.response.finish_reasons"] == ["error"]
    check_tree(collector, turn)


def test_refused_turn(collector: SpanCollector, server: RunningServer) -> None:
    status = send(server, "responses", "Refuse").status_code
    assert status >= 429
    [request], [turn] = collector.wait_for("POST"), collector.wait_for("chat")
    assert turn.attributes["antiphon.status"] == "refused" and turn.is_error
    assert request.attributes["http.response.status_code"] == status
    assert request.is_error == (status >= 500) and request.attributes["error.type"]
    assert [child.name for child in collector.children(turn)] == ["render", "queue"]


def test_rejected_request_has_its_own_span_only(collector: SpanCollector, server: RunningServer) -> None:
    assert send(server, "responses", temperature=9).status_code == 400
    [request] = collector.wait_for("POST")
    assert request.attributes["error.type"] and not request.is_error
    assert httpx.get(f"{server.url}/nothing", timeout=HANG_TIMEOUT_S).status_code == 404
    [unknown] = collector.wait_for("GET")
    assert unknown.name == "GET" and "http.route" not in unknown.attributes
    assert len(collector.spans) == 2


def test_overload_is_a_span_of_the_request(collector: SpanCollector) -> None:
    with serve(SCRIPT, otlp_endpoint=collector.url) as server:
        server.context.capacity.check_any = _refuse  # type: ignore[method-assign]
        assert send(server, "responses").status_code == 429
        [request] = collector.wait_for("POST /v1/responses")
    assert (request.trace_id, request.parent_id) == (TRACE, CALLER)
    assert request.attributes["error.type"] == "rate_limit_exceeded"
    assert len(collector.spans) == 1


def _refuse() -> None:
    raise from_engine(overloaded_error())


def test_probes_have_no_spans(collector: SpanCollector, server: RunningServer) -> None:
    for path in ("/health", "/ready", "/metrics", "/openapi.json", "/ui/"):
        httpx.get(f"{server.root}{path}", timeout=HANG_TIMEOUT_S)
    assert httpx.get(f"{server.url}/models", timeout=HANG_TIMEOUT_S).status_code == 200
    [models] = collector.wait_for("GET")
    assert models.name == "GET /v1/models" and len(collector.spans) == 1


def test_store_commit_is_shown_where_a_reader_waits_for_it(collector: SpanCollector, start_server: StartServer) -> None:
    server = start_server(SCRIPT, otlp_endpoint=collector.url, file_store=True)
    assert send(server, "responses", store=True).status_code == 200
    [request] = collector.wait_for("POST")
    [commit] = collector.wait_for("store commit")
    check_tree(collector, request)
    assert commit.end <= request.end
    assert send(server, "responses", store=False).status_code == 200
    collector.wait_for("chat", 2)
    assert len(collector.find("store commit")) == 1


def test_unsampled_request_has_no_span_and_tells_others(collector: SpanCollector, server: RunningServer) -> None:
    body = build_body("responses", "Hi")
    headers = {"traceparent": f"00-{TRACE}-{CALLER}-00"}
    response = httpx.post(f"{server.url}/responses", json=body, headers=headers, timeout=HANG_TIMEOUT_S)
    assert response.status_code == 200
    assert send(server, "chat").status_code == 200
    collector.wait_for("POST /v1/chat/completions")
    assert not collector.find("POST /v1/responses")
    trace = server.access_records[0].turns[0].trace
    assert trace is not None and not trace.ids.is_sampled and not trace.items and trace.describe is None
    assert dict(trace.ids.build_headers())["traceparent"].endswith("-00")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"traceparent": "garbage"},
        {"traceparent": f"00-{'0' * 32}-{CALLER}-01"},
        {"traceparent": HEADERS["traceparent"], "tracestate": "a=" + "v" * 10_000},
        {"tracestate": "a=1"},
    ],
)
def test_bad_context_begins_a_new_trace(
    collector: SpanCollector, server: RunningServer, headers: dict[str, str]
) -> None:
    body = build_body("responses", "Hi")
    response = httpx.post(f"{server.url}/responses", json=body, headers=headers, timeout=HANG_TIMEOUT_S)
    assert response.status_code == 200
    [request], [turn] = collector.wait_for("POST"), collector.wait_for("chat")
    assert request.trace_id != TRACE and not request.parent_id and not request.state
    assert turn.trace_id == request.trace_id


def test_sampler_of_the_environment(monkeypatch: pytest.MonkeyPatch, collector: SpanCollector) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "llm")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=blue")
    with serve(SCRIPT) as server:
        body = build_body("responses", "Hi")
        assert httpx.post(f"{server.url}/responses", json=body, timeout=HANG_TIMEOUT_S).status_code == 200
        assert send(server, "chat").status_code == 200
        [turn] = collector.wait_for("chat")
    assert turn.trace_id == TRACE and not collector.find("POST /v1/responses")
    assert (turn.resource["service.name"], turn.resource["deployment.environment.name"]) == ("llm", "test")
    assert {headers["x-team"] for headers in collector.headers} == {"blue"}


@pytest.mark.usefixtures("late_spans")
def test_websocket_turns_belong_to_the_span_of_the_handshake(collector: SpanCollector, server: RunningServer) -> None:
    url = server.url.replace("http", "ws") + "/responses"
    with connect_websocket(url, additional_headers=HEADERS) as websocket:
        for _ in range(2):
            websocket.send(json.dumps({"type": "response.create", "model": "scripted", "input": "Hi"}))
            while json.loads(websocket.recv(HANG_TIMEOUT_S))["type"] != "response.completed":
                pass
    requests, turns = collector.wait_for("HTTP /v1/responses", 2), collector.wait_for("chat", 2)
    assert [(each.trace_id, each.parent_id, each.kind) for each in requests] == [(TRACE, CALLER, "server")] * 2
    assert [turn.parent_id for turn in turns] == [request.span_id for request in requests]
    for request in requests:
        check_tree(collector, request)
    wait_with_progress(lambda: len(server.access_records) == 3, "the connection has ended")
    assert not collector.find("GET")


@pytest.mark.usefixtures("late_spans")
def test_grpc_call(collector: SpanCollector, start_server: StartServer) -> None:
    server = start_server(SCRIPT, otlp_endpoint=collector.url, grpc_port=0)
    ids = list(bytes_format("hermes").encode("Hi"))
    request = {"requestId": "r-1", "tokenized": {"inputIds": ids}, "samplingParams": {"maxTokens": 5}}
    with connect(server) as client:
        list(client.call(f"{SERVICE}/Generate", request, **HEADERS))
    [call], [turn] = collector.wait_for(SERVICE), collector.wait_for("text_completion")
    assert (call.name, call.kind) == (f"{SERVICE}/Generate", "server")
    assert (call.trace_id, call.parent_id, turn.parent_id) == (TRACE, CALLER, call.span_id)
    assert (call.attributes["rpc.system.name"], call.attributes["rpc.method"]) == ("grpc", f"{SERVICE}/Generate")
    assert call.attributes["rpc.response.status_code"] == "OK" and "error.type" not in call.attributes
    check_tree(collector, call)


def test_remote_engine_gets_the_span_of_the_turn(collector: SpanCollector) -> None:
    with serve_remote(play_vllm(*tokens_of("Hi")), settings={"otlp_endpoint": collector.url}) as (server, engines):
        body = {"model": "tiny", "input": "Hello!", "store": False}
        reply = httpx.post(f"{server.url}/responses", json=body, headers=HEADERS, timeout=HANG_TIMEOUT_S)
        assert reply.status_code == 200
        [turn] = collector.wait_for("chat")
        [job] = engines[0].server.jobs
        assert job.headers["traceparent"] == f"00-{TRACE}-{turn.span_id}-01"
        assert job.headers["tracestate"] == "congo=1"
        [prefill] = collector.find("prefill")
        assert prefill.attributes["antiphon.replica"] == f"127.0.0.1:{engines[0].server.port}"
        assert (prefill.attributes["antiphon.attempt"], prefill.attributes["antiphon.engine"]) == (1, "remote")


def test_engine_without_traces_gets_no_header() -> None:
    with serve_remote(play_vllm(*tokens_of("Hi"))) as (server, engines):
        body = {"model": "tiny", "input": "Hello!", "store": False}
        reply = httpx.post(f"{server.url}/responses", json=body, headers=HEADERS, timeout=HANG_TIMEOUT_S)
        assert reply.status_code == 200
        assert "traceparent" not in engines[0].server.jobs[0].headers


@pytest.mark.parametrize("is_legacy", [False, True])
def test_hosted_tool(collector: SpanCollector, is_legacy: bool) -> None:
    with (
        run_in_thread(lambda: serve_sdk(is_legacy=is_legacy)) as (tool_url, seen),
        serve(SCRIPT, otlp_endpoint=collector.url, tool_servers=(f"tools={tool_url}",)) as server,
    ):
        reply = send(server, "responses", "Add it", tools=[name_server("tools")]).json()
        assert reply["output"][-1]["content"][0]["text"] == "It is 42."
        [request], [turn], [call] = (collector.wait_for(name) for name in ("POST", "chat", "execute_tool add"))
        assert send(server, "responses", "Break it", tools=[name_server("tools")]).status_code == 200
        [failed] = collector.wait_for("execute_tool fail")
    assert call.parent_id == turn.span_id
    check_tree(collector, request)
    assert (call.attributes["gen_ai.tool.name"], call.attributes["mcp.method.name"]) == ("add", "tools/call")
    assert call.attributes["antiphon.tool.server_label"] == "tools" and not call.is_error
    assert failed.is_error and failed.attributes["error.type"]
    jobs = [child.attributes["antiphon.round"] for child in collector.children(turn) if child.name == "decode"]
    assert jobs == [0, 1]
    decodes = [child for child in collector.children(turn) if child.name == "decode"]
    assert decodes[0].end <= call.end <= decodes[1].start
    sent = {headers.get("traceparent") for headers in seen.headers}
    assert f"00-{TRACE}-{call.span_id}-01" in sent
    assert '"a": 19' not in json.dumps(call.attributes)


def test_batches_begin_traces_of_their_own(collector: SpanCollector, server: RunningServer) -> None:
    line = {"custom_id": "1", "method": "POST", "url": "/v1/responses", "body": build_body("responses", "Hi")}
    files = {"file": ("in.jsonl", json.dumps(line))}
    sent = httpx.post(f"{server.url}/files", data={"purpose": "batch"}, files=files, timeout=HANG_TIMEOUT_S).json()
    batch = {"input_file_id": sent["id"], "endpoint": "/v1/responses", "completion_window": "24h"}
    started = httpx.post(f"{server.url}/batches", json=batch, headers=HEADERS, timeout=HANG_TIMEOUT_S)
    assert started.status_code == 200, started.text
    [turn] = collector.wait_for("chat")
    assert turn.trace_id != TRACE and not turn.parent_id


def test_embeddings(collector: SpanCollector, tmp_path: Path) -> None:
    with serve_encoder(tmp_path, otlp_endpoint=collector.url) as server:
        body = {"model": "fake", "input": [[1, 2], [3]]}
        reply = httpx.post(f"{server.url}/embeddings", json=body, headers=HEADERS, timeout=HANG_TIMEOUT_S)
        assert reply.status_code == 200
        [request], [job] = collector.wait_for("POST /v1/embeddings"), collector.wait_for("embeddings fake")
    assert (job.trace_id, job.parent_id) == (TRACE, request.span_id)
    assert request.start <= job.start <= job.end <= request.end
    assert job.attributes["gen_ai.usage.input_tokens"] == reply.json()["usage"]["prompt_tokens"]
    assert job.attributes["gen_ai.operation.name"] == "embeddings"


@pytest.mark.parametrize("mode", ["span", "event"])
def test_content_is_sent_if_asked(collector: SpanCollector, start_server: StartServer, mode: str) -> None:
    server = start_server(SCRIPT, otlp_endpoint=collector.url, otlp_content=mode)
    long = "weather? " + "x" * 100_000
    assert send(server, "responses", long, tools=[WEATHER], instructions="Be brief.").status_code == 200
    [turn] = collector.wait_for("chat")
    if mode == "span":
        found = turn.attributes
    else:
        [(name, found)] = turn.events
        assert name == "gen_ai.client.inference.operation.details"
        assert "gen_ai.input.messages" not in turn.attributes
    [message] = json.loads(found["gen_ai.input.messages"])
    assert message["role"] == "user" and message["parts"][0]["content"].endswith(SPAN_CUT_MARK)
    [answer] = json.loads(found["gen_ai.output.messages"])
    assert [part["type"] for part in answer["parts"]] == ["reasoning", "tool_call"]
    assert answer["parts"][1]["name"] == "get_weather" and answer["finish_reason"] == "tool_calls"
    assert json.loads(found["gen_ai.system_instructions"])[0]["content"] == "Be brief."
    assert json.loads(found["gen_ai.tool.definitions"])[0]["name"] == "get_weather"
    assert all(len(value) <= MAX_CONTENT_BYTES for key, value in found.items() if isinstance(value, str))


def test_content_of_one_owner(collector: SpanCollector) -> None:
    owner = key_digest("sk-one").hex()[:32]
    with serve(
        SCRIPT, otlp_endpoint=collector.url, otlp_content="span", otlp_content_of=owner, api_keys=("sk-one", "sk-two")
    ) as server:
        for key in ("sk-one", "sk-two"):
            body, headers = build_body("responses", f"I am {key}"), {"authorization": f"Bearer {key}"}
            reply = httpx.post(f"{server.url}/responses", json=body, headers=headers, timeout=HANG_TIMEOUT_S)
            assert reply.status_code == 200
        turns = collector.wait_for("chat", 2)
    assert ["gen_ai.input.messages" in turn.attributes for turn in turns] == [True, False]
    assert "sk-two" not in json.dumps([turn.attributes for turn in turns])


@pytest.mark.parametrize("status", [413, 429, 500, 401])
def test_collector_that_refuses_is_no_request_s_matter(
    collector: SpanCollector, server: RunningServer, status: int
) -> None:
    collector.answer = lambda: status
    for _ in range(3):
        assert send(server, "responses").status_code == 200
    wait_with_progress(lambda: collector.num_requests > 0, "the collector has refused")
    assert send(server, "responses").status_code == 200
    if status != 429:  # which is tried again for a while
        wait_with_progress(lambda: count_dropped(server) > 0, "spans are counted as dropped")


def count_dropped(server: RunningServer) -> float:
    page = httpx.get(f"{server.root}/metrics", timeout=HANG_TIMEOUT_S).text
    [line] = [each for each in page.splitlines() if each.startswith("antiphon:spans_dropped_total")]
    return float(line.rpartition(" ")[2])


def test_hanging_collector_delays_no_request_and_the_exit_for_two_seconds(
    collector: SpanCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "20")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "10")
    collector.answer = collector.hang
    with serve(SCRIPT, otlp_endpoint=collector.url) as server:
        for _ in range(10):
            assert send(server, "responses").status_code == 200
        wait_with_progress(lambda: count_dropped(server) > 0, "spans are dropped")
    assert not collector.released.is_set()  # the server has stopped while the collector still hangs


def test_dead_collector_and_log_lines(tmp_path: Path) -> None:
    """A server as a process: JSON lines with ids, one line about the collector, and an exit in time."""
    script = tmp_path / "hello.toml"
    script.write_text('[[reply]]\nname = "any"\noutput = ["Yes."]\n', encoding="utf-8")
    args = [sys.executable, "-m", "antiphon", "serve", "--engine", "scripted", "--script", str(script)]
    args += ["--port", "0", "--store", "memory", "--log-format", "json", "--otlp-endpoint", "http://127.0.0.1:9"]
    with subprocess.Popen(args, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        (url,) = read_until_ready(process.stderr)["base_urls"]
        for _ in range(5):
            reply = httpx.post(
                f"{url}/responses",
                json={"model": "scripted", "input": "Hi"},
                headers=HEADERS,
                timeout=HANG_TIMEOUT_S,
            )
            assert reply.status_code == 200
        process.send_signal(signal.SIGTERM)
        log = process.stderr.read()
    lines = [json.loads(line) for line in log.splitlines()]
    requests = [line for line in lines if line["event"] == "request"]
    assert len(requests) == 5 and {line["trace_id"] for line in requests} == {TRACE}
    assert len({line["span_id"] for line in requests}) == 5
    dropped = [line for line in lines if line["event"] == "spans were dropped"]
    assert 1 <= len(dropped) <= 2 and len(lines) == len(requests) + len(dropped), log


def test_bad_endpoint_keeps_the_server_from_starting(tmp_path: Path) -> None:
    args = [sys.executable, "-m", "antiphon", "serve", "--engine", "scripted", "--script", "x.toml"]
    script = tmp_path / "x.toml"
    script.write_text('[[reply]]\nname = "any"\noutput = ["Yes."]\n', encoding="utf-8")
    args[-1] = str(script)
    run = subprocess.run(
        [*args, "--port", "0", "--store", "memory", "--otlp-endpoint", "collector:4318"],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert run.returncode == 2 and "--otlp-endpoint" in run.stderr and "Traceback" not in run.stderr


@pytest.mark.parametrize(("options", "code"), [((), 0), (("--otlp-endpoint", "http://127.0.0.1:9"), 2)])
def test_server_without_the_extra(tmp_path: Path, options: tuple[str, ...], code: int) -> None:
    """The base installation has no packages of OpenTelemetry."""
    script = tmp_path / "x.toml"
    script.write_text('[[reply]]\nname = "any"\noutput = ["Yes."]\n', encoding="utf-8")
    program = "import sys; sys.modules['opentelemetry'] = None; from antiphon.app.cli.commands import main; main()"
    args = [sys.executable, "-c", program, "serve", "--engine", "scripted", "--script", str(script), "--port", "0"]
    args += ["--store", "memory", "--log-format", "json", *options]
    with subprocess.Popen(args, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        if code:
            assert "antiphon[otel]" in process.stderr.read() and process.wait(HANG_TIMEOUT_S) == code
            return
        (url,) = read_until_ready(process.stderr)["base_urls"]
        reply = httpx.post(
            f"{url}/responses", json={"model": "scripted", "input": "Hi"}, headers=HEADERS, timeout=HANG_TIMEOUT_S
        )
        assert reply.json()["status"] == "completed"
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
