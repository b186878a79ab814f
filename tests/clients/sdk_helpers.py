"""A server that plays every case, and openai SDK clients that record the bytes on the wire."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anthropic
import httpx
import httpx2
from openai import AsyncOpenAI, OpenAI

from antiphon.app.registry.model_registry import ModelRegistry
from antiphon.engine.protocol import EngineInfo
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, scripted_registry
from tests.snapshots import event_lines
from tests.snapshots.cases import CASES, TOOLS, Case

Json = dict[str, Any]

get, post = httpx.get, httpx.post

DIALECTS = ("hermes", "qwen3-coder", "gpt-oss")
"""Dialects of the served models. Each model has the name of its dialect."""

FOLLOW_UP_TEXT = "[after]"
"""User text that selects the short reply `Done.` for any history."""

CHAT_TOOLS = [
    {"type": tool["type"], tool["type"]: {key: value for key, value in tool.items() if key != "type"}}
    for tool in TOOLS
    if tool["type"] != "namespace"
]


def case_prompt(case: Case) -> str:
    """Returns the user text that selects the case's reply."""
    return f"Play [{case.name}]."


def make_case_registry(cases: list[Case] = CASES, *, step: int | None = None, **engine: Any) -> ModelRegistry:
    """Returns a registry with one model for each dialect. A model plays the case that the prompt names."""
    models = []
    for dialect in DIALECTS:
        replies = [
            {
                "name": case.name,
                "output": case.output,
                "finish": case.finish,
                "tokens_per_chunk": case.step if step is None else step,
                "when": [f"[{case.name}]"],
            }
            for case in cases
            if case.dialect == dialect
        ]
        info = EngineInfo(max_model_len=131_072, vocab_size=262_144, device="none", eos_ids=_stop_ids(dialect))
        follow_up = {"name": "after", "output": ["Done."], "when": [FOLLOW_UP_TEXT]}
        registry = scripted_registry([follow_up, *replies], dialect=dialect, names=(dialect,), info=info, **engine)
        models += registry.served
    return ModelRegistry(models)


def _stop_ids(dialect: str) -> tuple[int, ...]:
    return tuple(scripted_registry([{"name": "x", "output": []}], dialect=dialect).served[0].format.stop_ids[:1])


def responses_body(case: Case) -> Json:
    """Returns the case's request to `/v1/responses`."""
    return {"model": case.dialect, "input": case_prompt(case), "tools": TOOLS} | case.request | case.responses


def chat_body(case: Case) -> Json:
    """Returns the case's request to `/v1/chat/completions`."""
    messages = [{"role": "user", "content": case_prompt(case)}]
    return {"model": case.dialect, "messages": messages, "tools": CHAT_TOOLS} | case.request | case.chat


def sdk_arguments(body: Json) -> Json:
    """Returns the body as keyword arguments. Fields without an SDK parameter are moved to `extra_body`."""
    extra = {key: body[key] for key in ("stop",) if key in body}
    return {key: value for key, value in body.items() if key not in extra} | ({"extra_body": extra} if extra else {})


# Recording the wire


class RecordedReplies(list[bytes]):
    """Reply bodies as received from the wire, one entry a reply."""

    def last(self) -> bytes:
        """Returns the body of the latest reply."""
        return self[-1]


class _RecordingTransport(httpx2.BaseTransport):
    def __init__(self, replies: RecordedReplies) -> None:
        self._inner, self._replies = httpx2.HTTPTransport(), replies

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        reply = self._inner.handle_request(request)
        self._replies.append(b"")
        reply.stream = _RecordingStream(reply.stream, self._replies, len(self._replies) - 1)
        return reply

    def close(self) -> None:
        self._inner.close()


class _RecordingStream(httpx2.SyncByteStream):
    def __init__(self, inner: Any, replies: RecordedReplies, index: int) -> None:
        self._inner, self._replies, self._index = inner, replies, index

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._inner:
            self._replies[self._index] += piece
            yield piece

    def close(self) -> None:
        self._inner.close()


class _AsyncRecordingTransport(httpx2.AsyncBaseTransport):
    def __init__(self, replies: RecordedReplies) -> None:
        self._inner, self._replies = httpx2.AsyncHTTPTransport(), replies

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        reply = await self._inner.handle_async_request(request)
        self._replies.append(b"")
        reply.stream = _AsyncRecordingStream(reply.stream, self._replies, len(self._replies) - 1)
        return reply

    async def aclose(self) -> None:
        await self._inner.aclose()


