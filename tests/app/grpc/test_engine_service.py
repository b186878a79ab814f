"""The token-level engine service, as a router calls it."""

import asyncio
import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from antiphon.app.errors import ApiError
from antiphon.app.grpc import engine_service
from antiphon.app.grpc.descriptors import message_class
from antiphon.app.grpc.engine_requests import completion_body
from antiphon.app.registry.model_registry import ModelRegistry, ServedModel
from antiphon.app.requests.completions.request import read_completion_request
from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.protocol import Job, Sampling
from antiphon.harmony.detection.detect import bytes_format
from tests.app.grpc.grpc_helpers import SERVICE, GrpcClient, Json, as_json, connect, read_status
from tests.clients.sdk_helpers import wait_until
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, scripted_registry, serve

FORMAT = bytes_format("hermes")
SCRIPT: list[dict[str, Any]] = [
    {"name": "stall", "when": ["stall"], "output": ["Hello ", {"stall": True}]},
    {"name": "silent", "when": ["silent"], "output": [{"stall": True}]},
    {"name": "broken", "when": ["broken"], "output": ["Half", {"fault": "the accelerator is on fire"}]},
    {"name": "full", "when": ["full"], "output": [{"refuse": "no room", "code": "server_is_overloaded"}]},
    {"name": "down", "when": ["down"], "output": [{"refuse": "it is gone", "code": "engine_unavailable"}]},
    {"name": "late", "when": ["late"], "output": [{"refuse": "too late", "code": "deadline_exceeded"}]},
    {"name": "hello", "output": ["Hello, you."], "tokens_per_chunk": 2, "cached_tokens": 1},
]


def make_registry() -> ModelRegistry:
    (model,) = scripted_registry(SCRIPT, model_format=FORMAT, max_num_seqs=2, max_waiting=2).served
    return ModelRegistry([msgspec.structs.replace(model, folder=MODEL_DIR)])


SERVER = partial(serve, make_registry, grpc_port=0)
HELLO = [*FORMAT.encode("Hello, you."), FORMAT.stop_ids[0]]


def generate_request(text: str, *, stream: bool = True, **params: Any) -> Json:
    ids = list(FORMAT.encode(text))
    return {"requestId": f"r-{text}", "tokenized": {"inputIds": ids}, "stream": stream, "samplingParams": params}


def is_idle(server: RunningServer) -> bool:
    return server.engine.stats().running == 0 and not server.context.turn_manager.num_running


