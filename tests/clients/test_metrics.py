"""Prometheus metrics and JSON access log lines, neither of which contains prompts, outputs or user names."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.clients.sdk_helpers import get, post
from tests.conftest import fresh_server
from tests.serving import RunningServer, read_until_ready, scripted_registry, serve
from tests.syntax import ROOT

SCRIPT: list[dict[str, Any]] = [
    {"name": "cut", "when": ["Cut"], "output": ["Some words"], "finish": "length"},
    {"name": "fault", "when": ["Fail"], "output": ["Oh", {"fault": "broken", "code": "server_error"}]},
    {"name": "any", "output": ["Yes, indeed."], "tokens_per_chunk": 1},
]
SECRET = "a-word-nobody-may-log"
"""Text that neither the metrics nor the log may contain."""


SERVER = partial(serve, SCRIPT)
server = fresh_server


def read_metrics(server: RunningServer) -> dict[str, float]:
    """Returns the samples of `/metrics` by name and labels, without the prefix and the model name."""
    page = get(f"{server.root}/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    metrics = {}
    for family in text_string_to_metric_families(page.text):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()) if key != "model_name")
            name = sample.name.removeprefix("antiphon:")
            metrics[f"{name}{{{labels}}}" if labels else name] = sample.value
    return metrics


def post_response(server: RunningServer, text: str, **fields: Any) -> httpx.Response:
    return post(f"{server.url}/responses", json={"model": "scripted", "input": text, **fields})


def test_metrics_count_requests_tokens_and_errors(server: RunningServer) -> None:
    response = post_response(server, f"Hi {SECRET}", user=SECRET).json()
    post_response(server, "Cut")
    post_response(server, "Fail")
    post_response(server, "x", temperature=9)
    metrics = read_metrics(server)
    assert metrics["requests_finished_total{finished_reason=completed}"] == 1
    assert metrics["requests_finished_total{finished_reason=incomplete}"] == 1
    assert metrics["requests_finished_total{finished_reason=failed}"] == 1
    assert metrics["http_requests_total{method=POST,status=200}"] == 3
    assert metrics["http_requests_total{method=POST,status=400}"] == 1
    assert metrics["time_to_first_token_seconds_count"] == metrics["e2e_request_latency_seconds_count"] == 3
    assert metrics["num_requests_running"] == metrics["num_requests_waiting"] == metrics["kv_cache_tokens"] == 0
    assert metrics["generation_tokens_total"] >= response["usage"]["output_tokens"] > 0
    assert metrics["prompt_tokens_total"] == metrics["request_prompt_tokens_sum"]
    assert metrics["engine_request_failures_total"] == 1
    assert SECRET not in get(f"{server.root}/metrics").text


def test_unknown_http_methods_share_one_label(server: RunningServer) -> None:
    for method in ("BREW", "STEEP"):
        httpx.request(method, f"{server.url}/models", verify=False)
    assert read_metrics(server)["http_requests_total{method=other,status=405}"] == 2


def test_metrics_require_the_api_key() -> None:
    with serve(scripted_registry(SCRIPT), api_keys=("sk-one",)) as server:
        assert get(f"{server.root}/metrics").status_code == 401
        assert get(f"{server.root}/metrics", headers={"authorization": "Bearer sk-one"}).status_code == 200


def test_json_log_has_one_object_a_line_and_no_request_content(tmp_path: Path) -> None:
    script = tmp_path / "hello.toml"
    script.write_text('[[reply]]\nname = "any"\noutput = ["Yes."]\n', encoding="utf-8")
    args = [sys.executable, "-m", "antiphon", "serve", "--engine", "scripted", "--script", str(script)]
    args += ["--port", "0", "--store", "memory", "--log-format", "json", "--api-key", SECRET]
    with subprocess.Popen(args, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stderr is not None
        (url,) = read_until_ready(process.stderr)["base_urls"]
        headers = {"authorization": f"Bearer {SECRET}", "x-request-id": "mine-7"}
        body = {"model": "scripted", "input": f"Tell {SECRET}"}
        assert post(f"{url}/responses", json=body, headers=headers).status_code == 200
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        log = process.stderr.read()
    assert SECRET not in log
    (line,) = [json.loads(line) for line in log.splitlines()]
    assert {key: line[key] for key in ("event", "method", "path", "status", "request_id", "level")} == {
        "event": "request", "method": "POST", "path": "/v1/responses", "status": 200, "request_id": "mine-7", "level": "info",
    }  # fmt: skip
    assert 0 < line["seconds"] < 20 and line["timestamp"].endswith("Z")
