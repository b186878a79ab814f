"""Tests of the report: medians, ratios by round, failed samples and skipped servers."""

from typing import Any

import pytest

from bench.report import bytes_read_per_step, render_cost_table, render_ratio_table, render_report
from bench.stats import TIMES, format_number


def build_sample(
    server: str, round_index: int, throughput: float, ttft_s: float, streams: int = 1, errors: tuple[str, ...] = ()
) -> dict[str, Any]:
    return {
        "server": server,
        "round": round_index,
        "streams": streams,
        "throughput": throughput,
        "ttft_s": ttft_s,
        "itl_s": 1 / throughput,
        "itl_p99_s": 2 / throughput,
        "cpu_s_per_token": 0.001,
        "output_tokens": 128,
        "duration_s": 1.0,
        "prompt_tokens": 128,
        "errors": list(errors),
    }


@pytest.fixture
def record() -> dict[str, Any]:
    entry = {
        "versions": "x 1",
        "command": ["x"],
        "startup_s": 1.0,
        "idle_cores": 0.0,
        "startup_memory_bytes": 2**29,
        "peak_memory_bytes": 2**30,
        "bytes_per_step": 1e8,
    }
    throughputs = {"antiphon": [20.0, 40.0, 30.0], "slow": [10.0, 10.0, 10.0], "fast": [20.0, 10.0, 20.0]}
    ttfts = {"antiphon": 0.2, "slow": 0.4, "fast": 0.8}
    return {
        "date": "2026-01-01",
        "machine": {"cpu": "a CPU", "cores": 2, "memory_bytes": 2**34, "bandwidth_gb_s": 10.0},
        "model": {"name": "tiny", "parameters": 43_000_000},
        "prompt_tokens": 128,
        "output_tokens": 128,
        "servers": dict.fromkeys(throughputs, entry) | {"missing": {"skipped": "not installed"}},
        "samples": [
            build_sample(name, index, throughput, ttfts[name])
            for name, values in throughputs.items()
            for index, throughput in enumerate(values)
        ],
        "scenarios": {"A scenario": [{"server": "antiphon", "ratio": 1.5}]},
    }


def test_ratios_are_medians_over_rounds_and_each_column_has_its_own_best_peer(record: dict[str, Any]) -> None:
    rows = render_ratio_table(record, "antiphon").splitlines()[2:]
    assert rows[0] == f"| slow | 3.00{TIMES} (0.50) |"
    assert rows[1] == f"| fast | 1.50{TIMES} (0.25) |"  # median of 1, 4 and 1.5
    # Throughput relative to the fast peer, TTFT relative to the slow one.
    assert rows[2] == f"| **best peer** | **1.50{TIMES}** (**0.50**) |"


def test_sample_with_error_is_reported_but_not_counted(record: dict[str, Any]) -> None:
    record["samples"].append(build_sample("fast", 3, 1000.0, 0.001, errors=("HTTP 500",)))
    assert render_ratio_table(record, "antiphon").splitlines()[3] == f"| fast | 1.50{TIMES} (0.25) |"
    assert "- fast, 1 streams, round 3: 1 requests failed: HTTP 500" in render_report(record)


def test_report_contains_speed_scenarios_roofline_and_skipped_servers(record: dict[str, Any]) -> None:
    report = render_report(record)
    assert "| antiphon | 30.0, 33.3, 200 |" in report
    assert "- missing: skipped: not installed" in report
    assert "### A scenario\n\n| server | ratio |" in report
    assert "30% | 30% |" in report  # 1e8 bytes at 10 GB/s take 10 ms, of an ITL of 33 ms


def test_roofline_of_gpu_server_uses_gpu_bandwidth(record: dict[str, Any]) -> None:
    record["servers"] = record["servers"] | {"antiphon": record["servers"]["antiphon"] | {"bandwidth_gb_s": 100.0}}
    report = render_report(record)
    assert "3% | 3% |" in report and "30% | 30% |" not in report.split("| slow |")[0]
    assert "GPU memory bandwidth 100 GB/s." in report


def test_roofline_of_a_mixture_counts_the_experts_that_some_stream_chooses() -> None:
    entry = {"bytes_per_step": 100.0, "expert_bytes": 1000.0, "expert_share": 0.25}
    assert [bytes_read_per_step(entry, streams) for streams in (1, 2)] == [350.0, 537.5]
    assert bytes_read_per_step({"bytes_per_step": 100.0}, 4) == 100.0


def test_report_of_record_without_samples_describes_machine(record: dict[str, Any]) -> None:
    assert "a CPU" in render_report(record | {"samples": [], "scenarios": {}})


def test_cost_table_shows_the_memory_after_the_start_and_at_the_peak(record: dict[str, Any]) -> None:
    header, _, *rows = render_cost_table(record).splitlines()
    columns = [cell.strip() for cell in header.split("|")]
    cells = [cell.strip() for cell in rows[0].split("|")]
    assert cells[columns.index("memory after start, MiB")] == "512"
    assert cells[columns.index("peak memory, MiB")] == format_number(1024)
    for entry in record["servers"].values():
        entry.pop("startup_memory_bytes", None)
    assert format_number(1024) in render_cost_table(record), "records of earlier versions have no such figure"
