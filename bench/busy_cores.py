"""Measures the engine's default number of threads against one thread, alone and beside busy processes: `make bench`.

    python -m bench.busy_cores --model tiny --streams 1,4 --rounds 5

One process without end runs for each core in the second condition. The conditions and the servers take turns in every
round. The last column is the result: how many times slower the default is than the faster of the two.
"""

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bench.peers import PEERS, Peer
from bench.random_models import SHAPES, create_model
from bench.servers import PeerServer, ServerPool, make_prompt
from bench.stats import TIMES, format_number, markdown_table, median

PROMPT_TOKENS, OUTPUT_TOKENS = 64, 64
BUSY_PROGRAM = "while True: pass"
SETTLING_S = 0.5
"""Seconds after which the busy processes have started."""

Throughputs = dict[tuple[str, int, str], list[float]]
"""Output tokens per second by condition, number of streams and server, one for each round."""


def peer_with_threads(threads: int | None) -> Peer:
    """Returns Antiphon with int8 layers and this number of threads; None for the default."""
    peer = PEERS["antiphon-int8"]
    if threads is None:
        return replace(peer, name="antiphon-default")

    def build_command(model: Path, port: int) -> list[str]:
        return [*peer.build_command(model, port), "--threads", str(threads)]

    return replace(peer, name=f"antiphon-{threads}-thread", build_command=build_command)


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Runs processes that each use a whole core, inside the `with` block."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY_PROGRAM]) for _ in range(count)]
    try:
        time.sleep(SETTLING_S if count else 0)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


async def measure(servers: list[PeerServer], streams: list[int], rounds: int, processes: int) -> Throughputs:
    """Measures every server under every load, without and with busy processes."""
    results: Throughputs = {}
    for index in range(rounds):
        for condition, count in (("alone", 0), (f"beside {processes} busy processes", processes)):
            with busy_processes(count):
                for load in streams:
                    for server in servers[:: 1 if index % 2 == 0 else -1]:
                        prompts = [make_prompt(f"{condition} {index} {n}", PROMPT_TOKENS) for n in range(load)]
                        sample = await server.run_prompts(prompts, OUTPUT_TOKENS)
                        results.setdefault((condition, load, server.peer.name), []).append(sample.throughput)
    return results


def render(results: Throughputs, names: list[str]) -> str:
    """Returns the table of medians."""
    rows = []
    for condition, load in dict.fromkeys((condition, load) for condition, load, _ in results):
        speeds = [median(results[condition, load, name]) for name in names]
        cells = [format_number(speed) for speed in speeds]
        rows.append([condition, str(load), *cells, f"{max(speeds) / speeds[0]:.2f}{TIMES}"])
    return markdown_table(["condition", "streams", *(f"{name}, tok/s" for name in names), "default is slower by"], rows)


async def run(args: argparse.Namespace) -> str:
    """Starts both servers, measures, and returns the table."""
    streams = [int(text) for text in args.streams.split(",")]
    peers = [peer_with_threads(threads) for threads in (None, 1)]
    with ServerPool(args.model, create_model(args.model)) as pool:
        servers = [await pool.start(peer, max(streams)) for peer in peers]
        results = await measure(servers, streams, args.rounds, args.processes)
    return render(results, [peer.name for peer in peers])


def main() -> None:
    """Parses the command line and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[*SHAPES], default="small", help="model to serve, default small")
    parser.add_argument("--streams", default="1,4", help="numbers of concurrent streams, default 1,4")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds, default 5")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="busy processes, default one for each core"
    )
    print(asyncio.run(run(parser.parse_args())))


if __name__ == "__main__":
    main()
