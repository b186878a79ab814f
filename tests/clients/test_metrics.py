"""The numbers for Prometheus: they count what happened, and name nobody. And the log, as lines for a machine."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.clients.sdk_helpers import get, post
from tests.serving import RunningServer, scripted_registry, serve
from tests.syntax import ROOT

SCRIPT: list[dict[str, Any]] = [
    {"name": "cut", "when": ["Cut"], "output": ["Some words"], "finish": "length"},
    {"name": "fault", "when": ["Fail"], "output": ["Oh", {"fault": "broken", "code": "server_error"}]},
    {"name": "any", "output": ["Yes, indeed."], "tokens_per_chunk": 1},
]
SECRET = "a-word-nobody-may-log"


@pytest.fixture
def served() -> Iterator[RunningServer]:
    with serve(scripted_registry(SCRIPT)) as running:
        yield running


def numbers(served: RunningServer) -> dict[str, float]:
    page = get(f"{served.root}/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    found = {}
    for family in text_string_to_metric_families(page.text):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()) if key != "model_name")
            found[
                f"{sample.name.removeprefix('antiphon:')}{{{labels}}}"
                if labels
                else sample.name.removeprefix("antiphon:")
            ] = sample.value
    return found


def ask(served: RunningServer, text: str, **more: Any) -> httpx.Response:
    return post(f"{served.url}/responses", json={"model": "scripted", "input": text, **more})


def test_what_happened_is_counted(served: RunningServer) -> None:
    said = ask(served, f"Hi {SECRET}", user=SECRET).json()
    ask(served, "Cut")
    ask(served, "Fail")
    ask(served, "x", temperature=9)
    after = numbers(served)
    assert after["requests_finished_total{finished_reason=completed}"] == 1
    assert after["requests_finished_total{finished_reason=incomplete}"] == 1
    assert after["requests_finished_total{finished_reason=failed}"] == 1
    assert after["http_requests_total{method=POST,status=200}"] == 3
    assert after["http_requests_total{method=POST,status=400}"] == 1
    assert after["time_to_first_token_seconds_count"] == after["e2e_request_latency_seconds_count"] == 3
    assert after["num_requests_running"] == after["num_requests_waiting"] == after["kv_cache_tokens"] == 0
    assert after["generation_tokens_total"] >= said["usage"]["output_tokens"] > 0
    assert after["prompt_tokens_total"] == after["request_prompt_tokens_sum"]
    assert after["engine_request_failures_total"] == 1
    assert SECRET not in get(f"{served.root}/metrics").text


def test_methods_that_somebody_made_up_are_no_labels(served: RunningServer) -> None:
    for name in ("BREW", "STEEP"):
        httpx.request(name, f"{served.url}/models", verify=False)
    assert numbers(served)["http_requests_total{method=other,status=405}"] == 2


def test_the_numbers_are_for_those_with_a_key() -> None:
    with serve(scripted_registry(SCRIPT), api_keys=("sk-one",)) as locked:
        assert get(f"{locked.root}/metrics").status_code == 401
        assert get(f"{locked.root}/metrics", headers={"authorization": "Bearer sk-one"}).status_code == 200


def test_the_log_is_one_object_a_line_and_says_nothing_of_what_was_said(tmp_path: Path) -> None:
    script = tmp_path / "hello.toml"
    script.write_text('[[reply]]\nname = "any"\nspeak = ["Yes."]\n', encoding="utf-8")
    words = [sys.executable, "-m", "antiphon.app.cli", "serve", "--engine", "scripted", "--script", str(script)]
    words += ["--port", "0", "--store", "memory", "--log-format", "json", "--api-key", SECRET]
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stderr is not None
        lines: list[str] = []
        while not any("base URL" in line for line in lines):
            lines.append(process.stderr.readline())
        url = next(line for line in lines if "base URL" in line).split()[3]
        key = {"authorization": f"Bearer {SECRET}", "x-request-id": "mine-7"}
        body = {"model": "scripted", "input": f"Tell {SECRET}"}
        assert post(f"{url}/responses", json=body, headers=key).status_code == 200
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        told = process.stderr.read()
    assert SECRET not in told
    (line,) = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    assert {key: line[key] for key in ("event", "method", "path", "status", "request_id", "level")} == {
        "event": "request", "method": "POST", "path": "/v1/responses", "status": 200, "request_id": "mine-7", "level": "info",
    }  # fmt: skip
    assert 0 < line["seconds"] < 20 and line["timestamp"].endswith("Z")
