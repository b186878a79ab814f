"""A scripted server in a process of its own, and many clients that read it over loopback as cheaply as they can.

The server says words of a small vocabulary, with the blank before each word in its token, as real vocabularies have it.
"""

import asyncio
import io
import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import cycle, islice
from typing import Any

import uvloop
from rich.console import Console

from antiphon.app.context import create_context
from antiphon.app.launch import tune_gc
from antiphon.app.model_registry import ModelRegistry, ServedModel
from antiphon.app.observability.access_log import AccessLog, console_format
from antiphon.app.server import bind_socket, run_server
from antiphon.app.settings import Settings
from antiphon.engine.protocol import EngineInfo
from antiphon.engine.scripted.engine import ScriptedEngine
from antiphon.engine.scripted.script import ScriptedReply, ScriptStep
from antiphon.harmony.detect import _ADDED_TOKENS, _CHATML, _SPECIAL_TOKENS
from antiphon.harmony.dialects.hermes import HERMES
from antiphon.harmony.prompt.jinja import ChatTemplate
from antiphon.harmony.template_format import TemplateFormat
from antiphon.harmony.tokens.vocabulary import ByteVocabulary

WORDS = (" The", " quick", " brown", " fox", " jumps", " over", " the", " lazy", " dog.")
ENDED = b"0\r\n\r\n"


def words_format() -> TemplateFormat:
    """Hermes over bytes, markers and the words above."""
    template = ChatTemplate(_CHATML.read_text(encoding="utf-8"))
    return TemplateFormat(HERMES, ByteVocabulary((*_ADDED_TOKENS, *WORDS), _SPECIAL_TOKENS), template)


def reply(form: TemplateFormat, length: int, step: int) -> ScriptedReply:
    """An answer of `length` tokens, the end marker among them, `step` tokens a chunk; asked for by its name."""
    name = f"say {length} by {step}."
    text = "".join(islice(cycle(WORDS), length - 1))
    ids = tuple(form.encode(text))
    assert len(ids) == length - 1
    return ScriptedReply(name=name, when=(name,), output=(ScriptStep(ids=ids),), tokens_per_chunk=step)


def catalogue(cases: Sequence[tuple[int, int]], **places: int) -> ModelRegistry:
    """One model that answers each (length, step); `places` may say other `slots` and another `queue`."""
    form = words_format()
    info = EngineInfo(max_model_len=1 << 20, vocab_size=1 << 18, device="none", eos_ids=form.stop_ids[:1])
    replies = [reply(form, length, step) for length, step in cases]
    many: dict[str, int] = {"slots": 1024, **places}
    engine = ScriptedEngine(replies, encode=form.encode, decode=form.decode, info=info, **many)
    return ModelRegistry([ServedModel(names=("scripted",), engine=engine, format=form, created=0)])


def server(cases: Sequence[tuple[int, int]], **places: int) -> AbstractContextManager[tuple[int, int]]:
    """Process id and port of a server that answers these cases."""
    return child("tests.bench.scripted_server", json.dumps(cases), json.dumps(places))


@contextmanager
def child(module: str, *words: str) -> Iterator[tuple[int, int]]:
    """Process id and port of a module that prints the latter when it serves."""
    child = subprocess.Popen([sys.executable, "-m", module, *words], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout
        yield child.pid, int(child.stdout.readline())
    finally:
        child.terminate()
        child.wait(30)


def cpu(pid: int) -> float:
    """CPU seconds of a process so far, to the nanosecond (the clock id is Linux's, see `clock_getcpuclockid`)."""
    return time.clock_gettime((~pid << 3) | 2)


class _Reader:
    """One answer, read as it comes; keeps what came last, or all of it."""

    def __init__(self, port: int, request: bytes, *, whole: bool) -> None:
        self.said, self._whole = b"", whole
        self.line = socket.create_connection(("127.0.0.1", port))
        self.line.sendall(request)
        self.line.setblocking(False)

    def read(self) -> bool:
        """Take what is there; whether that was all there will be."""
        with suppress(BlockingIOError):
            while data := self.line.recv(1 << 18):
                self.said = self.said + data if self._whole else (self.said + data)[-4096:]
                if self.said.endswith(ENDED):
                    self.line.close()
                    return True
            raise ConnectionError(self.said[-300:])
        return False


def load(port: int, streams: int, length: int, step: int, *, whole: bool = False, waits: bool = False) -> list[bytes]:
    """Read one case by so many streams at once; the ends of the answers, or the whole of them.

    Readers look every millisecond. With `waits` they sleep until something comes: then each write of the server wakes a
    process of this machine, and the system counts that as the server's time.
    """
    body = json.dumps({"model": "scripted", "input": f"say {length} by {step}.", "stream": True}).encode()
    head = f"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    readers = [_Reader(port, head.encode() + body, whole=whole) for _ in range(streams)]
    left = {reader.line.fileno(): reader for reader in readers}
    with select.epoll() as poll:
        for number in left if waits else ():
            poll.register(number, select.EPOLLIN)
        while left:
            ready = [number for number, _ in poll.poll(None if waits else 0.001)]
            for number in ready or list(left):
                if left[number].read():
                    del left[number]
    for reader in readers:
        assert b'"output_tokens":%d,' % length in reader.said, reader.said[-500:]
    return [reader.said for reader in readers]


def chunks(answer: bytes) -> list[bytes]:
    """The chunks of the transfer encoding: one for each write of the server."""
    found, rest = [], answer.partition(b"\r\n\r\n")[2]
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        found.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    return found[:-1]


@contextmanager
def sink() -> Iterator[int]:
    """The port of a process that reads everything and says nothing."""
    child = subprocess.Popen([sys.executable, "-m", "tests.bench.scripted_server"], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout
        yield int(child.stdout.readline())
    finally:
        child.kill()
        child.wait(30)


def _swallow() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(listener.getsockname()[1], flush=True)
    poll, sockets = select.epoll(), {listener.fileno(): listener}
    poll.register(listener, select.EPOLLIN)
    while True:
        for number, _ in poll.poll():
            if number == listener.fileno():
                line = listener.accept()[0]
                sockets[line.fileno()] = line
                poll.register(line, select.EPOLLIN)
            elif not sockets[number].recv(1 << 16):
                sockets.pop(number).close()


async def write(port: int, streams: int, piece: bytes, count: int) -> float:
    """CPU seconds of this process to write a piece `count` times on so many connections: the least that is possible."""
    loop = asyncio.get_running_loop()
    lines = [(await loop.create_connection(asyncio.Protocol, "127.0.0.1", port))[0] for _ in range(streams)]
    begun = time.process_time()
    for _ in range(count):
        for line in lines:
            line.write(piece)
        await asyncio.sleep(0)
    spent = time.process_time() - begun
    for line in lines:
        line.close()
    return spent


def _listening(port: int) -> None:
    tune_gc()
    print(port, flush=True)


async def _serve(cases: Any, places: Any) -> None:
    settings = Settings(port=0, shutdown_timeout=0.1)
    with bind_socket(settings) as listener:
        home = create_context(settings, catalogue([(length, step) for length, step in cases], **places))
        # What is said of requests is a part of what they cost; nobody reads it.
        journal = AccessLog(console_format(Console(file=io.StringIO())), len)
        await run_server(home, listener, on_ready=_listening, on_request_done=journal.add_record)
        journal.flush_lines()


if __name__ == "__main__":
    if sys.argv[1:]:
        uvloop.run(_serve(*map(json.loads, sys.argv[1:])))
    else:
        _swallow()
