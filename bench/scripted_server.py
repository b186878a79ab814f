"""A scripted server in a process of its own, and clients that read it over loopback at the lowest possible cost.

The server generates words of a small vocabulary. Each word's token includes the space before it, as in real
vocabularies.
"""

import argparse
import asyncio
import io
import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import cycle, islice
from typing import Any

import uvloop
from rich.console import Console

from antiphon.app.context import create_context
from antiphon.app.lifecycle.listeners import bind_socket
from antiphon.app.main.launch import tune_gc
from antiphon.app.main.server import run_server
from antiphon.app.observability.access_log import AccessLog, console_format
from antiphon.app.options.settings import Settings
from antiphon.app.registry.model_registry import ModelRegistry, ServedModel
from antiphon.app.store.factory import open_store
from antiphon.engine.protocol import EngineInfo
from antiphon.engine.scripted.engine import ScriptedEngine
from antiphon.engine.scripted.script import ScriptedReply, ScriptStep
from antiphon.harmony.detection.detect import _ADDED_TOKENS, _CHATML, _SPECIAL_TOKENS
from antiphon.harmony.detection.template_format import TemplateFormat
from antiphon.harmony.dialects.hermes import HERMES
from antiphon.harmony.prompt.templates.jinja import ChatTemplate
from antiphon.harmony.tokens.vocabulary import ByteVocabulary
from bench.stream_client import StreamClient, WebSocketClient, read_to_end

WORDS = (" The", " quick", " brown", " fox", " jumps", " over", " the", " lazy", " dog.")

Case = tuple[int, int]
"""Output tokens of a reply, the end token included, and tokens per engine chunk."""


def build_format() -> TemplateFormat:
    """Returns the Hermes format over bytes, markers and `WORDS`."""
    template = ChatTemplate(_CHATML.read_text(encoding="utf-8"))
    return TemplateFormat(HERMES, ByteVocabulary((*_ADDED_TOKENS, *WORDS), _SPECIAL_TOKENS), template)


def case_prompt(length: int, chunk_size: int) -> str:
    """Returns the prompt that selects the reply of a case."""
    return f"say {length} by {chunk_size}."


def build_reply(model_format: TemplateFormat, length: int, chunk_size: int) -> ScriptedReply:
    """Returns the reply of a case."""
    prompt = case_prompt(length, chunk_size)
    ids = tuple(model_format.encode("".join(islice(cycle(WORDS), length - 1))))
    assert len(ids) == length - 1
    return ScriptedReply(name=prompt, when=(prompt,), output=(ScriptStep(ids=ids),), tokens_per_chunk=chunk_size)


def build_registry(cases: Sequence[Case], *, max_num_seqs: int = 1024, max_waiting: int = 1024) -> ModelRegistry:
    """Returns a registry with one model that replies to each case. The limits are those of `ScriptedEngine`."""
    model_format = build_format()
    eos_ids = model_format.stop_ids[:1]
    engine = ScriptedEngine(
        [build_reply(model_format, length, chunk_size) for length, chunk_size in cases],
        encode=model_format.encode,
        decode=model_format.decode,
        info=EngineInfo(max_model_len=1 << 20, vocab_size=1 << 18, device="none", eos_ids=eos_ids),
        max_num_seqs=max_num_seqs,
        max_waiting=max_waiting,
    )
    return ModelRegistry([ServedModel(names=("scripted",), engine=engine, format=model_format, created=0)])


def start_scripted_server(cases: Sequence[Case], **limits: int) -> AbstractContextManager[tuple[int, int]]:
    """Starts a server that replies to these cases and yields its pid and port."""
    return start_server_module("bench.scripted_server", json.dumps(cases), json.dumps(limits))


