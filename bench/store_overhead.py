"""Latency that durable responses cost: their events are not visible before they are in the store.

    python -m bench.store_overhead

A scripted model generates a token every `TOKEN_INTERVAL_S` seconds. The client measures TTFT and ITL of responses that
are not stored, stored with `--show-uncommitted` and without it, and in background mode, one after the other in each
round. It does so with a SQLite file
and, where PostgreSQL is installed, with a database on this machine that syncs its commits.
"""

import argparse
import itertools
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import uvloop

from antiphon.app.context import create_context
from antiphon.app.lifecycle.listeners import bind_socket
from antiphon.app.main.server import run_server
from antiphon.app.options.settings import Settings
from antiphon.app.registry.model_registry import ModelRegistry, ServedModel
from antiphon.app.store.factory import open_store
from antiphon.engine.protocol import EngineInfo
from antiphon.engine.scripted.engine import ScriptedEngine
from antiphon.engine.scripted.script import ScriptedReply, ScriptStep
from bench.scripted_server import WORDS, build_format, start_server_module
from bench.stats import quantile
from bench.stream_client import StreamClient, read_to_end
from tests.postgres_server import find_programs, run_postgres

TOKEN_INTERVAL_S = 0.01
OUTPUT_TOKENS = 100
STREAM_COUNTS = (1, 16, 64)
MODES = {
    "not stored": ({"store": False}, False),
    "stored, shown early": ({"store": True}, True),
    "stored": ({"store": True}, False),
    "background": ({"background": True}, False),
}
"""Request fields by the name of the mode, and whether the server shows events before they are committed."""
Latencies = tuple[list[float], list[float]]
"""TTFT of every stream and ITL of every piece of text, in milliseconds."""


def build_registry() -> ModelRegistry:
    """Returns a registry with one model that generates `OUTPUT_TOKENS` words, with a pause before each."""
    model_format = build_format()
    output = [
        step
        for index in range(OUTPUT_TOKENS)
        for step in (
            ScriptStep(pause=TOKEN_INTERVAL_S),
            ScriptStep(ids=tuple(model_format.encode(WORDS[index % len(WORDS)]))),
        )
    ]
    eos_ids = model_format.stop_ids[:1]
    engine = ScriptedEngine(
        [ScriptedReply(name="slow", output=tuple(output))],
        encode=model_format.encode,
        decode=model_format.decode,
        info=EngineInfo(max_model_len=1 << 20, vocab_size=1 << 18, device="none", eos_ids=eos_ids),
        max_num_seqs=1024,
    )
    return ModelRegistry([ServedModel(names=("scripted",), engine=engine, format=model_format, created=0)])


def measure_latencies(port: int, streams: int, fields: dict[str, Any]) -> Latencies:
    """Sends concurrent requests with these fields. The TTFT excludes the scripted pause before the first token."""
    body = {"model": "scripted", "input": "Go", "stream": True, **fields}
    clients = [StreamClient(port, body) for _ in range(streams)]
    read_to_end(clients, blocking=True)
    ttfts = [(client.arrivals[0] - client.started_at - TOKEN_INTERVAL_S) * 1e3 for client in clients]
    itls = [(b - a) * 1e3 for client in clients for a, b in zip(client.arrivals, client.arrivals[1:], strict=False)]
    return ttfts, itls


def run_rounds(rounds: int) -> dict[tuple[int, str, str], Latencies]:
    """Returns all samples by (number of streams, mode, store)."""
    samples: dict[tuple[int, str, str], Latencies] = {}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stores = {("SQLite", early): str(Path(folder) / f"{early}.db") for early in (False, True)}
        if find_programs() is not None:
            server = stack.enter_context(run_postgres({"fsync": "on"}))
            stores |= {("PostgreSQL", early): server.create_database() for early in (False, True)}
        ports = {
            place: stack.enter_context(start_server_module("bench.store_overhead", store, *["early"] * place[1]))[1]
            for place, store in stores.items()
        }
        for round_index in range(-1, rounds):  # the first round is the warm-up
            names = dict.fromkeys(name for name, _ in ports)
            for streams, (mode, (fields, early)), name in itertools.product(STREAM_COUNTS, MODES.items(), names):
                ttfts, itls = measure_latencies(ports[name, early], streams, fields)
                if round_index >= 0:
                    all_ttfts, all_itls = samples.setdefault((streams, mode, name), ([], []))
                    all_ttfts.extend(ttfts)
                    all_itls.extend(itls)
    return samples


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds, default 5")
    rounds = parser.parse_args().rounds
    script = f"{OUTPUT_TOKENS} tokens, one every {TOKEN_INTERVAL_S * 1e3:.0f} ms"
    print(f"Milliseconds, medians of {rounds} rounds, p99 in parentheses; {script}\n")
    print("| streams | mode | store | TTFT | ITL |\n|---|---|---|---|---|")
    for (streams, mode, store), latencies in run_rounds(rounds).items():
        cells = (f"{statistics.median(values):.2f} ({quantile(values, 0.99):.2f})" for values in latencies)
        print(f"| {streams} | {mode} | {store} | {' | '.join(cells)} |")


async def _serve(store_name: str, *, early: bool) -> None:
    place = {"store_url": store_name} if store_name.startswith("postgresql:") else {"store_file": Path(store_name)}
    settings = Settings(port=0, shutdown_timeout=0.1, show_uncommitted=early, **place)  # type: ignore[arg-type]
    store = open_store(settings)
    with bind_socket(settings) as listener:
        context = create_context(settings, build_registry(), store=store)
        await run_server(
            context, listener, on_ready=lambda port: print(port, flush=True), on_request_done=lambda _: None
        )
    await store.close()


if __name__ == "__main__":
    if sys.argv[1:2] and not sys.argv[1].startswith("-"):
        uvloop.run(_serve(sys.argv[1], early="early" in sys.argv[2:]))
    else:
        main()
