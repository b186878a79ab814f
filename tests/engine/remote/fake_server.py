"""A server that plays the replies of vLLM, SGLang, llama.cpp or TensorRT-LLM, as bytes that a test chooses.

It knows HTTP as far as the engine uses it. `FakeServer.replies` holds the next replies to jobs; a reply is a list of
parts that are written one by one, with `Pause` and `Reset` between them.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

PASSES_OF_A_CONNECTION = 6
"""Passes of the event loop after which a connection that was accepted has its handler."""
Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class Pause:
    """Waits, in seconds; `forever` until the client hangs up."""

    seconds: float = 3600.0


@dataclass(frozen=True)
class Reset:
    """Closes the connection."""


@dataclass(frozen=True)
class Reply:
    """A reply to a job. `parts`: pieces of the body, or what happens between them."""

    parts: Sequence[bytes | Pause | Reset]
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    is_chunked: bool = True
    part_delay_s: float = 0.0
    """Time between two parts."""


@dataclass
class ReceivedRequest:
    """A request that the server received."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


def sse(*events: Any, end: bool = True) -> list[bytes]:
    """Encodes events as `data:` lines, with `[DONE]` at the end."""
    parts = [f"data: {json.dumps(event)}\n\n".encode() for event in events]
    return [*parts, b"data: [DONE]\n\n"] if end else parts


def vllm_tokens(*tokens: int, finish: str | None = None, **choice: Any) -> dict[str, Any]:
    """Returns an event of `/v1/completions` of vLLM."""
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "choices": [
            {"index": 0, "text": "x", "logprobs": None, "finish_reason": finish, "token_ids": list(tokens), **choice}
        ],
    }


def vllm_usage(cached: int | None = 0) -> dict[str, Any]:
    """Returns the last event of `/v1/completions`. `cached` None: as of a server that does not count."""
    details = None if cached is None else {"cached_tokens": cached}
    return {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3, "prompt_tokens_details": details}}


def play_vllm(*tokens: int, finish: str = "stop", cached: int | None = 0) -> Reply:
    """Returns a whole reply of vLLM, one token per event."""
    events = [vllm_tokens(token) for token in tokens[:-1]]
    return Reply(sse(*events, vllm_tokens(tokens[-1], finish=finish), vllm_usage(cached)))


