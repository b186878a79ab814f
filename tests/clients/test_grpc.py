"""gRPC clients as other people write them: grpc-js for Node, and SMG's router with this server as its worker."""

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from google.protobuf import descriptor_pb2

from antiphon.app.grpc.descriptors import API_FILE, ENGINE_FILE, SHARED_ENGINE_FILE, load_file
from antiphon.app.model_registry import ModelRegistry, ServedModel
from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.protocol import EngineInfo
from antiphon.engine.scripted.engine import ScriptedEngine, parse_script
from antiphon.harmony.detect import load_format
from tests.clients.node_install import run_node_script
from tests.clients.python_install import install_python_clients, run_program
from tests.clients.sdk_helpers import get, parse_events, wait_until
from tests.invariants import check_stream
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, scripted_registry, serve
from tests.syntax import ROOT

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
SCRIPT: list[dict[str, Any]] = [
    {"name": "call", "when": ["weather"], "output": ["<think>\nLook it up.\n</think>\n\n", "Let me see.\n", CALL]},
    {"name": "stall", "output": ["Hello ", {"stall": True}]},
]
SERVER = partial(serve, partial(scripted_registry, SCRIPT), grpc_port=0)
TOOL = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {"city": {}}}}


@pytest.fixture(scope="module")
def node_results(node: Path, server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the Node program saw."""
    task = tmp_path_factory.mktemp("grpc") / "task.json"
    requests = {
        "weather": {"model": "scripted", "input": [{"role": "user", "content": "weather"}], "tools": [TOOL]},
        "stall": {"model": "scripted", "input": "stall"},
        "invalid": {"model": "scripted", "input": "hi", "temperature": 2.5},
    }
    address = f"127.0.0.1:{server.context.grpc_port}"
    task.write_text(json.dumps({"address": address, "proto": str(API_FILE), **requests}), encoding="utf-8")
    return run_node_script(node, "grpc.mjs", task)


def test_node_client_streams_a_response_with_tools(server: RunningServer, node_results: dict[str, Any]) -> None:
    events = node_results["events"]
    response = events[-1]["response"]
    assert events == parse_events(get(f"{server.url}/responses/{response['id']}", params={"stream": "true"}).content)
    check_stream(events)
    assert json.loads(response["output"][-1]["arguments"]) == {"city": "Oslo"}


def test_node_client_sees_statuses(server: RunningServer, node_results: dict[str, Any]) -> None:
    invalid_argument, cancelled = 3, 1
    assert node_results["cancelled"] == cancelled
    error = node_results["error"]
    assert (error["status"], error["code"]) == (invalid_argument, "decimal_above_max_value")
    assert error["param"] == "temperature"
    assert wait_until(5, lambda: server.engine.stats().running == 0)


def test_python_example_of_the_documentation_runs(server: RunningServer) -> None:
    page = (ROOT / "docs" / "grpc.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    code = block.replace("127.0.0.1:50051", f"127.0.0.1:{server.context.grpc_port}").replace('"antiphon"', '"scripted"')
    code = code.replace("Hello!", "weather")
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_TIMEOUT_S, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("Let me see.") and "'output_tokens': " in result.stdout


@pytest.fixture(scope="module")
def smg_python() -> Path:
    """A Python with SMG's router. Skips the test where pip cannot install it."""
    return install_python_clients("smg")


def test_engine_service_has_the_numbers_of_smg(smg_python: Path, tmp_path: Path) -> None:
    program = Path(__file__).parent / "programs" / "smg_fields.py"
    theirs = run_program([smg_python, program], tmp_path)
    compared = 0
    for file in (ENGINE_FILE, SHARED_ENGINE_FILE):
        own = descriptor_pb2.FileDescriptorProto()
        load_file(file).CopyToProto(own)
        for message in own.message_type:
            for field in message.field if message.name != "Unsupported" else ():
                assert theirs[message.name][field.name] == [field.number, field.type, field.label], field
                compared += 1
    assert compared > 100


@contextmanager
def run_router(python: Path, workers: list[str], log: Path) -> Iterator[str]:
    """Runs SMG's router in front of workers with a model each. Yields its base URL once it serves both."""
    ports = [free_port(), free_port()]
    command = [python.parent / "smg", "launch", "--host", "127.0.0.1", "--port", str(ports[0]), "--log-level", "warn"]
    command += ["--worker-urls", *workers, "--prometheus-host", "127.0.0.1", "--prometheus-port", str(ports[1])]
    with log.open("w", encoding="utf-8") as output:
        router = subprocess.Popen(command, stdout=output, stderr=output, cwd=log.parent)
        try:
            url = f"http://127.0.0.1:{ports[0]}/v1"
            assert wait_until(30, lambda: serves(url, "embedded") and serves(url, "other")), log.read_text()[-2000:]
            yield url
        finally:
            router.kill()
            router.wait()


def serves(url: str, model: str) -> bool:
    try:
        reply = httpx.post(
            f"{url}/chat/completions", json=CHAT | {"model": model, "max_tokens": 1}, timeout=HANG_TIMEOUT_S
        )
    except httpx.TransportError:
        return False
    return reply.status_code == 200


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


CHAT = {"model": "embedded", "messages": [{"role": "user", "content": "Hello!"}], "temperature": 0}


def test_smg_routes_chats_to_the_models_of_this_server(smg_python: Path, tmp_path: Path) -> None:
    """The workers have the embedded model's tokenizer, and scripts of its token ids take the place of its weights."""
    loaded = load_format(MODEL_DIR)
    info = EngineInfo(max_model_len=4096, vocab_size=4096, eos_ids=loaded.format.stop_ids[:1])
    models = []
    for name, text in (("embedded", "Hello from the worker."), ("other", "Hello from the other one.")):
        ids = [*loaded.format.encode(text), loaded.format.stop_ids[0]]
        script = parse_script({"reply": [{"name": "hello", "when": ["Hello!"], "output": [{"ids": ids}]}]})
        engine = ScriptedEngine(script, encode=loaded.format.encode, decode=loaded.format.decode, info=info)
        models.append(ServedModel(names=(name,), engine=engine, format=loaded.format, created=0, folder=MODEL_DIR))
    ids = [*loaded.format.encode("Hello from the worker."), loaded.format.stop_ids[0]]
    with ExitStack() as stack:
        server = stack.enter_context(serve(ModelRegistry(models), grpc_port=0))
        workers = [f"grpc://127.0.0.1:{port}" for port in server.context.grpc_ports]
        url = stack.enter_context(run_router(smg_python, workers, tmp_path / "smg.log"))
        other = httpx.post(f"{url}/chat/completions", json=CHAT | {"model": "other"}, timeout=HANG_TIMEOUT_S).json()
        assert other["choices"][0]["message"]["content"] == "Hello from the other one."
        reply = httpx.post(f"{url}/chat/completions", json=CHAT, timeout=HANG_TIMEOUT_S).json()
        streamed = CHAT | {"stream": True, "stream_options": {"include_usage": True}}
        chunks = parse_events(httpx.post(f"{url}/chat/completions", json=streamed, timeout=HANG_TIMEOUT_S).content)
    assert reply["choices"][0]["message"]["content"] == "Hello from the worker."
    assert reply["choices"][0]["finish_reason"] == "stop" and reply["usage"]["completion_tokens"] == len(ids)
    texts = [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]]
    assert "".join(texts) == "Hello from the worker." and len(chunks) > 3
    assert chunks[-1]["usage"] == reply["usage"]