@pytest.fixture
def jobs(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Jobs that the engine gets."""
    received: list[Job] = []
    generate = server.engine.generate
    monkeypatch.setattr(server.engine, "generate", lambda job, sink: received.append(job) or generate(job, sink))
    return received


def test_stream_has_every_token_once(server: RunningServer) -> None:
    with connect(server) as client:
        *chunks, last = list(client.call(f"{SERVICE}/Generate", generate_request("hi")))
    tokens = [token for message in chunks for token in message.chunk.token_ids]
    assert tokens == HELLO
    assert sum(message.chunk.completion_tokens for message in chunks) == len(HELLO)
    assert {(message.chunk.prompt_tokens, message.chunk.cached_tokens) for message in chunks} == {(2, 1)}
    assert last.complete.finish_reason == "stop" and last.complete.output_ids == chunks[-1].chunk.token_ids
    assert last.complete.WhichOneof("matched_stop") is None


def test_reply_in_one_piece_has_all_tokens(server: RunningServer) -> None:
    with connect(server) as client:
        (message,) = list(client.call(f"{SERVICE}/Generate", generate_request("hi", stream=False)))
    complete = message.complete
    assert list(complete.output_ids) == HELLO and complete.completion_tokens == len(HELLO)
    assert (complete.prompt_tokens, complete.cached_tokens, complete.finish_reason) == (2, 1, "stop")


def test_text_is_tokenized_here(server: RunningServer, jobs: list[Job]) -> None:
    with connect(server) as client:
        list(client.call(f"{SERVICE}/Generate", {"requestId": "t", "text": "hi"}))
    assert jobs[0].tokens == tuple(FORMAT.encode("hi"))


def test_stop_string_ends_the_choice(server: RunningServer) -> None:
    with connect(server) as client:
        (message,) = list(client.call(f"{SERVICE}/Generate", generate_request("hi", stream=False, stop=["o,"])))
    assert (message.complete.finish_reason, message.complete.matched_stop_str) == ("stop", "o,")
    assert list(message.complete.output_ids) == HELLO[:6]


def test_stop_id_and_length_are_told(server: RunningServer) -> None:
    stop_id = FORMAT.stop_ids[0]
    with connect(server) as client:
        request = generate_request("hi", stream=False, stopTokenIds=[stop_id])
        (stopped,) = list(client.call(f"{SERVICE}/Generate", request))
        (cut,) = list(client.call(f"{SERVICE}/Generate", generate_request("hi", stream=False, maxTokens=3)))
    assert (stopped.complete.finish_reason, stopped.complete.matched_token_id) == ("stop", stop_id)
    assert (cut.complete.finish_reason, list(cut.complete.output_ids)) == ("length", HELLO[:3])


def test_choices_have_their_numbers(server: RunningServer) -> None:
    with connect(server) as client:
        messages = list(client.call(f"{SERVICE}/Generate", generate_request("hi", n=2)))
    for index in range(2):
        chunks = [message.chunk for message in messages if message.HasField("chunk") and message.chunk.index == index]
        assert [token for chunk in chunks for token in chunk.token_ids] == HELLO
    assert sorted(message.complete.index for message in messages if message.HasField("complete")) == [0, 1]


def test_logprobs_are_those_of_the_tokens(server: RunningServer) -> None:
    with connect(server) as client:
        chunks = [
            message.chunk
            for message in client.call(f"{SERVICE}/Generate", generate_request("hi", logprobs=2, promptLogprobs=1))
            if message.HasField("chunk")
        ]
    for chunk in chunks:
        scores = chunk.output_logprobs
        assert list(scores.token_ids) == list(chunk.token_ids) and len(scores.token_logprobs) == len(chunk.token_ids)
        assert all(len(top.token_ids) <= 2 for top in scores.top_logprobs)
    prompt = chunks[0].input_logprobs
    assert list(prompt.token_ids) == list(FORMAT.encode("hi"))
    assert [value.HasField("value") for value in prompt.token_logprobs] == [False, True]
    assert not any(chunk.HasField("input_logprobs") for chunk in chunks[1:])


def test_parameters_reach_the_job(server: RunningServer, jobs: list[Job]) -> None:
    params = {"temperature": 0.1, "topP": 0.9, "topK": 5, "minP": 0.05, "frequencyPenalty": -0.3, "seed": 7}
    with connect(server) as client:
        list(client.call(f"{SERVICE}/Generate", generate_request("hi", **params, logitBias={"3": 1.5}, ignoreEos=True)))
        list(client.call(f"{SERVICE}/Generate", generate_request("hi"), timeout=9))
    sampling, neutral = jobs[0].sampling, jobs[1].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.1, 0.9, 5, 0.05)
    assert (sampling.frequency_penalty, sampling.seed, sampling.logit_bias) == (-0.3, 7, {3: 1.5})
    assert sampling.ignore_eos and sampling.max_tokens == server.engine.info.max_model_len - 2
    default = Sampling(max_tokens=neutral.max_tokens, stop_ids=neutral.stop_ids)
    assert neutral.seed is not None, "this engine goes on exactly, so each job has a seed"
    assert msgspec.structs.replace(neutral, top_logprobs=None, seed=None) == default
    assert jobs[1].deadline is not None and 8 < jobs[1].deadline < 9.5


@pytest.mark.parametrize(
    ("constraint", "kind"),
    [
        ({"jsonSchema": '{"type": "object"}'}, "schema"),
        ({"jsonObject": True}, "schema"),
        ({"regex": "a+"}, "regex"),
        ({"grammar": 'start: "a"'}, "lark"),
        ({"choice": {"choices": ["a", "b"]}}, "choice"),
    ],
)
def test_constraint_becomes_the_form_of_the_text(constraint: Json, kind: str) -> None:
    registry = make_registry()
    spec = read_completion_request(read_body(registry.served[0], **constraint), registry).specs[0]
    found = spec.text_completion.output_constraint if spec.text_completion else None
    assert found is not None and getattr(found, kind) is not None


def read_body(model: ServedModel, **params: Any) -> Json:
    from google.protobuf.json_format import ParseDict

    request = ParseDict(generate_request("hi", **params), message_class("GenerateRequest")())
    return completion_body(request, model)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"mmInputs": {}}, "mm_inputs"),
        ({"extraMmInputs": [{}]}, "extra_mm_inputs"),
        ({"kvTransferParamsJson": "{}"}, "kv_transfer_params_json"),
        ({"dataParallelRank": 1}, "data_parallel_rank"),
        ({"tokenized": {}}, "tokenized.input_ids"),
        ({"tokenized": {"inputIds": [4_000_000]}}, "prompt[0]"),
        ({"samplingParams": {"maxTokens": 0}}, "max_tokens"),
        ({"samplingParams": {"structuralTag": "x"}}, "structural_tag"),
        ({"samplingParams": {"logprobs": -1}}, "logprobs"),
        ({"samplingParams": {"temperature": -1}}, "temperature"),
    ],
)
def test_what_cannot_be_done_is_refused(server: RunningServer, change: Json, param: str) -> None:
    with connect(server) as client:
        status, error = client.read_error(f"{SERVICE}/Generate", generate_request("hi") | change)
    assert (status, error["param"]) == (grpc.StatusCode.INVALID_ARGUMENT, param)


def test_failures_are_statuses(server: RunningServer) -> None:
    with connect(server) as client:
        status, error = client.read_error(f"{SERVICE}/Generate", generate_request("broken"))
        assert (status, error["message"]) == (grpc.StatusCode.INTERNAL, "the accelerator is on fire")
        for text, name in (("full", "RESOURCE_EXHAUSTED"), ("down", "UNAVAILABLE"), ("late", "DEADLINE_EXCEEDED")):
            assert client.read_error(f"{SERVICE}/Generate", generate_request(text))[0].name == name
        status, _ = client.read_error(f"{SERVICE}/Generate", generate_request("stall"), timeout=0.3)
        assert status is grpc.StatusCode.DEADLINE_EXCEEDED
        assert wait_until(5, lambda: is_idle(server))


def test_error_has_the_details_of_google_rpc(server: RunningServer) -> None:
    request = generate_request("hi") | {"dataParallelRank": 1}
    with connect(server) as client, pytest.raises(grpc.RpcError) as caught:
        list(client.call(f"{SERVICE}/Generate", request))
    details = dict(caught.value.trailing_metadata())["grpc-status-details-bin"]
    message = read_status(caught.value)[1]["message"].encode()
    assert details[:4] == b"\x08\x03\x12" + bytes([len(message)]) and details[4:].startswith(message)
    info = details[4 + len(message) :]
    assert b"type.googleapis.com/google.rpc.ErrorInfo" in info and b"\x12\x08antiphon" in info
    assert b"\n\x05param\x12\x12data_parallel_rank" in info and b"\n\x0bhttp_status\x12\x03400" in info


def test_message_that_is_no_message_is_refused(server: RunningServer) -> None:
    with connect(server) as client, pytest.raises(grpc.RpcError) as caught:
        client.channel.unary_unary(f"/{SERVICE}/GetModelInfo")(b"\xff\xff")
    status, error = read_status(caught.value)
    assert (status, error["code"]) == (grpc.StatusCode.INVALID_ARGUMENT, "invalid_message")


def test_bug_of_the_server_is_an_internal_error(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Json:
        raise RuntimeError("a secret of the server")

    monkeypatch.setattr(engine_service, "completion_body", fail)
    with connect(server) as client:
        status, error = client.read_error(f"{SERVICE}/Generate", generate_request("hi"))
    assert status is grpc.StatusCode.INTERNAL and "secret" not in error["message"]


@pytest.mark.parametrize("text", ["stall", "silent"])
def test_abort_ends_the_request(server: RunningServer, text: str) -> None:
    with connect(server) as client:
        call = client.call(f"{SERVICE}/Generate", generate_request(text))
        assert wait_until(5, lambda: server.engine.stats().running == 1)
        client.call(f"{SERVICE}/Abort", {"requestIds": ["unknown"]})
        assert server.engine.stats().running == 1
        client.call(f"{SERVICE}/Abort", {"requestIds": ["unknown", f"r-{text}"]})
        assert list(call)[-1].complete.finish_reason == "abort"
    assert wait_until(5, lambda: is_idle(server))


def test_abort_before_the_start_ends_the_request(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    manager, starting = server.context.turn_manager, threading.Event()
    started = manager.start_prompts

    async def start_slowly(*args: Any, **options: Any) -> Any:
        starting.set()
        await asyncio.sleep(600)
        return await started(*args, **options)

    monkeypatch.setattr(manager, "start_prompts", start_slowly)
    with connect(server) as client:
        call = client.call(f"{SERVICE}/Generate", generate_request("hi"))
        assert starting.wait(5)
        client.call(f"{SERVICE}/Abort", {"requestIds": ["r-hi"]})
        assert [message.complete.finish_reason for message in call] == ["abort"]


def test_cancelled_call_frees_the_slot(server: RunningServer) -> None:
    with connect(server) as client:
        call = client.call(f"{SERVICE}/Generate", generate_request("stall"))
        next(call)
        call.cancel()
        assert wait_until(30, lambda: is_idle(server))


def test_call_cancelled_in_the_moment_in_which_its_turn_starts_frees_the_slot(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_prompts = server.context.turn_manager.start_prompts
    was_started = threading.Event()

    async def start_and_cancel(*args: Any, **options: Any) -> Any:
        logs = await start_prompts(*args, **options)
        (handler,) = (task for task in asyncio.all_tasks() if f"{SERVICE}/Generate" in task.get_name())
        asyncio.get_running_loop().call_soon(handler.cancel)
        was_started.set()
        return logs

    monkeypatch.setattr(server.context.turn_manager, "start_prompts", start_and_cancel)
    with connect(server) as client:
        call = client.call(
            f"{SERVICE}/Generate", generate_request("stall"), timeout=600
        )  # a deadline would end the turn
        assert was_started.wait(30)
        assert wait_until(30, lambda: is_idle(server))
        call.cancel()


def test_abort_in_the_moment_in_which_the_turn_starts_ends_it(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_prompts = server.context.turn_manager.start_prompts
    calls: list[Any] = []

    def make_call() -> Any:
        calls.append(running_call())
        return calls[-1]

    async def start_and_abort(*args: Any, **options: Any) -> Any:
        logs = await start_prompts(*args, **options)
        calls[0].aborted = True  # as `Abort` does when this task has ended, and the call has not noticed yet
        return logs

    running_call = engine_service._RunningCall
    monkeypatch.setattr(engine_service, "_RunningCall", make_call)
    monkeypatch.setattr(server.context.turn_manager, "start_prompts", start_and_abort)
    with connect(server) as client:
        messages = list(client.call(f"{SERVICE}/Generate", generate_request("stall")))
    assert messages[-1].complete.finish_reason == "abort"


def test_client_that_reads_not_even_the_first_message_loses_its_call(caplog: pytest.LogCaptureFixture) -> None:
    script = [{"name": "flood", "output": ["x" * 300_000], "tokens_per_chunk": 0}]
    small_buffers = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_535))
    registry = scripted_registry(script, model_format=FORMAT)
    with serve(registry, grpc_port=0, stall_timeout=0.3) as server:
        address = f"127.0.0.1:{server.context.grpc_ports[0]}"
        with grpc.insecure_channel(address, small_buffers) as channel:
            call = GrpcClient(channel).call(
                f"{SERVICE}/Generate", generate_request("hi", stream=False), timeout=HANG_TIMEOUT_S
            )
            assert wait_until(30, lambda: len(server.access_records) == 1)
            with pytest.raises(grpc.RpcError) as caught:
                list(call)
    assert caught.value.code() is grpc.StatusCode.CANCELLED
    assert "TOO_MANY_OPERATIONS" not in caplog.text


def test_server_and_model_are_described(server: RunningServer) -> None:
    with connect(server) as client:
        assert as_json(client.call(f"{SERVICE}/HealthCheck", {})) == {"healthy": True, "message": "ready"}
        model = client.call(f"{SERVICE}/GetModelInfo", {})
        info = client.call(f"{SERVICE}/GetServerInfo", {})
        loads = client.call(f"{SERVICE}/GetLoads", {})
    engine = server.engine.info
    assert (model.served_model_name, model.is_generation) == ("scripted", True)
    assert (model.max_context_length, model.vocab_size) == (engine.max_model_len, engine.vocab_size)
    assert list(model.eos_token_ids) == list(engine.eos_ids)
    assert (info.server_type, info.data_parallel_size, info.max_num_seqs) == ("vllm-grpc", 1, 2)
    assert [load.max_running_requests for load in loads.loads] == [2]


@contextmanager
def serve_two() -> Iterator[tuple[RunningServer, list[GrpcClient]]]:
    """Serves two models. Yields a client of the port of each."""
    first, second = (
        scripted_registry(
            [*SCRIPT[:2], {"name": "hello", "output": [f"I am {name}."]}],
            model_format=FORMAT,
            names=(name,),
            max_num_seqs=number,
            max_waiting=0,
        ).served[0]
        for number, name in enumerate(("first", "second"), 1)
    )
    with ExitStack() as stack:
        server = stack.enter_context(serve(ModelRegistry([first, second]), grpc_port=0))
        yield server, [stack.enter_context(connect(server, index)) for index in range(2)]


def test_each_model_is_a_worker_of_its_own() -> None:
    with serve_two() as (_, clients):
        for number, (name, client) in enumerate(zip(("first", "second"), clients, strict=True), 1):
            assert client.call(f"{SERVICE}/GetModelInfo", {}).served_model_name == name
            assert client.call(f"{SERVICE}/GetServerInfo", {}).max_num_seqs == number
            (message,) = client.call(f"{SERVICE}/Generate", generate_request("hi", stream=False))
            assert FORMAT.decode(message.complete.output_ids[:-1]) == f"I am {name}."
        for client in clients:
            services = {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
            assert set(client.database.get_services()) == services


def test_load_and_requests_of_a_worker_are_those_of_its_model() -> None:
    with serve_two() as (server, (first, second)):
        call = first.call(f"{SERVICE}/Generate", generate_request("stall"))
        next(call)
        assert [client.call(f"{SERVICE}/GetServerInfo", {}).active_requests for client in (first, second)] == [1, 0]
        loads = [client.call(f"{SERVICE}/GetLoads", {}).loads[0].num_running_reqs for client in (first, second)]
        assert loads == [1, 0]
        status, _ = first.read_error(f"{SERVICE}/Generate", generate_request("hi"))
        assert status is grpc.StatusCode.RESOURCE_EXHAUSTED, "the second model is free, but not meant"
        second.call(f"{SERVICE}/Abort", {"requestIds": ["r-stall"]})
        assert len(list(second.call(f"{SERVICE}/Generate", generate_request("hi")))) > 1
        assert server.engine.stats().running == 1
        call.cancel()


def test_health_of_a_worker_is_that_of_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_two() as (server, clients):
        monkeypatch.setattr(server.context.models.served[1].engine, "unready_reason", lambda: "restarting")
        replies = [client.call(f"{SERVICE}/HealthCheck", {}) for client in clients]
        assert [reply.healthy for reply in replies] == [True, False]
        assert replies[1].message == "second: restarting"
        serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
        for service, expected in (("", [serving, not_serving]), (SERVICE, [serving, not_serving])):
            stubs = [health_pb2_grpc.HealthStub(client.channel) for client in clients]
            request = health_pb2.HealthCheckRequest(service=service)
            assert [stub.Check(request, timeout=HANG_TIMEOUT_S).status for stub in stubs] == expected


def test_tokenizer_is_sent_with_its_digest(server: RunningServer) -> None:
    with connect(server) as client:
        parts = list(client.call(f"{SERVICE}/GetTokenizer", {}))
    data = b"".join(part.data for part in parts)
    assert parts[-1].sha256 == hashlib.sha256(data).hexdigest() and not any(part.sha256 for part in parts[:-1])
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = set(archive.namelist())
        assert archive.read("tokenizer.json") == (Path(MODEL_DIR) / "tokenizer.json").read_bytes()
    assert {"config.json", "tokenizer_config.json", "chat_template.jinja"} <= names
    assert not any(name.endswith(".safetensors") for name in names)


def test_limits_of_the_engine_hold(server: RunningServer) -> None:
    capacity = server.engine.capacity()
    with connect(server) as client:
        calls = [client.call(f"{SERVICE}/Generate", generate_request("stall")) for _ in range(capacity)]
        assert wait_until(10, lambda: server.context.turn_manager.num_running == capacity)
        status, error = client.read_error(f"{SERVICE}/Generate", generate_request("hi"))
        assert (status, error["code"]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "rate_limit_exceeded")
        for call in calls:
            call.cancel()
        assert wait_until(10, lambda: is_idle(server))


def test_temperature_above_the_limit_is_an_api_error() -> None:
    registry = make_registry()
    with pytest.raises(ApiError):
        read_completion_request(read_body(registry.served[0], temperature=9.0), registry)


def test_generations_are_in_the_access_log(server: RunningServer) -> None:
    server.access_records.clear()
    with connect(server) as client:
        list(client.call(f"{SERVICE}/Generate", generate_request("hi")))
        client.read_error(f"{SERVICE}/Generate", generate_request("hi") | {"dataParallelRank": 1})
        client.call(f"{SERVICE}/HealthCheck", {})
    assert wait_until(5, lambda: len(server.access_records) == 2)
    records = [(record.method, record.path, record.status, record.error_code) for record in server.access_records]
    path = f"/{SERVICE}/Generate"
    assert records == [("POST", path, 200, ""), ("POST", path, 400, "invalid_value")]
