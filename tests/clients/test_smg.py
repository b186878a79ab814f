"""SMG's router with this server as its worker."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from antiphon.app.grpc.descriptors import DESCRIPTOR_SET
from antiphon.app.registry.model_registry import ModelRegistry, ServedModel
from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.protocol import EngineInfo
from antiphon.engine.scripted.engine import ScriptedEngine, parse_script
from antiphon.harmony.detection.detect import load_format
from tests.clients.python_install import install_python_clients, run_program
from tests.clients.sdk_helpers import parse_events, wait_until
from tests.progress import HANG_TIMEOUT_S
from tests.serving import serve


@pytest.fixture(scope="module")
def smg_python() -> Path:
    """A Python with SMG's router. Skips the test where pip cannot install it."""
    return install_python_clients("smg")


def test_engine_service_has_the_numbers_of_smg(smg_python: Path, tmp_path: Path) -> None:
    program = Path(__file__).parent / "programs" / "smg_fields.py"
    theirs = run_program([smg_python, program], tmp_path)
    compared = 0
    for file in DESCRIPTOR_SET.file:
        for message in file.message_type:
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
