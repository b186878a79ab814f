"""Renders the record of a run as Markdown. It reads only the JSON file, so that the report of any record can be printed:

.venv/bin/python -m bench.report FILE.json
"""

import argparse
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bench.stats import MISSING, TIMES, format_number, markdown_table, median, median_ratio

Record = dict[str, Any]
METHOD = (
    "Streaming over HTTP, temperature 1. Medians over rounds in which the servers take turns; a ratio is the median of "
    "the ratios of each round."
)


def values_by_round(record: Record, server: str, streams: int, key: str) -> dict[int, float]:
    """Returns one measurement by round, from samples without errors."""
    return {
        sample["round"]: sample[key]
        for sample in record["samples"]
        if sample["server"] == server and sample["streams"] == streams and not sample["errors"]
    }


def median_value(record: Record, server: str, streams: int, key: str) -> float:
    """Returns the median of one measurement over the rounds."""
    return median(list(values_by_round(record, server, streams, key).values()))


def measured_loads(record: Record) -> tuple[list[str], list[int]]:
    """Returns the servers that have samples, in the order of the record, and the numbers of streams, ascending."""
    pairs = {(sample["server"], sample["streams"]) for sample in record["samples"]}
    servers = [name for name in record["servers"] if any(name == server for server, _ in pairs)]
    return servers, sorted({streams for _, streams in pairs})


def render_speed_table(record: Record) -> str:
    """Returns a table of throughput, ITL and TTFT by server and number of streams."""
    servers, loads = measured_loads(record)

    def format_cell(server: str, streams: int) -> str:
        throughput, itl, ttft = (
            median_value(record, server, streams, key) for key in ("throughput", "itl_s", "ttft_s")
        )
        if math.isnan(throughput):
            return MISSING
        return f"{format_number(throughput)}, {format_number(itl * 1e3)}, {format_number(ttft * 1e3)}"

    labels = [f"{streams} streams" if streams > 1 else "1 stream" for streams in loads]
    header = ["server", *(f"{label}: tok/s, ITL ms, TTFT ms" for label in labels)]
    return markdown_table(
        header, [[server, *(format_cell(server, streams) for streams in loads)] for server in servers]
    )


def render_ratio_table(record: Record, baseline: str) -> str:
    """Returns a table of the baseline's throughput and TTFT relative to each peer and to the best peer."""
    servers, loads = measured_loads(record)
    peers = [server for server in servers if not server.startswith("antiphon")]

    def format_cell(peer: str, streams: int) -> str:
        throughput, ttft = (
            median_ratio(values_by_round(record, baseline, streams, key), values_by_round(record, peer, streams, key))
            for key in ("throughput", "ttft_s")
        )
        return MISSING if math.isnan(throughput) else f"{throughput:.2f}{TIMES} ({ttft:.2f})"

    rows = [[peer, *(format_cell(peer, streams) for streams in loads)] for peer in peers]
    rows.append(["**best peer**", *(_format_best_peer(record, baseline, peers, streams) for streams in loads)])
    return markdown_table([f"{baseline} against", *(f"{streams}: tok/s (TTFT)" for streams in loads)], rows)


def _format_best_peer(record: Record, baseline: str, peers: list[str], streams: int) -> str:
    """Returns the ratios to the peer with the highest throughput and to the peer with the lowest TTFT at this load."""

    def ratio_to_best(key: str, select: Callable[[Iterable[str]], str]) -> float:
        candidates = [peer for peer in peers if values_by_round(record, peer, streams, key)]
        if not candidates:
            return math.nan
        best_values = values_by_round(record, select(candidates), streams, key)
        return median_ratio(values_by_round(record, baseline, streams, key), best_values)

    throughput = ratio_to_best(
        "throughput", lambda names: max(names, key=lambda peer: median_value(record, peer, streams, "throughput"))
    )
    ttft = ratio_to_best(
        "ttft_s", lambda names: min(names, key=lambda peer: median_value(record, peer, streams, "ttft_s"))
    )
    return MISSING if math.isnan(throughput) else f"**{throughput:.2f}{TIMES}** (**{ttft:.2f}**)"


