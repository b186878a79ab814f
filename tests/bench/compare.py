"""Antiphon and its peers on one model, in one run, taking turns: `make bench`.

    python -m tests.bench.compare --model small --servers antiphon,antiphon-int8,vllm-fp32 --streams 1,4,16 --rounds 3

Every server gets the same prompts. They are started one after the other, answer a few requests that are not counted,
and then take turns, round by round; whoever cannot be quiet is stopped meanwhile. Each sample is printed and kept in
the JSON file as it comes, so that a run that is ended early is not lost.
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
from typing import Any

from antiphon.engine.embedded import MODEL_DIR
from tests.bench.figures import figure
from tests.bench.install import HOME
from tests.bench.models import SHAPES, build
from tests.bench.peers import PEERS
from tests.bench.report import markdown
from tests.bench.scenarios import TITLES, BenchError, play
from tests.bench.servers import Fleet, NotStartedError, Server, prompt

PROMPT = 128
OUTPUT = 128


class Run:
    """One run: what was asked for, and the record that grows."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        self.until = time.monotonic() + asked.limit_minutes * 60
        self.folder = MODEL_DIR if asked.model == "embedded" else build(asked.model)
        self.record: dict[str, Any] = {
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "machine": machine(),
            "model": {"name": asked.model, "parameters": parameters(self.folder)},
            "prompt": PROMPT,
            "output": asked.tokens,
            "servers": {},
            "samples": [],
            "scenarios": {},
        }

    async def play(self) -> None:
        """Start, measure, end."""
        with Fleet(self.asked.model, self.folder) as fleet:
            servers = [server for name in self.asked.servers if (server := await self.start(fleet, name))]
            for turn in range(self.asked.rounds):
                await self.round(turn, servers)
            for name in self.asked.scenarios:
                for server in servers:
                    if server.peer.ours:
                        await self.scenario(name, server)

    async def start(self, fleet: Fleet, name: str) -> Server | None:
        """One server, or the reason why not."""
        peer = PEERS[name]
        told: dict[str, Any] = {}
        self.record["servers"][name] = told
        try:
            server = await fleet.start(peer, max(self.asked.streams))
        except NotStartedError as error:
            told["absent"] = str(error)
            say(f"{name}: left out: {error}")
            return None
        told |= {"versions": peer.versions(), "words": server.words, "started": server.started, "idle": server.idle}
        told |= {"peak": server.process.peak()}
        if peer.gpu:
            told |= {"bandwidth": read_rate("cuda")}
        told |= {"bytes_per_step": self.record["model"]["parameters"] * peer.bytes_per_weight}
        say(
            f"{name}: first token after {server.started:.1f} s; {server.idle:.2f} cores while idle; {' '.join(server.words)}"
        )
        return server

    async def round(self, turn: int, servers: list[Server]) -> None:
        """Every server under every load, in an order that moves on by one each round."""
        shift = turn % len(servers) if servers else 0
        for streams in self.asked.streams:
            for server in [*servers[shift:], *servers[:shift]]:
                if streams <= server.peer.most and time.monotonic() < self.until:
                    await self.sample(turn, streams, server)

    async def sample(self, turn: int, streams: int, server: Server) -> None:
        """One server under one load."""
        prompts = [prompt(f"{turn} {streams} {place}", PROMPT) for place in range(streams)]
        left = max(self.until - time.monotonic(), 30.0)
        with server.alone():
            before = server.process.cpu()
            try:
                found = asdict(await server.run(prompts, self.asked.tokens, min(left, 600.0)))
            except (OSError, TimeoutError) as error:
                say(f"round {turn}  {server.peer.name}  {streams} streams: {type(error).__name__} {error}")
                return
            found["cpu"] = (server.process.cpu() - before) / max(found["tokens"], 1)
        self.record["samples"].append({"server": server.peer.name, "round": turn, **found})
        self.record["servers"][server.peer.name]["peak"] = server.process.peak()
        self.keep()
        told = f"{figure(found['rate'])} tok/s, first {figure(found['first'] * 1e3)} ms, gap {figure(found['gap'] * 1e3)} ms"
        say(f"round {turn}  {server.peer.name:16} {streams:3} streams: {told}  {'; '.join(found['errors'][:1])}")

    async def scenario(self, name: str, server: Server) -> None:
        """One scenario on one server."""
        if time.monotonic() > self.until:
            return
        try:
            with server.alone():
                records = await play(name, server, self.asked.repeat)
        except (BenchError, OSError, TimeoutError) as error:
            say(f"{name}: {server.peer.name}: {type(error).__name__} {error}")
            return
        for record in records:
            say(
                f"{name}: "
                + ", ".join(
                    f"{key} {value if isinstance(value, str) else figure(value)}" for key, value in record.items()
                )
            )
        self.record["scenarios"].setdefault(TITLES[name], []).extend(records)
        self.keep()

    def keep(self) -> None:
        """Write what there is."""
        if self.asked.json:
            self.asked.json.parent.mkdir(parents=True, exist_ok=True)
            self.asked.json.write_text(json.dumps(self.record, indent=1), encoding="utf-8")


def say(line: str) -> None:
    """Told at once, with the time, beside the table that comes last."""
    print(f"{datetime.now(UTC):%H:%M:%S} {line}", file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    """What it runs on; the rate of its memory is measured now, while nothing else runs."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cpu": name, "cores": os.cpu_count(), "memory": memory, "bandwidth": read_rate("cpu")}


def read_rate(device: str) -> float:
    """GB/s at which a device's memory is read."""
    words = [sys.executable, "-m", "tests.bench.memory", device]
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def parameters(folder: Path) -> int:
    """How many weights the model has, by the head of its file."""
    with (folder / "model.safetensors").open("rb") as file:
        head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return sum(math.prod(told["shape"]) for name, told in head.items() if name != "__metadata__")


def _listed(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def arguments() -> argparse.Namespace:
    """The words of the command line."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--model", choices=[*SHAPES, "oss", "embedded"], default="tiny")
    words.add_argument(
        "--servers", type=_listed, default=[name for name in PEERS if not PEERS[name].gpu], help=f"of {','.join(PEERS)}"
    )
    words.add_argument("--streams", type=lambda text: [int(word) for word in _listed(text)], default=[1, 4, 16])
    words.add_argument("--rounds", type=int, default=3)
    words.add_argument("--tokens", type=int, default=OUTPUT, help="tokens of output")
    words.add_argument(
        "--scenarios", type=_listed, default=[], help=f"of {','.join(TITLES)}, after the rounds, on Antiphon"
    )
    words.add_argument("--repeat", type=int, default=3, help="times that a scenario is played")
    words.add_argument("--limit-minutes", type=float, default=60.0, help="nothing new is begun after that")
    words.add_argument("--json", type=Path, help="where the record is kept")
    words.add_argument("--out", type=Path, help="where the Markdown goes as well")
    asked = words.parse_args()
    if unknown := {*asked.servers} - {*PEERS} | {*asked.scenarios} - {*TITLES}:
        words.error(f"unknown: {', '.join(sorted(unknown))}")
    return asked


def main() -> None:
    """Run, and print the page, however the run ended."""
    asked = arguments()
    HOME.mkdir(exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    run = Run(asked)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run.play())
    run.keep()
    page = markdown(run.record)
    if asked.out:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
