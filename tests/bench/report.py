"""What a run found, as Markdown. It reads the content of the JSON file and nothing else, so an old run can be told again:

.venv/bin/python -m tests.bench.report FILE.json
"""

import json
import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.bench.figures import NONE, TIMES, figure, median, paired, table

Run = dict[str, Any]
HOW = (
    "Streaming over HTTP, temperature 1; medians over rounds in which the servers take turns; a ratio is the median of "
    "the ratios of each round."
)


def rounds(run: Run, server: str, streams: int, name: str) -> dict[int, float]:
    """Round to one figure of the samples without an error."""
    return {
        sample["round"]: sample[name]
        for sample in run["samples"]
        if sample["server"] == server and sample["streams"] == streams and not sample["errors"]
    }


def typical(run: Run, server: str, streams: int, name: str) -> float:
    """The median over the rounds."""
    return median(list(rounds(run, server, streams, name).values()))


def measured(run: Run) -> tuple[list[str], list[int]]:
    """The servers and numbers of streams that have samples, as they were asked for."""
    seen = {(sample["server"], sample["streams"]) for sample in run["samples"]}
    return [name for name in run["servers"] if any(name == server for server, _ in seen)], sorted({n for _, n in seen})


def speeds(run: Run) -> str:
    """Tokens per second, gap and first token for each server and number of streams."""
    servers, loads = measured(run)

    def cell(server: str, streams: int) -> str:
        rate, gap, first = (typical(run, server, streams, name) for name in ("rate", "gap", "first"))
        return NONE if math.isnan(rate) else f"{figure(rate)}, {figure(gap * 1e3)}, {figure(first * 1e3)}"

    head = [
        "server",
        *(f"{n} streams: tok/s, gap ms, first ms" if n > 1 else "1 stream: tok/s, gap ms, first ms" for n in loads),
    ]
    return table(head, [[server, *(cell(server, n) for n in loads)] for server in servers])


def ratios(run: Run, ours: str) -> str:
    """How many times as many tokens per second we bring, and what part of the time to the first token we need."""
    servers, loads = measured(run)
    peers = [server for server in servers if not server.startswith("antiphon")]

    def cell(peer: str, streams: int) -> str:
        rate, first = (
            paired(rounds(run, ours, streams, name), rounds(run, peer, streams, name)) for name in ("rate", "first")
        )
        return NONE if math.isnan(rate) else f"{rate:.2f}{TIMES} ({first:.2f})"

    rows = [[peer, *(cell(peer, n) for n in loads)] for peer in peers]
    rows.append(["**best peer**", *(_against_best(run, ours, peers, n) for n in loads)])
    return table([f"{ours} against", *(f"{n}: tok/s (first token)" for n in loads)], rows)


def _against_best(run: Run, ours: str, peers: list[str], streams: int) -> str:
    """Against whichever peer is best at this load, for each of the two figures."""

    def best(name: str, choose: Callable[[Iterable[str]], str]) -> float:
        there = [peer for peer in peers if rounds(run, peer, streams, name)]
        return (
            paired(rounds(run, ours, streams, name), rounds(run, choose(there), streams, name)) if there else math.nan
        )

    rate = best("rate", lambda there: max(there, key=lambda peer: typical(run, peer, streams, "rate")))
    first = best("first", lambda there: min(there, key=lambda peer: typical(run, peer, streams, "first")))
    return NONE if math.isnan(rate) else f"**{rate:.2f}{TIMES}** (**{first:.2f}**)"


def costs(run: Run) -> str:
    """Start-up, memory, CPU and how close a single stream comes to what the memory allows."""
    servers, loads = measured(run)
    most = loads[-1]
    rows = []
    for name in servers:
        told = run["servers"][name]
        shortest = told["bytes_per_step"] / (told.get("bandwidth", run["machine"]["bandwidth"]) * 1e9)
        rows.append(
            [
                name,
                f"{told['started']:.1f}",
                figure(told["peak"] / 2**20),
                figure(typical(run, name, loads[0], "cpu") * 1e3),
                figure(typical(run, name, most, "cpu") * 1e3),
                figure(typical(run, name, most, "gap99") * 1e3),
                *(_share(shortest, typical(run, name, streams, "gap")) for streams in (loads[0], most)),
                f"{told['idle']:.2f}",
            ]
        )
    head = ["server", "start to first token, s", "peak memory, MiB", f"CPU ms per token at {loads[0]}", f"at {most}"]
    head += [f"99 % of gaps at {most} under, ms", f"roofline at {loads[0]}", f"at {most}"]
    return table([*head, "cores used idle"], rows)


def _share(shortest: float, gap: float) -> str:
    """What part of a gap the weights alone take to be read."""
    return f"{shortest / gap:.0%}" if gap and not math.isnan(gap) else NONE


def scenario(found: list[dict[str, Any]]) -> str:
    """Any list of records with the same names."""
    names = list(found[0])
    rows = [[value if isinstance(value, str) else figure(value) for value in record.values()] for record in found]
    return table(names, rows)


def markdown(run: Run) -> str:
    """The whole page."""
    machine, model = run["machine"], run["model"]
    title = f"## {model['name']}: {model['parameters'] / 1e6:.0f} M parameters, "
    title += f"prompts of {run['prompt']} tokens, {run['output']} tokens out"
    where = f"{machine['cpu']}, {machine['cores']} cores, {machine['memory'] / 2**30:.0f} GiB; memory is read at "
    where += f"{machine['bandwidth']:.1f} GB/s. {_gpus(run)}{run['date']}. {HOW}"
    parts = [title, where]
    if run["samples"]:
        parts.append(speeds(run))
        ours = [name for name in measured(run)[0] if name.startswith("antiphon")]
        if len(ours) < len(measured(run)[0]):
            parts += [ratios(run, name) for name in ours]
        parts.append(costs(run))
    parts += [f"### {title}\n\n{scenario(found)}" for title, found in run["scenarios"].items() if found]
    lines = [f"- {name}: {told['versions']}" for name, told in run["servers"].items() if "started" in told]
    lines += [f"- {name}: left out: {told['absent']}" for name, told in run["servers"].items() if "absent" in told]
    lines += [f"- {text}" for text in _errors(run)]
    return "\n\n".join([*parts, "\n".join(lines)]) + "\n"


def _gpus(run: Run) -> str:
    rate = max((told.get("bandwidth", 0.0) for told in run["servers"].values()), default=0.0)
    return f"The GPU's is read at {rate:.0f} GB/s. " if rate else ""


def _errors(run: Run) -> list[str]:
    return [
        f"{sample['server']}, {sample['streams']} streams, round {sample['round']}: "
        f"{len(sample['errors'])} failed: {sample['errors'][0]}"
        for sample in run["samples"]
        if sample["errors"]
    ]


if __name__ == "__main__":
    print(markdown(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