class _AsyncRecordingStream(httpx2.AsyncByteStream):
    def __init__(self, inner: Any, replies: RecordedReplies, index: int) -> None:
        self._inner, self._replies, self._index = inner, replies, index

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._inner:
            self._replies[self._index] += piece
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()


@contextmanager
def open_sdk(server: RunningServer, key: str = "none") -> Iterator[tuple[OpenAI, RecordedReplies]]:
    """Opens an `OpenAI` client that never retries, and records its replies."""
    replies = RecordedReplies()
    with (
        httpx2.Client(transport=_RecordingTransport(replies), timeout=HANG_TIMEOUT_S) as wire,
        OpenAI(base_url=server.url, api_key=key, http_client=wire, max_retries=0) as client,
    ):
        yield client, replies


@asynccontextmanager
async def open_async_sdk(
    server: RunningServer, key: str = "none"
) -> AsyncIterator[tuple[AsyncOpenAI, RecordedReplies]]:
    """Opens an `AsyncOpenAI` client that never retries, and records its replies."""
    replies = RecordedReplies()
    async with (
        httpx2.AsyncClient(transport=_AsyncRecordingTransport(replies), timeout=HANG_TIMEOUT_S) as wire,
        AsyncOpenAI(base_url=server.url, api_key=key, http_client=wire, max_retries=0) as client,
    ):
        yield client, replies


def parse_events(raw: bytes) -> list[Json]:
    """Returns the data of every SSE frame, without the end mark. Fails if the stream did not end with it."""
    lines = [line.removeprefix("data: ") for line in raw.decode().split("\n") if line.startswith("data: ")]
    assert lines.pop() == "[DONE]" and raw.endswith(b"\n\n"), raw[-200:]
    return [json.loads(line) for line in lines]


def dump_sdk_object(model: Any) -> Any:
    """Returns an SDK object as JSON, without the keys that the SDK's helpers add."""
    # The SDK's own generic types do not match each other, and pydantic warns about it.
    return _drop_keys(model.to_dict(mode="json", warnings=False), {"parsed", "parsed_arguments"})


def _drop_keys(value: Any, keys: set[str]) -> Any:
    if isinstance(value, dict):
        return {key: _drop_keys(inside, keys) for key, inside in value.items() if key not in keys}
    return [_drop_keys(inside, keys) for inside in value] if isinstance(value, list) else value


def normalize_completion(completion: Json) -> Json:
    """Returns a completion for comparison: ids numbered by appearance, no empty values, no keys that only deltas have.

    The stop reason is left out, too: it is vLLM's, and the SDK's stream helper does not collect it.
    """
    normalized = _drop_empty(json.loads(event_lines.IdNumbers().replace_ids(json.dumps(completion))))
    for choice in normalized["choices"]:
        choice.pop("stop_reason", None)
        for call in choice["message"].get("tool_calls", []):
            call.pop("index", None)
    return {key: normalized[key] for key in ("id", "object", "model", "choices", "usage")}


def _drop_empty(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _drop_empty(inside) for key, inside in value.items() if inside not in (None, "", [])}
    return [_drop_empty(inside) for inside in value] if isinstance(value, list) else value


# The server's side


def find_engine(server: RunningServer, case: Case) -> Any:
    """Returns the engine that plays the case."""
    return server.context.models.find_model(case.dialect).engine


def cancel_stalled_turn(server: RunningServer, case: Case, response_id: str, tokens_before: int) -> None:
    """Cancels a stalled turn in the engine, after the engine has sent all its output.

    `already` is the engine's count of generated tokens before the turn.
    """
    model_format = server.context.models.find_model(case.dialect).format
    expected = sum(len(model_format.encode(piece)) for piece in case.output if isinstance(piece, str))
    assert wait_until(30, lambda: find_engine(server, case).stats().generated_tokens - tokens_before >= expected)
    asyncio.run_coroutine_threadsafe(find_engine(server, case).cancel(response_id), server.loop).result(5)


def wait_until(seconds: float, condition: Any) -> bool:
    """Tells whether the condition becomes true within the time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return bool(condition())


def record_prompts(server: RunningServer) -> list[str]:
    """Returns a list that receives each later prompt of the first model, as text with all markers."""
    prompts: list[str] = []
    engine, decode = server.engine, server.context.models.served[0].format.decode
    generate = engine.generate

    def generate_recorded(job: Any, on_chunk: Any) -> Any:
        prompts.append(decode(job.tokens))
        return generate(job, on_chunk)

    engine.generate = generate_recorded
    return prompts


def open_anthropic(server: RunningServer, key: str = "sk-one") -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.root, api_key=key, max_retries=0, timeout=HANG_TIMEOUT_S)
