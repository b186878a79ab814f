"""Turns of the embedded model whose worker is lost: the events are those of a turn that nothing disturbs."""

import asyncio
import socket
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from antiphon.app.projections.responses import ResponsesStream
from antiphon.app.requests.responses.request import read_responses_request
from antiphon.engine.builder import _create_core, _load
from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.model_build.stages import run_stages
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.client import ProcessEngine
from antiphon.engine.process.jobs.recovery import MAX_CONTINUATIONS
from antiphon.engine.process.timeouts import WorkerTimeouts
from antiphon.engine.protocol import JobChunk
from antiphon.engine.scheduler.core import Core
from antiphon.harmony.format import ModelFormat
from tests.codex.embedded_registry import load_model_format, make_registry, needs_weights
from tests.counts import FULL_COUNTS
from tests.engine.threaded_engine import ThreadWorker
from tests.invariants import Event, check_stream
from tests.merged_streams import merge_deltas, read_events
from tests.progress import HANG_TIMEOUT_S
from tests.snapshots.run_case import collect_frames, make_turn_manager

pytestmark = needs_weights
TIMEOUTS = WorkerTimeouts(min_restart_delay=0.0, max_restart_delay=0.0)
FORMS: dict[str, dict[str, Any]] = {
    "stored": {},
    "fp32": {"dtype": "float32"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
}
"""Forms of the weights. "stored": 16 bits, multiplied with activations in fp32."""
PLACE = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"type": "string", "enum": ["red", "green"]},
        "code": {"type": "string", "pattern": "^[a-c]{2}[0-9]$"},
    },
    "required": ["city", "count", "kind", "code"],
    "additionalProperties": False,
}
SHELL = {
    "type": "function",
    "name": "shell",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "required": ["command"],
        "additionalProperties": False,
    },
}
FIND = {"type": "function", "name": "find_place", "strict": True, "parameters": PLACE}
STORY = "Tell me a long story about a ship"
WRITING = {"input": STORY, "temperature": 0.9, "seed": 5, "max_output_tokens": 40}
TURNS: dict[str, dict[str, Any]] = {
    "text": {"input": "Hello!", "temperature": 0},
    "seeded": {**WRITING, "temperature": 2.0},
    "command": {"input": "run `echo antiphon-7391`", "tools": [SHELL], "temperature": 0},
    "call": {"input": "Go.", "tools": [FIND], "tool_choice": "required", "temperature": 1.2, "seed": 4},
    "schema": {
        "input": "Go.",
        "text": {"format": {"type": "json_schema", "name": "place", "schema": PLACE, "strict": True}},
        "temperature": 1.2,
        "seed": 3,
    },
    "logprobs": {
        **WRITING,
        "top_logprobs": 3,
        "include": ["message.output_text.logprobs"],
        "temperature": 1.5,
        "top_k": 20,
    },
    "penalties": {**WRITING, "presence_penalty": 1.7, "frequency_penalty": 1.4, "temperature": 1.6},
    "greedy penalties": {**WRITING, "temperature": 0, "presence_penalty": 2, "repetition_penalty": 3.0},
    "stop": {**WRITING, "stop": ["eat, add and cal"], "temperature": 0},
    "late stop": {**WRITING, "stop": ["repeat, add or", "tools.?"], "temperature": 0},
}
"""Requests. The model reasons before each answer."""


class Cuts:
    """Decides where workers end, and counts that."""

    def __init__(self) -> None:
        self.num_made = 0
        self._at = self._num_left = self._delivered = 0
        self._is_first = True

    def plan(self, at: int, num_cuts: int) -> None:
        """Begins another job: `num_cuts` workers end, the first one after the first `at` tokens."""
        self._at, self._num_left, self._delivered, self._is_first = at, num_cuts, 0, True

    def take_report(self, num_tokens: int, *, has_delivered: bool) -> bool:
        """Tells whether a worker is to end with this report, which is then lost. Later workers report tokens first."""
        is_due = self._delivered + num_tokens > self._at and (has_delivered or self._is_first)
        if not (self._num_left and is_due):
            self._delivered += num_tokens
            return False
        self._num_left -= 1
        self._is_first = False
        self.num_made += 1
        return True


class CutCore:
    """A core that ends its worker where `cuts` says so."""

    def __init__(self, core: Core, cuts: Cuts, worker_socket: socket.socket) -> None:
        self._core, self._cuts, self._socket, self._has_delivered = core, cuts, worker_socket, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def step(self) -> list[JobChunk]:
        chunks = self._core.step()
        num_tokens = sum(len(chunk.tokens) for _, chunk in chunks)
        if num_tokens and self._cuts.take_report(num_tokens, has_delivered=self._has_delivered):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._has_delivered |= num_tokens > 0
        return chunks


def build_cut_engine(form: str, cuts: Cuts) -> ProcessEngine:
    """Returns an engine, not yet started, whose workers share one forward pass: a restart loads nothing."""
    options = EngineOptions(device="cpu", threads=1, enable_prefix_caching=False, **FORMS[form])
    build = _load(MODEL_DIR, options)
    run_stages(build)

    def spawn(worker_socket: socket.socket) -> Any:
        return ThreadWorker(worker_socket, lambda _: CutCore(_create_core(build, None), cuts, worker_socket))

    return ProcessEngine(spawn=spawn, options=options, timeouts=TIMEOUTS)


async def run_turn(engine: ProcessEngine, model_format: ModelFormat, fields: dict[str, Any]) -> list[Event]:
    """Returns the events of a turn; the engine is idle again."""
    registry = make_registry(engine, model_format)
    parsed = read_responses_request({"model": "antiphon", "stream": True} | fields, registry)
    async with asyncio.timeout(HANG_TIMEOUT_S):
        log = await make_turn_manager().start_turn(parsed.model, parsed.spec)
        events = read_events((await collect_frames(ResponsesStream(log))).decode())
        while engine.stats().running:
            await asyncio.sleep(0)
    check_stream(events)
    return events


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("form", FORMS if FULL_COUNTS else ["int8"])
async def test_turn_has_the_same_events_wherever_its_worker_is_lost(form: str) -> None:
    threads, cuts, model_format = torch.get_num_threads(), Cuts(), load_model_format()
    torch.set_num_threads(1)
    engine = build_cut_engine(form, cuts)
    await engine.start()
    try:
        for name, fields in TURNS.items():
            cuts.plan(0, 0)
            whole = await run_turn(engine, model_format, fields)
            num_tokens = whole[-1]["response"]["usage"]["output_tokens"]
            expected = merge_deltas(whole)
            for at in range(num_tokens) if FULL_COUNTS else (num_tokens // 2, num_tokens - 3):
                num_made = cuts.num_made
                cuts.plan(at, MAX_CONTINUATIONS if at % 2 else 1)
                assert merge_deltas(await run_turn(engine, model_format, fields)) == expected, (name, at)
                assert cuts.num_made > num_made, (name, at)
    finally:
        await engine.close()
        torch.set_num_threads(threads)
    print(f"{form}: {cuts.num_made} workers lost")
