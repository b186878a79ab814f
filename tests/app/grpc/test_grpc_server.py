"""The gRPC server itself: keys, TLS, health, shutdown, limits, leaks, and its absence without `--grpc`."""

import asyncio
import gc
import io
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest
import uvicorn
from grpc_health.v1 import health_pb2, health_pb2_grpc

from antiphon.app.context import create_context
from antiphon.app.main import launch
from antiphon.app.observability.startup import StartupScreen, create_console
from antiphon.app.options.serve_options import ServeError
from antiphon.app.options.settings import Settings
from antiphon.app.registry.model_registry import ModelRegistry
from tests.app.grpc.grpc_helpers import SERVICE, GrpcClient, Json, connect
from tests.app.http.certificates import write_certificate
from tests.clients.sdk_helpers import wait_until
from tests.counts import FULL_COUNTS
from tests.log_store import make_log_store
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, scripted_registry, serve

SCRIPT: list[dict[str, Any]] = [
    {"name": "stall", "when": ["stall"], "output": ["Hello ", {"stall": True}]},
    {"name": "hello", "output": ["Hello, ", "you."]},
]
GENERATE, INFO = f"{SERVICE}/Generate", f"{SERVICE}/GetModelInfo"
HELLO: Json = {"text": "hi", "stream": True}
STALL: Json = {"text": "stall", "stream": True}
KEYS = ("sk-one", "sk-two")
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def check_health(client: GrpcClient, service: str = "") -> int:
    stub = health_pb2_grpc.HealthStub(client.channel)
    return int(stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=HANG_TIMEOUT_S).status)


def test_keys_are_checked_as_over_http() -> None:
    with serve(SCRIPT, api_keys=KEYS, grpc_port=0) as server, connect(server) as client:
        for method, request in ((GENERATE, HELLO), (INFO, {})):
            for key in ("", "sk-wrong"):
                status, error = client.read_error(method, request, key=key)
                assert (status, error["code"]) == (grpc.StatusCode.UNAUTHENTICATED, "invalid_api_key")
        assert list(client.call(GENERATE, HELLO, key="sk-one"))
        assert client.call(INFO, {}, key="sk-two").served_model_name == "scripted"
        assert client.channel.unary_unary(f"/{INFO}")(b"", metadata=(("x-api-key", "sk-one"),))
        assert check_health(client) == SERVING, "probes need no key"
        assert client.call(f"{SERVICE}/HealthCheck", {}).healthy


def test_abort_reaches_requests_of_the_same_key_only() -> None:
    with serve(SCRIPT, api_keys=KEYS, grpc_port=0) as server, connect(server) as client:
        call = client.call(GENERATE, STALL | {"requestId": "r"}, key="sk-one")
        next(call)
        client.call(f"{SERVICE}/Abort", {"requestIds": ["r"]}, key="sk-two")
        own = client.call(GENERATE, STALL | {"requestId": "r"}, key="sk-two")
        next(own)
        client.call(f"{SERVICE}/Abort", {"requestIds": ["r"]}, key="sk-two")
        assert list(own)[-1].complete.finish_reason == "abort"
        assert server.engine.stats().running == 1
        client.call(f"{SERVICE}/Abort", {"requestIds": ["r"]}, key="sk-one")
        assert list(call)[-1].complete.finish_reason == "abort"


@pytest.mark.parametrize("password", [None, "open sesame"])
def test_tls_has_the_certificate_of_https(tmp_path: Path, password: str | None) -> None:
    certificate, key = write_certificate(tmp_path / "tls", password=password)
    both = tmp_path / "both.pem"
    both.write_bytes(certificate.read_bytes() + key.read_bytes())
    for files in ({"ssl_certfile": certificate, "ssl_keyfile": key}, {"ssl_certfile": both}):
        with serve(SCRIPT, grpc_port=0, ssl_keyfile_password=password, **files) as server:
            credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
            with grpc.secure_channel(f"localhost:{server.context.grpc_ports[0]}", credentials) as channel:
                assert GrpcClient(channel).call(INFO, {}).served_model_name == "scripted"


def test_health_follows_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(SCRIPT, grpc_port=0) as server, connect(server) as client:
        assert check_health(client, SERVICE) == check_health(client) == SERVING
        stub = health_pb2_grpc.HealthStub(client.channel)
        watching = stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE), timeout=HANG_TIMEOUT_S)
        assert next(watching).status == SERVING
        monkeypatch.setattr(server.engine, "unready_reason", lambda: "loading")
        assert next(watching).status == NOT_SERVING
        assert check_health(client, SERVICE) == NOT_SERVING
        assert client.call(f"{SERVICE}/HealthCheck", {}).healthy is False
        with pytest.raises(grpc.RpcError) as caught:
            check_health(client, "unknown")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        watching.cancel()


def test_shutdown_ends_streams_with_a_status() -> None:
    with serve(SCRIPT, grpc_port=0, shutdown_timeout=0.3) as server, connect(server) as client:
        call = client.call(GENERATE, STALL)
        next(call)
        server.stop()
        with pytest.raises(grpc.RpcError) as ended:
            list(call)
        assert ended.value.code() is grpc.StatusCode.INTERNAL
        with pytest.raises(grpc.RpcError) as caught:
            client.call(INFO, {}, timeout=HANG_TIMEOUT_S)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_port_in_use_is_told(tmp_path: Path) -> None:
    script = tmp_path / "script.toml"
    script.write_text('[[reply]]\nname = "a"\noutput = ["b"]\n', encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        command = [sys.executable, "-m", "antiphon", "serve", "--engine", "scripted", "--script", str(script)]
        done = subprocess.run(
            [*command, "--port", "0", "--store", "memory", "--grpc", port], capture_output=True, text=True, check=False
        )
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}; choose another --grpc port" in done.stderr


