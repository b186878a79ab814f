"""The benchmark of traces and metrics measures what it says."""

import asyncio
import re

import pytest

from bench import observability


def test_benchmark_measures_all_budgets(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(observability, "NUM_ROUNDS", 1)
    monkeypatch.setattr(observability, "TURNS_PER_ROUND", 1)
    monkeypatch.setattr(observability, "NUM_TURNS", 40)
    observability.measure_traces()
    asyncio.run(observability.measure_scrape())
    lines = capsys.readouterr().out.splitlines()
    assert [re.sub(r"-?[\d.]+ (us|ms)$", r"\1", line) for line in lines[:3]] == [
        "sampled turn of 12 spans: us",
        "unsampled turn: us",
        "encoding of these spans, in a thread: us",
    ]
    assert len(lines) == 5 and all(line.startswith("scrape as ") for line in lines[3:])