@contextmanager
def start_server_module(module: str, *args: str) -> Iterator[tuple[int, int]]:
    """Runs a module that prints its port when it is ready, and yields its pid and port. Terminates it at the end."""
    process = subprocess.Popen([sys.executable, "-m", module, *args], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        yield process.pid, int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait(30)


def process_cpu_seconds(pid: int) -> float:
    """Returns the CPU seconds of a process, to the nanosecond. The clock id is Linux's, see `clock_getcpuclockid`."""
    return time.clock_gettime((~pid << 3) | 2)


API_PATHS = {"Responses": "/v1/responses", "Chat": "/v1/chat/completions", "Messages": "/v1/messages"}
"""Path of each API with a stream."""
USAGE_KEYS = {"Responses": b"output_tokens", "Chat": b"completion_tokens", "Messages": b"output_tokens"}
"""Key of the number of generated tokens at the end of a stream."""


def read_websockets(port: int, connections: int, lanes: int, length: int, chunk_size: int, *, blocking: bool) -> None:
    """Reads concurrent replies of one case, one in each lane of each connection."""
    body = build_body("Responses", case_prompt(length, chunk_size))
    clients = [WebSocketClient(port, body, lanes) for _ in range(connections)]
    read_to_end(clients, blocking=blocking)
    for client in clients:
        assert b'"output_tokens":%d,' % length in client.reply, client.reply[-500:]


def build_body(api: str, prompt: str) -> dict[str, Any]:
    """Returns the body of a streaming request of an API."""
    body = {"model": "scripted", "stream": True}
    if api == "Responses":
        return {**body, "input": prompt}
    options = {"stream_options": {"include_usage": True}} if api == "Chat" else {"max_tokens": 1_000_000}
    return {**body, **options, "messages": [{"role": "user", "content": prompt}]}


def read_streams(
    port: int,
    streams: int,
    length: int,
    chunk_size: int,
    *,
    api: str = "Responses",
    keep_all: bool = False,
    blocking: bool = False,
) -> list[bytes]:
    """Reads `streams` concurrent replies of one case. Returns their ends, or with `keep_all` the whole replies."""
    body = build_body(api, case_prompt(length, chunk_size))
    clients = [StreamClient(port, body, path=API_PATHS[api], keep_all=keep_all) for _ in range(streams)]
    read_to_end(clients, blocking=blocking)
    for client in clients:
        assert b'"%b":%d,' % (USAGE_KEYS[api], length) in client.reply, client.reply[-500:]
    return [client.reply for client in clients]


def split_chunks(reply: bytes) -> list[bytes]:
    """Returns the chunks of a chunked response, one per write of the server."""
    chunks, remaining = [], reply.partition(b"\r\n\r\n")[2]
    while remaining:
        size, _, remaining = remaining.partition(b"\r\n")
        chunks.append(remaining[: int(size, 16)])
        remaining = remaining[int(size, 16) + 2 :]
    return chunks[:-1]


@contextmanager
def start_sink() -> Iterator[int]:
    """Starts a process that accepts connections, reads all data and replies nothing. Yields its port."""
    process = subprocess.Popen([sys.executable, "-m", "bench.scripted_server"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait(30)


def _run_sink() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(listener.getsockname()[1], flush=True)
    poll, sockets = select.epoll(), {listener.fileno(): listener}
    poll.register(listener, select.EPOLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == listener.fileno():
                connection = listener.accept()[0]
                sockets[connection.fileno()] = connection
                poll.register(connection, select.EPOLLIN)
            elif not sockets[fd].recv(1 << 16):
                sockets.pop(fd).close()


async def time_socket_writes(port: int, connections: int, data: bytes, count: int) -> float:
    """Returns this process's CPU seconds to write `data` `count` times to each connection: the lower bound."""
    loop = asyncio.get_running_loop()
    transports = [(await loop.create_connection(asyncio.Protocol, "127.0.0.1", port))[0] for _ in range(connections)]
    start = time.process_time()
    for _ in range(count):
        for transport in transports:
            transport.write(data)
        await asyncio.sleep(0)
    cpu_s = time.process_time() - start
    for transport in transports:
        transport.close()
    return cpu_s


def _report_ready(port: int) -> None:
    tune_gc()
    print(port, flush=True)


async def _serve(cases: Any, limits: Any) -> None:
    settings = Settings(port=0, shutdown_timeout=0.1)
    with bind_socket(settings) as listener:
        registry = build_registry([(length, chunk_size) for length, chunk_size in cases], **limits)
        store = open_store(settings)
        context = create_context(settings, registry, store=store)
        # The access log is a part of a request's cost, so its lines are formatted, but not printed.
        access_log = AccessLog(console_format(Console(file=io.StringIO())), len)
        await run_server(context, listener, on_ready=_report_ready, on_request_done=access_log.add_record)
        access_log.flush_lines()
        await store.close()


def main() -> None:
    """Serves cases with limits, both as JSON; without them, reads streams."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("values", nargs="*", type=json.loads, metavar="JSON", help="cases and limits of the server")
    if values := parser.parse_args().values:
        uvloop.run(_serve(*values))
    else:
        _run_sink()


if __name__ == "__main__":
    main()
