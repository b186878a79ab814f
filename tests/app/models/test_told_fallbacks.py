"""Fallbacks of a start are told: in the model list, in `/ready`, in the metrics, in the banner and in JSON logs."""

import io
from typing import Any

import httpx
import pytest
from rich.console import Console
from structlog.testing import capture_logs

from antiphon.app.observability import startup
from antiphon.app.options.settings import Settings
from antiphon.engine.fallbacks import Fallback
from antiphon.engine.protocol import EngineInfo
from tests.serving import scripted_registry, serve

SCRIPT: list[dict[str, Any]] = [{"name": "hello", "output": ["Hello."]}]
FALLBACKS = (
    Fallback("pictures", "tiny takes no pictures here: [its text] reads parts of its vision tower"),
    Fallback("norms", "Norm is not replaced: its results differ by 0.1"),
    Fallback("norms", "Other is not replaced: its results differ by 0.2"),
)
INFO = EngineInfo(max_model_len=1000, vocab_size=262_144, device="none", fallbacks=FALLBACKS)


def test_kinds_are_told_to_clients_probes_and_prometheus() -> None:
    with serve(scripted_registry(SCRIPT, info=INFO)) as server:
        (model,) = httpx.get(f"{server.url}/models").json()["data"]
        assert model["fallbacks"] == ["pictures", "norms"]
        assert httpx.get(f"{server.url}/models/scripted").json()["fallbacks"] == ["pictures", "norms"]
        assert httpx.get(f"{server.root}/ready").json() == {
            "status": "ready",
            "fallbacks": {"scripted": ["pictures", "norms"]},
        }
        metrics = httpx.get(f"{server.root}/metrics").text
        assert 'antiphon:engine_fallback{kind="norms",model_name="scripted"} 1.0' in metrics
        assert metrics.count("antiphon:engine_fallback{") == 2


def test_model_without_fallbacks_has_no_field_of_them() -> None:
    with serve(SCRIPT) as server:
        assert "fallbacks" not in httpx.get(f"{server.url}/models").json()["data"][0]
        assert httpx.get(f"{server.root}/ready").json() == {"status": "ready"}
        assert "antiphon:engine_fallback{" not in httpx.get(f"{server.root}/metrics").text


def test_banner_has_the_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "loaded_info", lambda _: INFO)
    console = Console(file=io.StringIO(), width=200, force_terminal=False)
    startup.show_banner(console, Settings(), scripted_registry(SCRIPT), 8000, {})
    banner = console.file.getvalue()  # type: ignore[attr-defined]
    for each in FALLBACKS:
        assert f"fallback  {each.reason}" in banner


def test_json_log_of_the_start_has_the_kinds() -> None:
    with capture_logs() as records:
        startup.StartupLog(io.StringIO()).show_ready(Settings(), scripted_registry(SCRIPT, info=INFO), 8000, {})
    assert [record["fallbacks"] for record in records if record["event"] == "model"] == [["pictures", "norms"]]
