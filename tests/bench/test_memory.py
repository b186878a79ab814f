"""Tests of the memory benchmark: the worker's memory is found, and the report has every limit."""

import sys
from pathlib import Path

import pytest

from bench.memory import FormCost, StartCost, largest_tensor_bytes, quantized_peer, render_costs
from bench.server_process import ServerProcess


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_largest_process_is_that_of_the_worker(tmp_path: Path) -> None:
    hold = "x = bytearray(200 << 20); del x; x = bytearray(100 << 20); print('ready', flush=True)"
    child = f"import time; {hold}; time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = ServerProcess([sys.executable, "-c", parent], tmp_path / "log", {})
    try:
        while "ready" not in process.log.read_text():
            assert not process.has_exited
        peak, ready = process.largest_process_memory()
    finally:
        process.terminate()
    assert 200 << 20 < peak < 250 << 20 and 100 << 20 < ready < 150 << 20


def test_report_names_values_and_limits() -> None:
    first, second = StartCost(12.0, 500_000_000, 400_000_000), StartCost(6.0, 410_000_000, 400_000_000)
    report = render_costs(10**9, 300_000_000, StartCost(5.0, 0, 0), [FormCost("int4", first, second)])
    assert "0.50× (at most 0.4)" in report and "2.40× (at most 3.0)" in report
    assert "0.41× (at most 0.4)" in report and "1.20× (at most 1.2)" in report
    assert "100 (at most 300)" in report


def test_largest_tensor_of_a_model() -> None:
    assert largest_tensor_bytes("small") == 2 * 151_936 * 1024
    assert largest_tensor_bytes("oss20b-2") == 2 * 201_088 * 2880


def test_peer_starts_the_form_that_is_asked_for() -> None:
    command = quantized_peer("int4", {}).build_command(Path("model"), 1)
    assert command[command.index("--quantization") + 1] == "int4" and "int8" not in command
