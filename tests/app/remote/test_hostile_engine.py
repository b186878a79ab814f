"""An engine that attacks the server in front of it: its own request ends, and no other client notices."""

import gc
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest

from antiphon.app.registry.model_registry import ModelRegistry, ServedModel
from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.remote.engine import RemoteEngine
from antiphon.engine.remote.options import RemoteOptions
from antiphon.engine.remote.transport.connection import HttpConnection
from antiphon.engine.remote.transport.endpoint import RemoteEndpoint
from antiphon.harmony.detection import detect
from tests.app.remote.hostile_replies import ENGINE_KEY, FAILED, REPLIES
from tests.app.remote.served_engine import decode_events
from tests.clients.second_client import NUM_WORDS, SCRIPT, SecondClient
from tests.engine.remote.remote_helpers import FAST, load_model
from tests.invariants import check_stream
from tests.serving import RunningServer, scripted_registry, serve
from tests.syntax import ROOT

MAX_SLICE_CPU_S = 0.1
"""CPU time that one call for a hostile connection may take. It is under 10 ms; waiting for the CPU does not count."""
SLICES = ("data_received", "_run_pass")


@pytest.fixture(scope="module")
def hostile_server() -> Iterator[RunningServer]:
    """A server with a scripted model and one on a hostile engine, which runs in another process."""
    command = [sys.executable, "-m", "tests.app.remote.hostile_replies"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdin is not None and engine.stdout is not None
        endpoint = RemoteEndpoint(host="127.0.0.1", port=int(engine.stdout.readline()))
        model, info = load_model()
        remote = RemoteEngine(RemoteOptions(endpoints=(endpoint,)), model, info, api_key=ENGINE_KEY, timeouts=FAST)
        hostile = ServedModel(
            names=("hostile",),
            engine=remote,
            format=detect.load_format(MODEL_DIR, "hermes").format,
            created=1_700_000_000,
        )
        scripted = scripted_registry(SCRIPT, delay=0.01)
        with serve(ModelRegistry([*scripted.served, hostile])) as server:
            yield server
        engine.stdin.close()


@pytest.fixture
def slice_cpu_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """CPU times of the calls that handle data of an engine.

    The collector does not visit the objects of other tests: a server has fewer of them.
    """
    gc.collect()
    gc.freeze()
    times: list[float] = []

    def measured(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            started = time.thread_time()
            try:
                return method(*args)
            finally:
                times.append(time.thread_time() - started)

        return call

    for name in SLICES:
        monkeypatch.setattr(HttpConnection, name, measured(getattr(HttpConnection, name)))
    return times


def test_hostile_engine_holds_nobody_up(hostile_server: RunningServer, slice_cpu_s: list[float]) -> None:
    with SecondClient(hostile_server) as second, ThreadPoolExecutor(6) as attacks:
        replies = dict(zip(REPLIES, attacks.map(partial(attack, hostile_server), REPLIES), strict=True))
    response = check_stream(second.events)
    assert response["output"][0]["content"][0]["text"] == "word " * NUM_WORDS
    for name, reply in replies.items():
        check_reply(name, reply)
    assert max(slice_cpu_s) < MAX_SLICE_CPU_S
    slowest_ms = max(second.health_s) * 1e3
    print(f"slowest slice {max(slice_cpu_s) * 1e3:.1f} ms of CPU, slowest health check {slowest_ms:.0f} ms")


def attack(server: RunningServer, name: str) -> httpx.Response:
    """Returns the reply to a request that the engine attacks."""
    body = {"model": "hostile", "input": "Hi", "stream": True, "seed": list(REPLIES).index(name), "store": False}
    return httpx.post(f"{server.url}/responses", json=body, timeout=120)


def check_reply(name: str, reply: httpx.Response) -> None:
    """Checks what the client is told. A failure after a second is an event, because the response counts as queued."""
    expected = REPLIES[name].status
    assert ENGINE_KEY not in reply.text
    assert reply.status_code == expected or (reply.status_code == 200 and expected in (FAILED, 503)), (name, reply.text)
    if reply.status_code == 200:
        final = check_stream(decode_events(reply.text))
        assert (final["status"] == "failed") == (expected != 200), name
        if final["usage"]:
            assert final["usage"]["input_tokens_details"]["cached_tokens"] <= final["usage"]["input_tokens"]
