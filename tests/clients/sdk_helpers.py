"""One server for all the cases, and the openai SDK with a tape recorder on its wire."""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import httpx
import httpx2
import msgspec
from openai import AsyncOpenAI, OpenAI

from antiphon.app.model_registry import ModelRegistry
from antiphon.engine.protocol import EngineInfo
from antiphon.engine.scripted.script import ScriptStep
from tests.serving import RunningServer, scripted_registry
from tests.snapshots.cases import CASES, TOOLS, Case

Json = dict[str, Any]

PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Never used on loopback; handed to every client because making a fresh one costs more than a request."""
get, post = partial(httpx.get, verify=PLAIN), partial(httpx.post, verify=PLAIN)

DIALECTS = ("hermes", "qwen3-coder", "gpt-oss")
"""Each is the name of the model that speaks it."""

AFTER = "[after]"
"""What a user says to be answered with a word, whatever came before."""

CHAT_TOOLS = [
    {"type": tool["type"], tool["type"]: {key: value for key, value in tool.items() if key != "type"}}
    for tool in TOOLS
    if tool["type"] != "namespace"
]


def prompt(case: Case) -> str:
    """What the user says to be answered with this case."""
    return f"Play [{case.name}]."


def all_cases(cases: list[Case] = CASES, *, step: int | None = None, **engine: Any) -> ModelRegistry:
    """A model for each dialect, which plays any of its cases when asked by name."""
    models = []
    for dialect in DIALECTS:
        replies = [
            {
                "name": case.name,
                "output": case.speak,
                "finish": case.finish,
                "tokens_per_chunk": case.step if step is None else step,
                "when": [f"[{case.name}]"],
            }
            for case in cases
            if case.dialect == dialect
        ]
        info = EngineInfo(max_model_len=131_072, vocab_size=262_144, device="none", eos_ids=_stop_ids(dialect))
        after = {"name": "after", "output": ["Done."], "when": [AFTER]}
        models += scripted_registry([after, *replies], dialect=dialect, names=(dialect,), info=info, **engine).served
    return ModelRegistry(models)


def _stop_ids(dialect: str) -> tuple[int, ...]:
    return tuple(scripted_registry([{"name": "x", "output": []}], dialect=dialect).served[0].format.stop_ids[:1])


def responses_body(case: Case) -> Json:
    """The case as a request to `/v1/responses`."""
    return {"model": case.dialect, "input": prompt(case), "tools": TOOLS} | case.request | case.responses


def chat_body(case: Case) -> Json:
    """The case as a request to `/v1/chat/completions`."""
    messages = [{"role": "user", "content": prompt(case)}]
    return {"model": case.dialect, "messages": messages, "tools": CHAT_TOOLS} | case.request | case.chat


def for_sdk(body: Json) -> Json:
    """The body as keyword arguments: what the SDK has no parameter for goes into `extra_body`."""
    extra = {key: body[key] for key in ("stop",) if key in body}
    return {key: value for key, value in body.items() if key not in extra} | ({"extra_body": extra} if extra else {})


# The tape


class Tape(list[bytes]):
    """The bodies of the answers, as they came over the wire: one entry an answer."""

    def answer(self) -> bytes:
        """The last one."""
        return self[-1]


class _Recorder(httpx2.BaseTransport):
    def __init__(self, tape: Tape) -> None:
        self._inner, self._tape = httpx2.HTTPTransport(verify=PLAIN), tape

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        reply = self._inner.handle_request(request)
        self._tape.append(b"")
        reply.stream = _Recorded(reply.stream, self._tape, len(self._tape) - 1)
        return reply

    def close(self) -> None:
        self._inner.close()


class _Recorded(httpx2.SyncByteStream):
    def __init__(self, inner: Any, tape: Tape, place: int) -> None:
        self._inner, self._tape, self._place = inner, tape, place

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._inner:
            self._tape[self._place] += piece
            yield piece

    def close(self) -> None:
        self._inner.close()


class _AsyncRecorder(httpx2.AsyncBaseTransport):
    def __init__(self, tape: Tape) -> None:
        self._inner, self._tape = httpx2.AsyncHTTPTransport(verify=PLAIN), tape

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        reply = await self._inner.handle_async_request(request)
        self._tape.append(b"")
        reply.stream = _AsyncRecorded(reply.stream, self._tape, len(self._tape) - 1)
        return reply

    async def aclose(self) -> None:
        await self._inner.aclose()


class _AsyncRecorded(httpx2.AsyncByteStream):
    def __init__(self, inner: Any, tape: Tape, place: int) -> None:
        self._inner, self._tape, self._place = inner, tape, place

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._inner:
            self._tape[self._place] += piece
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()


@contextmanager
def sdk(served: RunningServer, key: str = "none") -> Iterator[tuple[OpenAI, Tape]]:
    """The openai client as users make it, except that nothing is retried and its wire is on tape."""
    tape = Tape()
    with (
        httpx2.Client(transport=_Recorder(tape), timeout=30) as wire,
        OpenAI(base_url=served.url, api_key=key, http_client=wire, max_retries=0) as client,
    ):
        yield client, tape


@asynccontextmanager
async def async_sdk(served: RunningServer, key: str = "none") -> AsyncIterator[tuple[AsyncOpenAI, Tape]]:
    """The same for `AsyncOpenAI`."""
    tape = Tape()
    async with (
        httpx2.AsyncClient(transport=_AsyncRecorder(tape), timeout=30) as wire,
        AsyncOpenAI(base_url=served.url, api_key=key, http_client=wire, max_retries=0) as client,
    ):
        yield client, tape


def events(raw: bytes) -> list[Json]:
    """The data of every frame of a stream that ended properly, the end mark left out."""
    lines = [line.removeprefix("data: ") for line in raw.decode().split("\n") if line.startswith("data: ")]
    assert lines.pop() == "[DONE]" and raw.endswith(b"\n\n"), raw[-200:]
    return [json.loads(line) for line in lines]


def plain(model: Any) -> Any:
    """An SDK object as JSON, without what its helpers add to what the wire said."""
    # The SDK's own generic types do not fit each other, and pydantic warns of it.
    return _without(model.to_dict(mode="json", warnings=False), {"parsed", "parsed_arguments"})


def _without(value: Any, keys: set[str]) -> Any:
    if isinstance(value, dict):
        return {key: _without(inside, keys) for key, inside in value.items() if key not in keys}
    return [_without(inside, keys) for inside in value] if isinstance(value, list) else value


# The server's side


def engine(served: RunningServer, case: Case) -> Any:
    """The engine that plays the case."""
    return served.context.models.find_model(case.dialect).engine


def cancel(served: RunningServer, case: Case, response_id: str, already: int) -> None:
    """Have the engine cancel a stalled turn once it has said all it will. `already`: its tokens before the turn."""
    form = served.context.models.find_model(case.dialect).format
    said = sum(len(form.encode(piece)) for piece in case.speak if isinstance(piece, str))
    assert within(5, lambda: engine(served, case).stats().generated_tokens - already >= said)
    asyncio.run_coroutine_threadsafe(engine(served, case).cancel(response_id), served.loop).result(5)


def within(seconds: float, holds: Any) -> bool:
    """Whether it comes to hold in that time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.01)
    return bool(holds())


def stalls(case: Case) -> bool:
    """Whether the case ends only by being cancelled."""
    pieces = [msgspec.convert(piece, ScriptStep) for piece in case.speak if isinstance(piece, dict)]
    return any(piece.stall for piece in pieces)


def overhear(served: RunningServer) -> list[str]:
    """The prompts of the first model from now on, in the order they come, as text with all their markers."""
    prompts: list[str] = []
    player, decode = served.engine, served.context.models.served[0].format.decode
    generate = player.generate

    def recorded(job: Any, hear: Any) -> Any:
        prompts.append(decode(job.tokens))
        return generate(job, hear)

    player.generate = recorded
    return prompts
