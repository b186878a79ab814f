"""Measures Antiphon and its peers on one model, in one run, in alternating rounds: `make bench`.

    python -m bench.compare --model small --servers antiphon,antiphon-int8,vllm-fp32 --streams 1,4,16 --rounds 3

All servers get the same prompts. They are started one by one and warmed up with requests that are not measured. Then
they take turns in every round. A server that uses the CPU without requests is paused while others are measured. Each
sample is printed and written to the JSON file as soon as it is measured, so that an interrupted run is not lost.
"""

import argparse
import asyncio
import contextlib
import json
import math
import os
import platform
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from antiphon.engine.embedded import MODEL_DIR
from bench.install import BENCH_DIR
from bench.peers import PEERS
from bench.random_models import create_model, parse_model_name
from bench.report import render_report
from bench.scenarios import SCENARIO_TITLES, BenchError, run_scenario
from bench.servers import NotStartedError, PeerServer, ServerPool, make_prompt
from bench.stats import format_number

PROMPT_TOKENS = 128
DEFAULT_OUTPUT_TOKENS = 128
MXFP4_BYTES_PER_WEIGHT = 0.53125
MIN_SAMPLE_TIMEOUT_S = 30.0
MAX_SAMPLE_TIMEOUT_S = 600.0


class BenchmarkRun:
    """One run: its options, and the record of its results, which is the content of the JSON file."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.deadline = time.monotonic() + args.limit_minutes * 60
        self.model_dir = MODEL_DIR if args.model == "embedded" else create_model(args.model)
        self.record: dict[str, Any] = {
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "machine": describe_machine(),
            "model": {"name": args.model, "parameters": count_weights(self.model_dir).total},
            "prompt_tokens": PROMPT_TOKENS,
            "output_tokens": args.tokens,
            "servers": {},
            "samples": [],
            "scenarios": {},
        }

    async def run(self) -> None:
        """Starts the servers, measures all rounds and scenarios, and terminates the servers."""
        with ServerPool(self.args.model, self.model_dir) as pool:
            servers = [server for name in self.args.servers if (server := await self.start_server(pool, name))]
            for round_index in range(self.args.rounds):
                await self.measure_round(round_index, servers)
            for name in self.args.scenarios:
                for server in servers:
                    if server.peer.is_antiphon:
                        await self.measure_scenario(name, server)

    async def start_server(self, pool: ServerPool, name: str) -> PeerServer | None:
        """Starts a server and records its start-up. If it cannot be started, records the reason and returns None."""
        peer = PEERS[name]
        entry: dict[str, Any] = {}
        self.record["servers"][name] = entry
        try:
            server = await pool.start(peer, max(self.args.streams), self.args.tokens)
        except NotStartedError as error:
            entry["skipped"] = str(error)
            log(f"{name}: skipped: {error}")
            return None
        entry |= {
            "versions": peer.read_versions(),
            "command": server.command,
            "startup_s": server.startup_s,
            "idle_cores": server.idle_cores,
            "startup_memory_bytes": server.startup_memory_bytes,
            "peak_memory_bytes": server.process.peak_memory(),
        }
        if peer.needs_gpu:
            entry["bandwidth_gb_s"] = measure_bandwidth("cuda")
        counts = count_weights(self.model_dir)
        entry["bytes_per_step"] = counts.dense * peer.bytes_per_weight
        entry["expert_bytes"] = counts.experts * min(peer.bytes_per_weight, MXFP4_BYTES_PER_WEIGHT)
        entry["expert_share"] = expert_share(self.model_dir)
        startup = f"first token after {server.startup_s:.1f} s; {server.idle_cores:.2f} cores idle"
        log(f"{name}: {startup}; {' '.join(server.command)}")
        return server

    async def measure_round(self, round_index: int, servers: list[PeerServer]) -> None:
        """Measures every server under every load. The order of the servers is rotated by one in each round."""
        shift = round_index % len(servers) if servers else 0
        for streams in self.args.streams:
            for server in [*servers[shift:], *servers[:shift]]:
                if streams <= server.peer.max_streams and time.monotonic() < self.deadline:
                    await self.measure_sample(round_index, streams, server)

    async def measure_sample(self, round_index: int, streams: int, server: PeerServer) -> None:
        """Measures one server under one load and records the sample."""
        prompts = [make_prompt(f"{round_index} {streams} {index}", PROMPT_TOKENS) for index in range(streams)]
        timeout_s = min(max(self.deadline - time.monotonic(), MIN_SAMPLE_TIMEOUT_S), MAX_SAMPLE_TIMEOUT_S)
        with server.resumed():
            cpu_before = server.process.cpu_seconds()
            try:
                sample = asdict(await server.run_prompts(prompts, self.args.tokens, timeout_s))
            except (OSError, TimeoutError) as error:
                log(f"round {round_index}  {server.peer.name}  {streams} streams: {type(error).__name__} {error}")
                return
            cpu_s = server.process.cpu_seconds() - cpu_before
            sample["cpu_s_per_token"] = cpu_s / max(sample["output_tokens"], 1)
        self.record["samples"].append({"server": server.peer.name, "round": round_index, **sample})
        self.record["servers"][server.peer.name]["peak_memory_bytes"] = server.process.peak_memory()
        self.save()
        ttft, itl = (format_number(sample[key] * 1e3) for key in ("ttft_s", "itl_s"))
        result = f"{format_number(sample['throughput'])} tok/s, TTFT {ttft} ms, ITL {itl} ms"
        error_text = "; ".join(sample["errors"][:1])
        log(f"round {round_index}  {server.peer.name:16} {streams:3} streams: {result}  {error_text}")

    async def measure_scenario(self, name: str, server: PeerServer) -> None:
        """Runs one scenario on one server and records its results."""
        if time.monotonic() > self.deadline:
            return
        try:
            with server.resumed():
                results = await run_scenario(name, server, self.args.repeat)
        except (BenchError, OSError, TimeoutError) as error:
            log(f"{name}: {server.peer.name}: {type(error).__name__} {error}")
            return
        for result in results:
            cells = {key: value if isinstance(value, str) else format_number(value) for key, value in result.items()}
            log(f"{name}: {', '.join(f'{key} {cell}' for key, cell in cells.items())}")
        self.record["scenarios"].setdefault(SCENARIO_TITLES[name], []).extend(results)
        self.save()

    def save(self) -> None:
        """Writes the record to the JSON file, if one was given."""
        if self.args.json:
            self.args.json.parent.mkdir(parents=True, exist_ok=True)
            self.args.json.write_text(json.dumps(self.record, indent=1), encoding="utf-8")


def log(line: str) -> None:
    """Prints a line with the time to stderr, since stdout gets only the report."""
    print(f"{datetime.now(UTC):%H:%M:%S} {line}", file=sys.stderr, flush=True)


def describe_machine() -> dict[str, Any]:
    """Returns CPU, cores, memory and memory bandwidth. The bandwidth is measured now, before any server runs."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_bytes": memory,
        "bandwidth_gb_s": measure_bandwidth("cpu"),
    }


