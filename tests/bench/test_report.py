"""The page says what the record holds: medians, ratios round by round, and who was left out."""

from typing import Any

import pytest

from tests.bench.figures import TIMES
from tests.bench.report import markdown, ratios


def one(server: str, turn: int, rate: float, first: float, streams: int = 1, errors: tuple[str, ...] = ()) -> Any:
    told = {"server": server, "round": turn, "streams": streams, "rate": rate, "first": first, "errors": list(errors)}
    return told | {"gap": 1 / rate, "gap99": 2 / rate, "cpu": 0.001, "tokens": 128, "wall": 1.0, "given": 128}


@pytest.fixture
def run() -> dict[str, Any]:
    told = {"versions": "x 1", "words": ["x"], "started": 1.0, "idle": 0.0, "peak": 2**30, "bytes_per_step": 1e8}
    rates = {"antiphon": [20.0, 40.0, 30.0], "slow": [10.0, 10.0, 10.0], "fast": [20.0, 10.0, 20.0]}
    firsts = {"antiphon": 0.2, "slow": 0.4, "fast": 0.8}
    return {
        "date": "2026-01-01",
        "machine": {"cpu": "a CPU", "cores": 2, "memory": 2**34, "bandwidth": 10.0},
        "model": {"name": "tiny", "parameters": 43_000_000},
        "prompt": 128,
        "output": 128,
        "servers": dict.fromkeys(rates, told) | {"gone": {"absent": "not installed"}},
        "samples": [one(name, turn, rate, firsts[name]) for name in rates for turn, rate in enumerate(rates[name])],
        "scenarios": {"A scenario": [{"server": "antiphon", "ratio": 1.5}]},
    }


def test_ratios_are_paired_and_name_the_best_peer_of_each_figure(run: dict[str, Any]) -> None:
    rows = ratios(run, "antiphon").splitlines()[2:]
    assert rows[0] == f"| slow | 3.00{TIMES} (0.50) |"
    assert rows[1] == f"| fast | 1.50{TIMES} (0.25) |"  # of 1, 4 and 1.5
    assert (
        rows[2] == f"| **best peer** | **1.50{TIMES}** (**0.50**) |"
    )  # the fast one's tokens, the slow one's first token


def test_a_round_with_an_error_is_no_figure_but_is_told(run: dict[str, Any]) -> None:
    run["samples"].append(one("fast", 3, 1000.0, 0.001, errors=("HTTP 500",)))
    assert ratios(run, "antiphon").splitlines()[3] == f"| fast | 1.50{TIMES} (0.25) |"
    assert "- fast, 1 streams, round 3: 1 failed: HTTP 500" in markdown(run)


def test_the_page_tells_everything(run: dict[str, Any]) -> None:
    page = markdown(run)
    assert "| antiphon | 30.0, 33.3, 200 |" in page
    assert "- gone: left out: not installed" in page
    assert "### A scenario\n\n| server | ratio |" in page
    assert "30% | 30% |" in page  # 1e8 bytes at 10 GB/s are 10 ms of a gap of 33 ms


def test_what_a_gpu_reads_is_told_beside_what_its_memory_allows(run: dict[str, Any]) -> None:
    run["servers"] = run["servers"] | {"antiphon": run["servers"]["antiphon"] | {"bandwidth": 100.0}}
    page = markdown(run)
    assert "3% | 3% |" in page and "30% | 30% |" not in page.split("| slow |")[0]
    assert "The GPU's is read at 100 GB/s." in page


def test_a_run_without_samples_has_a_page(run: dict[str, Any]) -> None:
    assert "a CPU" in markdown(run | {"samples": [], "scenarios": {}})