def render_cost_table(record: Record) -> str:
    """Returns a table of start-up time, memory, CPU time, p99 ITL and roofline by server."""
    servers, loads = measured_loads(record)
    lowest, highest = loads[0], loads[-1]
    rows = []
    for name in servers:
        entry = record["servers"][name]
        bandwidth = entry.get("bandwidth_gb_s", record["machine"]["bandwidth_gb_s"])
        read_s = {load: bytes_read_per_step(entry, load) / (bandwidth * 1e9) for load in (lowest, highest)}
        rows.append(
            [
                name,
                f"{entry['startup_s']:.1f}",
                format_number(entry.get("startup_memory_bytes", math.nan) / 2**20),
                format_number(entry["peak_memory_bytes"] / 2**20),
                format_number(median_value(record, name, lowest, "cpu_s_per_token") * 1e3),
                format_number(median_value(record, name, highest, "cpu_s_per_token") * 1e3),
                format_number(median_value(record, name, highest, "itl_p99_s") * 1e3),
                *(
                    _format_roofline(read_s[load], median_value(record, name, load, "itl_s"))
                    for load in (lowest, highest)
                ),
                f"{entry['idle_cores']:.2f}",
            ]
        )
    header = ["server", "start to first token, s", "memory after start, MiB", "peak memory, MiB"]
    header += [f"CPU ms per token at {lowest}", f"at {highest}"]
    header += [f"p99 ITL at {highest}, ms", f"roofline at {lowest}", f"at {highest}", "idle CPU cores"]
    return markdown_table(header, rows)


def bytes_read_per_step(entry: Record, streams: int) -> float:
    """Returns the bytes of weights that a step reads: of a mixture, those of the experts that some stream chooses."""
    unread_share = (1 - entry.get("expert_share", 1.0)) ** streams
    return float(entry["bytes_per_step"] + entry.get("expert_bytes", 0.0) * (1 - unread_share))


def _format_roofline(read_s: float, itl_s: float) -> str:
    """Returns the time to read the weights once as a percentage of the ITL."""
    return f"{read_s / itl_s:.0%}" if itl_s and not math.isnan(itl_s) else MISSING


def render_scenario_table(results: list[dict[str, Any]]) -> str:
    """Returns a table of the results of a scenario, which all have the same keys."""
    rows = [[value if isinstance(value, str) else format_number(value) for value in row.values()] for row in results]
    return markdown_table(list(results[0]), rows)


def render_report(record: Record) -> str:
    """Returns the complete report of a run."""
    machine, model = record["machine"], record["model"]
    title = f"## {model['name']}: {model['parameters'] / 1e6:.0f} M parameters, "
    title += f"prompts of {record['prompt_tokens']} tokens, outputs of {record['output_tokens']} tokens"
    setup = f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB; memory bandwidth "
    setup += f"{machine['bandwidth_gb_s']:.1f} GB/s. {_format_gpu_bandwidth(record)}{record['date']}. {METHOD}"
    parts = [title, setup]
    if record["samples"]:
        parts.append(render_speed_table(record))
        servers, _ = measured_loads(record)
        baselines = [name for name in servers if name.startswith("antiphon")]
        if len(baselines) < len(servers):
            parts += [render_ratio_table(record, name) for name in baselines]
        parts.append(render_cost_table(record))
    parts += [f"### {name}\n\n{render_scenario_table(rows)}" for name, rows in record["scenarios"].items() if rows]
    entries = record["servers"]
    lines = [f"- {name}: {entry['versions']}" for name, entry in entries.items() if "startup_s" in entry]
    lines += [f"- {name}: skipped: {entry['skipped']}" for name, entry in entries.items() if "skipped" in entry]
    lines += [f"- {line}" for line in _format_errors(record)]
    return "\n\n".join([*parts, "\n".join(lines)]) + "\n"


def _format_gpu_bandwidth(record: Record) -> str:
    bandwidth = max((entry.get("bandwidth_gb_s", 0.0) for entry in record["servers"].values()), default=0.0)
    return f"GPU memory bandwidth {bandwidth:.0f} GB/s. " if bandwidth else ""


def _format_errors(record: Record) -> list[str]:
    return [
        f"{sample['server']}, {sample['streams']} streams, round {sample['round']}: "
        f"{len(sample['errors'])} requests failed: {sample['errors'][0]}"
        for sample in record["samples"]
        if sample["errors"]
    ]


def main() -> None:
    """Prints the report of the record that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    print(render_report(json.loads(parser.parse_args().file.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