def measure_bandwidth(device: str) -> float:
    """Returns a device's memory read bandwidth in GB/s."""
    command = [sys.executable, "-m", "bench.memory_bandwidth", device]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


class WeightCounts(NamedTuple):
    """Numbers of weights: of the model, of those that every step reads, and of the experts in MXFP4."""

    total: int
    dense: int
    experts: int


def count_weights(model_dir: Path) -> WeightCounts:
    """Counts weights by the header of model.safetensors."""
    with (model_dir / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    sizes = {name: math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    experts = sum(2 * size for name, size in sizes.items() if name.endswith("_blocks"))
    dense = sum(size for name, size in sizes.items() if not name.endswith(("_blocks", "_scales")))
    # A step reads only some rows of the embedding, unless it is the output layer, too.
    lookup = sizes["model.embed_tokens.weight"] if "lm_head.weight" in sizes else 0
    return WeightCounts(dense + experts, dense - lookup, experts)


def expert_share(model_dir: Path) -> float:
    """Returns the share of a layer's experts that compute a token; 1 for a model without experts."""
    config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    return float(config.get("num_experts_per_tok", 1) / config.get("num_local_experts", 1))


def _split_list(text: str) -> list[str]:
    return [item for item in text.split(",") if item]


def parse_args() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model",
        type=lambda name: name if name == "embedded" else parse_model_name(name),
        default="tiny",
        help="model to serve: small, tiny, oss, oss20b, oss20b-LAYERS, osstiny, embedded; default tiny",
    )
    parser.add_argument(
        "--servers",
        type=_split_list,
        default=[name for name in PEERS if not PEERS[name].needs_gpu],
        help=f"comma-separated, of {','.join(PEERS)}; default: all without a GPU",
    )
    parser.add_argument(
        "--streams",
        type=lambda text: [int(item) for item in _split_list(text)],
        default=[1, 4, 16],
        help="numbers of concurrent streams, default 1,4,16",
    )
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds, default 3")
    parser.add_argument(
        "--tokens", type=int, default=DEFAULT_OUTPUT_TOKENS, help="output tokens per request, default %(default)s"
    )
    parser.add_argument(
        "--scenarios",
        type=_split_list,
        default=[],
        help=f"comma-separated, of {','.join(SCENARIO_TITLES)}; run after the rounds, on Antiphon only",
    )
    parser.add_argument("--repeat", type=int, default=3, help="repetitions of each scenario, default 3")
    parser.add_argument(
        "--limit-minutes", type=float, default=60.0, help="start no measurement after this time, default 60"
    )
    parser.add_argument("--json", type=Path, help="file for the record")
    parser.add_argument("--out", type=Path, help="file for the Markdown report, in addition to stdout")
    args = parser.parse_args()
    if unknown := {*args.servers} - {*PEERS} | {*args.scenarios} - {*SCENARIO_TITLES}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    return args


def main() -> None:
    """Runs the benchmark and prints the report, also after an interruption."""
    args = parse_args()
    BENCH_DIR.mkdir(exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    run = BenchmarkRun(args)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run.run())
    run.save()
    report = render_report(run.record)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(report, encoding="utf-8")
    print(report)


if __name__ == "__main__":
    main()