class FakeServer:
    """Answers the requests of a handshake by itself, and jobs with `replies`, then with `default`."""

    def __init__(self, encode: Encode, default: Reply, probes: Callable[[dict[str, Any]], Reply | None]) -> None:
        self.replies: list[Reply] = []
        self.default = default
        self.requests: list[ReceivedRequest] = []
        self.num_hung_up = 0
        self.owned_by, self.version, self.models = "vllm", "0.32.0", ["tiny"]
        self.health_status = 200
        self.overrides: dict[str, Reply] = {}
        """Replies by path, instead of those below."""
        self.answer_job: Callable[[dict[str, Any]], Reply] | None = None
        """Makes the replies to jobs, instead of `replies` and `default`."""
        self.decode: Callable[[list[int]], str] | None = None
        """Answers `/detokenize`; without it, the server does not know the path."""
        self.port = 0
        self.socket_path: str | None = None
        self.model_fields: dict[str, Any] = {"max_model_len": 4096}
        self.details: dict[str, Any] = {}
        """Further fields of `/version`, `/server_info` and `/props`."""
        self.text_field = "prompt"
        self._encode, self.probes = encode, probes
        self._answers: dict[str, Callable[[ReceivedRequest], Reply]] = {
            "/v1/models": self._list_models,
            "/version": lambda _: _json_reply({"version": self.version, **self.details}),
            "/server_info": lambda _: _json_reply({"version": self.version, **self.details}),
            "/props": lambda _: _json_reply({"build_info": "b1", **self.details}),
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
            "/health": lambda _: Reply([b""], status=self.health_status, is_chunked=False),
        }
        self._server: asyncio.Server | None = None
        self.writers: set[asyncio.StreamWriter] = set()

    @property
    def jobs(self) -> list[ReceivedRequest]:
        """Requests that run a job, without those of the handshake."""
        return [request for request in self.requests if "x-request-id" in request.headers]

    async def start(self) -> None:
        """Listens on the port of the last start, or a free one; on the Unix socket if there is a path."""
        if self.socket_path is not None:
            self._server = await asyncio.start_unix_server(self._serve, self.socket_path)
            return
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def kill(self) -> None:
        """Stops listening and resets all connections."""
        server, self._server = self._server, None
        if server is not None:
            for listener in server.sockets:
                asyncio.get_running_loop().remove_reader(listener)
            for _ in range(PASSES_OF_A_CONNECTION):  # asyncio loses a connection whose server closes before
                await asyncio.sleep(0)
            server.close()
        for writer in list(self.writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        try:
            while (request := await _read_request(reader)) is not None:
                self.requests.append(request)
                await self._write_reply(self._choose_reply(request), reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.writers.discard(writer)
            writer.transport.abort()

    def _choose_reply(self, request: ReceivedRequest) -> Reply:
        if request.path in self.overrides:
            return self.overrides[request.path]
        answer = self._answers.get(request.path)
        if answer is not None:
            return answer(request)
        if "x-request-id" not in request.headers:
            probe = self.probes(request.body)
            return probe or self.default
        if self.answer_job is not None:
            return self.answer_job(request.body)
        return self.replies.pop(0) if self.replies else self.default

    def _list_models(self, _: ReceivedRequest) -> Reply:
        data = [{"id": name, "owned_by": self.owned_by, **self.model_fields} for name in self.models]
        return _json_reply({"object": "list", "data": data})

    def _tokenize(self, request: ReceivedRequest) -> Reply:
        text = request.body.get("prompt") or request.body.get("content")
        return _json_reply({"tokens": self._encode(text), "count": 0})

    def _detokenize(self, request: ReceivedRequest) -> Reply:
        if self.decode is None:
            return _json_reply({"detail": "Not Found"}, 404)
        return _json_reply({self.text_field: self.decode(request.body["tokens"])})

    async def _write_reply(self, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = {"Content-Type": "text/event-stream", **reply.headers}
        if reply.is_chunked:
            head["Transfer-Encoding"] = "chunked"
        else:
            head["Content-Length"] = str(sum(len(part) for part in reply.parts if isinstance(part, bytes)))
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        writer.write(f"HTTP/1.1 {reply.status} X\r\n{lines}\r\n".encode())
        for part in reply.parts:
            if isinstance(part, Pause):
                await self._pause(part.seconds, reader)
            elif isinstance(part, Reset):
                writer.transport.abort()
                raise ConnectionResetError
            elif part:
                writer.write(b"%x\r\n%b\r\n" % (len(part), part) if reply.is_chunked else part)
                await writer.drain()
                if reply.part_delay_s:
                    await asyncio.sleep(reply.part_delay_s)
        if reply.is_chunked:
            writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _pause(self, seconds: float, reader: asyncio.StreamReader) -> None:
        """Waits, or notices that the client hung up."""
        with contextlib.suppress(TimeoutError):
            try:
                data = await asyncio.wait_for(reader.read(1), seconds)
            except ConnectionError:
                data = b""
            if not data:
                self.num_hung_up += 1
                raise ConnectionResetError


def _json_reply(body: Any, status: int = 200) -> Reply:
    return Reply([json.dumps(body).encode()], status=status, is_chunked=False)


json_reply = _json_reply


async def _read_request(reader: asyncio.StreamReader) -> ReceivedRequest | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = int(headers.get("content-length", 0))
    body = await reader.readexactly(length) if length else b""
    return ReceivedRequest(method, path, headers, json.loads(body) if body else None)


@asynccontextmanager
async def fake_server(
    encode: Encode, default: Reply, probes: Callable[[dict[str, Any]], Reply | None]
) -> AsyncIterator[FakeServer]:
    """Runs a server until the end of the block."""
    server = FakeServer(encode, default, probes)
    await server.start()
    try:
        yield server
    finally:
        await server.kill()
