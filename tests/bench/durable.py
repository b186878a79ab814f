"""What it costs that nobody sees an event of a background response before it is in the file.

    python -m tests.bench.durable

A scripted model speaks a token every `PAUSE` seconds. Measured at the client, side by side in each round: the time to the
first piece of text, and the gaps between pieces, for turns that are not stored, stored, and stored in the background.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import uvloop

from antiphon.app.context import create_context
from antiphon.app.model_registry import ModelRegistry, ServedModel
from antiphon.app.server import bind_socket, run_server
from antiphon.app.settings import Settings
from antiphon.app.store.factory import open_store
from antiphon.engine.protocol import EngineInfo
from antiphon.engine.scripted.engine import ScriptedEngine
from antiphon.engine.scripted.script import ScriptedReply, ScriptStep
from tests.bench.scripted_server import WORDS, child, words_format

PAUSE = 0.01
LENGTH = 100
STREAMS = (1, 16, 64)
WAYS = {"not stored": {"store": False}, "stored": {"store": True}, "in the background": {"background": True}}


def catalogue() -> ModelRegistry:
    """One model that says `LENGTH` words, with a pause before each."""
    form = words_format()
    speak = [
        piece
        for n in range(LENGTH)
        for piece in (ScriptStep(pause=PAUSE), ScriptStep(ids=tuple(form.encode(WORDS[n % 9]))))
    ]
    info = EngineInfo(max_model_len=1 << 20, vocab_size=1 << 18, device="none", eos_ids=form.stop_ids[:1])
    reply = ScriptedReply(name="slow", output=tuple(speak))
    engine = ScriptedEngine([reply], encode=form.encode, decode=form.decode, info=info, max_num_seqs=1024)
    return ModelRegistry([ServedModel(names=("scripted",), engine=engine, format=form, created=0)])


class _Reader(asyncio.Protocol):
    """Sends one request; notes when each piece of text came."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.came: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport, self.begun = transport, time.perf_counter()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if b"output_text.delta" in data:
            self.came.append(time.perf_counter())
        if b"data: [DONE]" in data and not self.done.done():
            self.done.set_result(None)
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the server left"))


def read(port: int, streams: int, more: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Times to the first piece, and gaps, in milliseconds."""
    body = json.dumps({"model": "scripted", "input": "Go", "stream": True, **more}).encode()
    head = f"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"

    async def all_at_once() -> list[_Reader]:
        loop = asyncio.get_running_loop()
        made = [
            await loop.create_connection(lambda: _Reader(head.encode() + body), "127.0.0.1", port)
            for _ in range(streams)
        ]
        await asyncio.gather(*(reader.done for _, reader in made))
        return [reader for _, reader in made]

    readers = uvloop.run(all_at_once())
    first = [(reader.came[0] - reader.begun - PAUSE) * 1e3 for reader in readers]
    gaps = [(b - a) * 1e3 for reader in readers for a, b in zip(reader.came, reader.came[1:], strict=False)]
    return first, gaps


def measure(rounds: int) -> dict[tuple[int, str], tuple[list[float], list[float]]]:
    """All samples, by number of streams and way."""
    found: dict[tuple[int, str], tuple[list[float], list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder, child("tests.bench.durable", str(Path(folder) / "r.db")) as (_, port):
        for number in range(-1, rounds):
            for streams in STREAMS:
                for way, more in WAYS.items():
                    first, gaps = read(port, streams, more)
                    if number >= 0:
                        kept = found.setdefault((streams, way), ([], []))
                        kept[0].extend(first)
                        kept[1].extend(gaps)
    return found


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description="What commit-before-show costs.")
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print(
        f"Milliseconds; a token every {PAUSE * 1e3:.0f} ms, {LENGTH} tokens, medians of {rounds} rounds (99 % in brackets)\n"
    )
    print("| streams | way | first text | gap |\n|---|---|---|---|")
    for (streams, way), (first, gaps) in measure(rounds).items():
        cells = (f"{statistics.median(one):.2f} ({sorted(one)[int(len(one) * 0.99) - 1]:.2f})" for one in (first, gaps))
        print(f"| {streams} | {way} | {' | '.join(cells)} |")


async def _serve(path: str) -> None:
    settings = Settings(port=0, shutdown_timeout=0.1, store_file=Path(path))
    store = open_store(settings)
    with bind_socket(settings) as listener:
        home = create_context(settings, catalogue(), store=store)
        await run_server(home, listener, on_ready=lambda port: print(port, flush=True), on_request_done=lambda _: None)
    await store.close()


if __name__ == "__main__":
    if sys.argv[1:2] and not sys.argv[1].startswith("-"):
        uvloop.run(_serve(sys.argv[1]))
    else:
        main()
