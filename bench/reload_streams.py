"""The longest time between two events of a server's streams, before its keys are reloaded and while they are.

`bench.keys` runs it. The server, in a process of its own, has the scripted engine with a place for each stream.
"""

import argparse
import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop

from antiphon.app.context import create_context
from antiphon.app.keys.key_file import read_key_file
from antiphon.app.lifecycle.listeners import bind_socket
from antiphon.app.main.launch import tune_gc
from antiphon.app.main.server import run_server
from antiphon.app.options.settings import Settings
from antiphon.app.registry.model_registry import ModelRegistry, ServedModel
from antiphon.app.store.factory import open_store
from antiphon.engine.protocol import EngineInfo
from antiphon.engine.scripted.engine import ScriptedEngine
from bench.scripted_server import build_format, build_reply, case_prompt

NUM_RELOADS = 3
STREAM_KEY = "sk-streams"
TOKEN_DELAY_S = 0.2
"""Time between two tokens of a stream."""
NUM_TOKENS = 3_000
"""Tokens of a stream: more than it generates until it is cut."""
QUIET_S = 3.0


def write_keys(path: Path, count: int, version: int) -> None:
    tables = (
        f'[[key]]\nowner = "owner-{n}"\nsha256 = "{hashlib.sha256(f"{version}-{n}".encode()).hexdigest()}"\n'
        "requests_per_minute = 60\nmax_concurrent = 4\n"
        for n in range(count)
    )
    path.write_text(f'[[key]]\nowner = "streams"\nkey = "{STREAM_KEY}"\n\n' + "\n".join(tables), encoding="utf-8")


def measure_reload_streams(num_streams: int, num_keys: int) -> None:
    """Prints the longest time between two events of streams, before reloads and during them."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "keys.toml"
        write_keys(path, num_keys, 0)
        gaps = asyncio.run(_measure_gaps(path, num_streams, num_keys))
    for name, times in gaps.items():
        sys.stdout.write(
            f"{num_streams} streams, {num_keys} keys, {name}: longest time between two events {max(times) * 1e3:.0f} ms, "
            f"median {statistics.median(times) * 1e3:.0f} ms, of a delay of {TOKEN_DELAY_S * 1e3:.0f} ms\n"
        )


async def _measure_gaps(path: Path, num_streams: int, num_keys: int) -> dict[str, list[float]]:
    """Returns the seconds between two events of each stream, before reloads and during them."""
    arrivals: list[list[float]] = [[] for _ in range(num_streams)]
    # Written first: this process also reads the streams.
    versions = [path.with_name(f"keys-{number}.toml") for number in range(NUM_RELOADS)]
    for number, version in enumerate(versions, 1):
        write_keys(version, num_keys, number)
    tune_gc()
    async with _start_server(path, num_streams) as server, asyncio.TaskGroup() as group:
        port = await _read_number(server)
        streams = [group.create_task(_read_stream(port, times)) for times in arrivals]
        while not all(arrivals):
            await asyncio.sleep(0.1)
        await asyncio.sleep(QUIET_S)
        changed = time.perf_counter()
        for version in versions:
            version.replace(path)
            os.kill(server.pid, signal.SIGHUP)
            if await _read_number(server) != num_keys + 1:
                raise RuntimeError("the keys could not be reloaded")
        ended = time.perf_counter()
        for stream in streams:
            stream.cancel()
    return {
        name: [
            later - earlier
            for times in arrivals
            for earlier, later in itertools.pairwise(times)
            if start <= later < end
        ]
        for name, start, end in (("before", changed - QUIET_S, changed), ("during reloads", changed, ended))
    }


@contextlib.asynccontextmanager
async def _start_server(path: Path, num_streams: int) -> AsyncIterator[asyncio.subprocess.Process]:
    command = (sys.executable, "-m", "bench.reload_streams", str(path), str(num_streams))
    server = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        yield server
    finally:
        server.terminate()
        await server.wait()


async def _read_number(server: asyncio.subprocess.Process) -> int:
    """Returns the number in the next line that is one; the others are those of the log."""
    assert server.stdout is not None
    while line := await server.stdout.readline():
        if line.strip().isdigit():
            return int(line)
    raise RuntimeError("the server has ended")


async def _read_stream(port: int, arrivals: list[float]) -> None:
    """Notes the times at which text arrives."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    prompt = case_prompt(NUM_TOKENS, 1)
    body = json.dumps({"model": "scripted", "input": prompt, "stream": True, "store": False}).encode()
    head = f"POST /v1/responses HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {STREAM_KEY}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    with contextlib.closing(writer):
        while data := await reader.read(1 << 16):
            if b"output_text.delta" in data:
                arrivals.append(time.perf_counter())
        raise ConnectionError("a stream has ended")


async def _serve(path: Path, num_streams: int) -> None:
    """Serves, and prints the port, and after each reload the number of keys."""
    model_format = build_format()
    info = EngineInfo(max_model_len=1 << 20, vocab_size=1 << 18, device="none", eos_ids=model_format.stop_ids[:1])
    engine = ScriptedEngine(
        [build_reply(model_format, NUM_TOKENS, 1)],
        encode=model_format.encode,
        decode=model_format.decode,
        info=info,
        delay=TOKEN_DELAY_S,
        max_num_seqs=num_streams,
    )
    registry = ModelRegistry([ServedModel(names=("scripted",), engine=engine, format=model_format, created=0)])
    settings = Settings(port=0, shutdown_timeout=0.1, file_keys=read_key_file(path), key_file=path)
    with bind_socket(settings) as listener:
        store = open_store(settings)
        context = create_context(settings, registry, store=store)
        context.reloader.on_reload.append(lambda report: print(report.keys, flush=True))
        await run_server(context, listener, on_ready=_report_ready, on_request_done=lambda _: None)
        await store.close()


def _report_ready(port: int) -> None:
    tune_gc()
    print(port, flush=True)


def main() -> None:
    """Serves with a key file and a number of streams."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("num_streams", type=int)
    uvloop.run(_serve(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