def test_server_whose_start_fails_has_never_been_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, listen = list[uvicorn.Server](), uvicorn.Server.startup

    async def startup(server: uvicorn.Server, sockets: list[Any] | None = None) -> None:
        begun.append(server)
        await listen(server, sockets)

    monkeypatch.setattr(uvicorn.Server, "startup", startup)
    with serve(SCRIPT, grpc_port=0):
        assert len(begun) == 1
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ServeError, match=f"127.0.0.1:{port}"), serve(SCRIPT, grpc_port=port):
            pass
    assert len(begun) == 1, "it did not listen for HTTP"


def test_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "find_spec", lambda _: None)
    with pytest.raises(ServeError, match=r"pip install 'antiphon\[grpc\]'"):
        launch.check_grpc(Settings(grpc_port=0), 1)
    launch.check_grpc(Settings(), 1)


def test_ports_of_all_models_must_exist() -> None:
    for port, num_models in ((65_535, 1), (65_534, 2), (0, 3)):
        launch.check_grpc(Settings(grpc_port=port), num_models)
    with pytest.raises(ServeError, match="--grpc 65534: 3 models take the ports from 65534 to 65536; choose 65533 or"):
        launch.check_grpc(Settings(grpc_port=65_534), 3)


def test_log_names_the_port_of_each_model() -> None:
    first, second = (scripted_registry(SCRIPT, names=(name,)).served[0] for name in ("first", "second"))
    for models, expected in (
        ([first], ["127.0.0.1:5"]),
        ([first, second], ["127.0.0.1:5 (first)", "127.0.0.1:6 (second)"]),
    ):
        context = create_context(Settings(), ModelRegistry(models), store=make_log_store())
        context.grpc_ports = (5, 6)[: len(models)]
        screen = io.StringIO()
        launch.show_grpc(StartupScreen(create_console(screen)), context)
        assert [line.removeprefix("gRPC ") for line in screen.getvalue().splitlines() if line] == expected


def test_nothing_of_grpc_is_imported_without_the_flag() -> None:
    code = (
        "import sys; from tests.serving import serve\n"
        "with serve([{'name': 'a', 'output': ['b']}]): print([n for n in ('grpc', 'google.protobuf') if n in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_message_above_the_limit_is_refused() -> None:
    with serve(SCRIPT, grpc_port=0, max_body_bytes=1000) as server, connect(server) as client:
        assert client.read_error(GENERATE, HELLO | {"text": "x" * 2000})[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert list(client.call(GENERATE, HELLO | {"text": "x" * 900}))


def test_client_that_reads_nothing_loses_its_call() -> None:
    script = [{"name": "flood", "output": [*["x" * 4800] * 26, {"stall": True}], "tokens_per_chunk": 0}]
    small_buffers = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_535))
    with serve(script, grpc_port=0, stall_timeout=0.3) as server:
        with grpc.insecure_channel(f"127.0.0.1:{server.context.grpc_ports[0]}", small_buffers) as channel:
            call = GrpcClient(channel).call(GENERATE, HELLO)
            assert wait_until(10, lambda: len(server.access_records) == 1)
            assert wait_until(10, lambda: server.context.turn_manager.num_running == 0)
            with pytest.raises(grpc.RpcError) as caught:
                list(call)
        assert caught.value.code() is grpc.StatusCode.CANCELLED


def count_state(server: RunningServer) -> dict[str, int]:
    """Counts what a call might leave behind."""

    async def count() -> dict[str, int]:
        await asyncio.sleep(0)
        gc.collect()
        names = ("EventLog", "Turn", "_RunningCall", "LogReader", "_ServicerContext", "ChoiceReply")
        kinds = [type(value).__name__ for value in gc.get_objects()]
        tasks = [task for task in asyncio.all_tasks() if not task.done()]
        return {name: kinds.count(name) for name in names} | {
            "tasks": len(tasks),
            "files": len(os.listdir("/proc/self/fd")),  # noqa: PTH208  # pathlib is no better here
        }

    return asyncio.run_coroutine_threadsafe(count(), server.loop).result(20)


def test_many_streams_leave_nothing_behind() -> None:
    count = 4000 if FULL_COUNTS else 320
    registry = scripted_registry(SCRIPT, max_num_seqs=64)
    with serve(registry, grpc_port=0) as server, connect(server) as client:
        run_streams(client, 50)
        assert wait_until(10, lambda: server.context.turn_manager.num_running == 0)
        before = count_state(server)
        run_streams(client, count)
        assert wait_until(20, lambda: server.context.turn_manager.num_running == 0)
        assert wait_until(10, lambda: count_state(server)["tasks"] <= before["tasks"])
        after = count_state(server)
    assert {name: after[name] for name in before if after[name] > before[name] + 5} == {}


def run_streams(client: GrpcClient, count: int) -> None:
    """Runs streams in threads: half of them are read to the end, the others are cancelled at their first message."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            for index in range(number, count, 16):
                number_of_call = {"requestId": str(index)}
                if index % 2:
                    call = client.call(GENERATE, STALL | number_of_call)
                    next(call)
                    call.cancel()
                else:
                    last = list(client.call(GENERATE, HELLO | number_of_call))[-1]
                    assert last.complete.finish_reason == "stop"
        except BaseException as error:  # noqa: BLE001  # raised again below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
