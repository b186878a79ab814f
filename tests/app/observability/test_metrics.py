"""Metrics of turns, requests, streams, the store, workers and the process, in both formats."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_text
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_plain
from websockets.sync.client import connect

from antiphon.app.observability.metrics.collector import MetricsCollector
from antiphon.app.observability.metrics.exposition import render_registry
from antiphon.app.observability.metrics.histograms import ModelHistogram
from antiphon.app.observability.metrics.requests import MAX_REASONS
from antiphon.app.store.sqlite.database import SharedConnection
from antiphon.app.turn_types.access_record import AccessRecord
from antiphon.app.turn_types.endings import Ending
from antiphon.app.turn_types.turn_stats import TurnStats, TurnTimes
from antiphon.engine.process.child.gpu_memory import GPU_MEMORY_INTERVAL_S, GpuMemory
from antiphon.engine.protocol import EngineStats
from tests.app.server_helpers import process_engine_registry
from tests.conftest import StartServer
from tests.progress import HANG_TIMEOUT_S, wait_with_progress
from tests.serving import RunningServer, serve

SCRIPT: list[dict[str, Any]] = [
    {"name": "stall", "when": ["Stall"], "output": ["Hello", {"stall": True}]},
    {"name": "any", "output": ["Yes, indeed."], "tokens_per_chunk": 1},
]
OPENMETRICS = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.5"


def read_page(server: RunningServer, accept: str = "") -> httpx.Response:
    headers = {"accept": accept} if accept else {}
    return httpx.get(f"{server.root}/metrics", headers=headers, timeout=HANG_TIMEOUT_S)


def read_samples(server: RunningServer) -> dict[str, float]:
    """Returns the samples by name and labels."""
    lines = [line for line in read_page(server).text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def respond(server: RunningServer, text: str = "Hi", **fields: Any) -> httpx.Response:
    body = {"model": "scripted", "input": text, **fields}
    return httpx.post(f"{server.url}/responses", json=body, timeout=HANG_TIMEOUT_S)


def test_both_formats_have_the_same_names(start_server: StartServer) -> None:
    server = start_server(SCRIPT, file_store=True)
    assert respond(server).status_code == 200
    plain, openmetrics = read_page(server), read_page(server, OPENMETRICS)
    assert plain.headers["content-type"].startswith("text/plain; version=")
    assert openmetrics.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    names = [
        {sample.name for family in families for sample in family.samples}
        for families in (parse_plain(plain.text), parse_openmetrics(openmetrics.text))
    ]
    assert names[0] == names[1]
    assert {name for name in names[0] if not name.startswith("process_")} == {
        name for name in names[0] if name.startswith("antiphon:")
    }
    assert "process_resident_memory_bytes" in names[0]


@pytest.mark.parametrize(
    ("accept", "is_openmetrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        ("Application/OpenMetrics-Text; version=1.0.0; q=0.8, text/plain; q=0.1", True),
        ("application/openmetrics-text; q=0.0, */*", False),
        ("application/openmetrics-textual", False),
        (OPENMETRICS, True),
        (",;=,q", False),
    ],
)
def test_format_that_a_client_accepts(accept: str, is_openmetrics: bool) -> None:
    page, media_type = render_registry(CollectorRegistry(), accept)
    assert media_type.startswith("application/openmetrics-text") == is_openmetrics
    assert page.endswith(b"# EOF\n") == is_openmetrics


def test_text_is_that_of_prometheus_client() -> None:
    registry, expected = CollectorRegistry(), CollectorRegistry()
    name, text, bounds = "antiphon:wait_seconds", 'Time \\ of "waits"\nin s.', (0.5, 1, 2.5)
    histogram = ModelHistogram(name, text, bounds)
    registry.register(histogram)
    theirs = Histogram(name, text, ["model_name"], buckets=bounds, registry=expected)
    for each in (registry, expected):
        counter = Counter("antiphon:things", "Things.", ["a", "b"], registry=each)
        for number in range(3):
            counter.labels(f'x"{number}\n', "\\").inc(10**number * 1234567.0)
        Gauge("antiphon:plain", "A gauge.", registry=each).set(0.1)
    for model in ("one", 'tw"o\\', "thr\nee"):
        for value in (0.0, 0.5, 0.51, 2.5, 1e9, 1e-9):
            histogram.observe(model, value)
            theirs.labels(model).observe(value)
    histogram._children["one"].counts[0] = 1_234_567
    theirs.labels("one")._buckets[0].set(1_234_567)
    assert sorted(render_registry(registry)[0].splitlines()) == sorted(
        generate_latest(expected, escaping="allow-utf-8").splitlines()
    )
    sent = render_registry(registry, "application/openmetrics-text")[0]
    assert sorted(sent.splitlines()) == sorted(openmetrics_text(expected, escaping="allow-utf-8").splitlines())


def test_exemplars_are_in_openmetrics_only() -> None:
    registry = CollectorRegistry()
    histogram = ModelHistogram("antiphon:wait_seconds", "Waits.", (0.5, 1))
    registry.register(histogram)
    histogram.observe("one", 0.75, {"trace_id": "a" * 32, "span_id": "b" * 16})
    page = render_registry(registry, "application/openmetrics-text")[0].decode()
    [family] = parse_openmetrics(page)
    [sent] = [sample.exemplar for sample in family.samples if sample.exemplar is not None]
    assert (sent.labels, sent.value) == ({"trace_id": "a" * 32, "span_id": "b" * 16}, 0.75)
    assert page == openmetrics_text(registry, escaping="allow-utf-8").decode()
    assert "trace_id" not in render_registry(registry)[0].decode()


def test_endings_and_the_times_of_a_turn(start_server: StartServer) -> None:
    server = start_server(SCRIPT)
    assert respond(server).status_code == 200
    assert respond(server, max_output_tokens=16).status_code == 200
    samples, model = read_samples(server), '{model_name="scripted"}'
    assert samples['antiphon:turn_endings_total{cause="stop_token",model_name="scripted"}'] == 2
    (first, second) = (record.turns[0] for record in server.access_records if record.turns)
    for name, read in {
        "queue_time": lambda stats: sum(job.queue_s for job in stats.jobs),
        "prefill_time": lambda stats: sum(job.prefill_s for job in stats.jobs),
        "decode_time": lambda stats: sum(job.decode_s for job in stats.jobs),
        "render_time": lambda stats: stats.times.rendered - stats.times.parsed,
        "longest_gap": lambda stats: stats.jobs[0].longest_gap_s,
    }.items():
        assert samples[f"antiphon:{name}_seconds_count{model}"] == 2
        assert samples[f"antiphon:{name}_seconds_sum{model}"] == pytest.approx(read(first) + read(second))
    job = first.jobs[0]
    assert 0 < job.longest_gap_s <= job.decode_s
    times = (job.submitted, job.admitted, job.first_token, job.last_token, job.ended)
    assert list(times) == sorted(times)


def test_times_of_jobs() -> None:
    stats = TurnStats(response_id="resp_1", model="m", ending=Ending("stop_token"), output_tokens=5)
    stats.times = TurnTimes(arrived=0.0, parsed=1.0, rendered=1.5, ended=20.0)
    first, second = stats.begin_job(2.0), None
    stats.admit_job(3.0)
    for now in (4.0, 4.5, 7.0, 7.5):
        stats.add_tokens(now)
    first.ended = 8.0
    second = stats.begin_job(10.0)
    second.ended = 12.0  # never admitted
    assert (first.queue_s, first.prefill_s, first.decode_s, first.longest_gap_s) == (1.0, 1.0, 3.5, 2.5)
    assert (second.queue_s, second.prefill_s, second.decode_s, second.longest_gap_s) == (2.0, 0.0, 0.0, 0.0)
    assert (stats.times.submitted, stats.times.admitted) == (2.0, 3.0)
    assert (stats.times.first_token, stats.times.last_token) == (4.0, 7.5)
    admitted = stats.begin_job(12.0)
    stats.admit_job(13.0)
    admitted.ended = 15.0  # without a token
    assert (admitted.queue_s, admitted.prefill_s, admitted.decode_s) == (1.0, 2.0, 0.0)
    assert stats.times.admitted == 3.0


def test_rejections_by_code(start_server: StartServer) -> None:
    server = start_server(SCRIPT, max_body_bytes=2000)
    assert respond(server, temperature=9).status_code == 400
    assert respond(server, "x" * 3000).status_code == 413
    assert httpx.get(f"{server.url}/responses/resp_none").status_code == 404
    assert httpx.get(f"{server.url}/nothing").status_code == 404
    assert respond(server).status_code == 200
    found = {name: value for name, value in read_samples(server).items() if "requests_rejected_total" in name}
    assert sum(found.values()) == 4
    assert all(re.fullmatch(r'antiphon:requests_rejected_total\{reason="[a-z_0-9]+"\}', name) for name in found)


def test_codes_of_rejections_are_bounded() -> None:
    metrics = MetricsCollector(())
    for number in range(2 * MAX_REASONS):
        metrics.count_request(AccessRecord("POST", "/v1/responses", 400, 0.0, "id", f"code_{number}"))
    metrics.count_request(AccessRecord("POST", "/v1/responses", 500, 0.0, "id", "server_error"))
    metrics.count_request(AccessRecord("POST", "/v1/responses", 499, 0.0, "id", "client_closed_request"))
    samples = {
        sample.labels["reason"]: sample.value
        for family in metrics.requests._rejected.collect()
        for sample in family.samples
        if sample.name == "antiphon:requests_rejected_total"
    }
    assert len(samples) == MAX_REASONS + 1 and samples["other"] == MAX_REASONS
    assert "server_error" not in samples and "client_closed_request" not in samples


def test_open_streams_are_counted_by_api(start_server: StartServer) -> None:
    server = start_server(SCRIPT)
    name = 'antiphon:open_streams{api="responses"}'
    body = {"model": "scripted", "input": "Stall", "stream": True}
    with httpx.stream("POST", f"{server.url}/responses", json=body, timeout=HANG_TIMEOUT_S) as response:
        chunks = response.iter_bytes()
        next(chunks)
        assert read_samples(server)[name] == 1
        chunks.close()
    wait_with_progress(lambda: read_samples(server)[name] == 0, "the stream is no longer counted")


def test_store_is_shown(start_server: StartServer) -> None:
    server = start_server(SCRIPT, file_store=True)
    with ThreadPoolExecutor(4) as pool:
        assert {reply.status_code for reply in pool.map(lambda _: respond(server), range(8))} == {200}
    samples = read_samples(server)
    assert samples["antiphon:store_available"] == 1
    assert samples["antiphon:store_waiting_steps"] >= 0
    assert samples["antiphon:store_bytes"] > 4096
    assert samples["antiphon:store_free_bytes"] > 0
    assert samples["antiphon:store_commit_seconds_count"] >= 1
    assert samples["antiphon:store_commit_seconds_sum"] > 0


def test_store_that_cannot_be_written_to_is_shown(start_server: StartServer) -> None:
    server = start_server(SCRIPT)
    connection = server.context.store._writer._database._connection
    assert isinstance(connection, SharedConnection)

    def is_available() -> bool:
        return read_samples(server)["antiphon:store_available"] == 1

    connection.execute("PRAGMA query_only = ON")  # every write fails, those of the heartbeat included
    wait_with_progress(lambda: not is_available(), "the store is shown as available")
    assert "antiphon:store_free_bytes" not in read_samples(server)  # it is in memory
    connection.execute("PRAGMA query_only = OFF")
    wait_with_progress(is_available, "the store is shown as unavailable")


def test_worker_process_is_shown() -> None:
    with serve(process_engine_registry) as server:
        name = 'antiphon:engine_restarts_total{model_name="chatter"}'
        samples = read_samples(server)
        assert samples[name] == 0
        assert samples['antiphon:engine_resident_bytes{model_name="chatter"}'] > 1 << 20
        worker = server.engine._jobs.connection.worker
        server.loop.call_soon_threadsafe(worker.kill)
        wait_with_progress(lambda: read_samples(server)[name] == 1, "the worker is started again")


def test_gpu_memory_is_measured_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = iter((100, 200))
    monkeypatch.setattr("antiphon.engine.process.child.gpu_memory._measure_bytes", lambda: next(measured))
    now = [10.0]
    memory = GpuMemory("cuda:0", lambda: now[0])
    assert memory.add_to(EngineStats(steps=1)) == EngineStats(steps=1, gpu_memory_bytes=100)
    now[0] += GPU_MEMORY_INTERVAL_S / 2
    assert memory.add_to(EngineStats()).gpu_memory_bytes == 100
    now[0] += GPU_MEMORY_INTERVAL_S
    assert memory.add_to(EngineStats()).gpu_memory_bytes == 200
    assert GpuMemory("cpu").add_to(EngineStats()) == EngineStats()


def test_build_and_process_are_shown(start_server: StartServer) -> None:
    samples = read_samples(start_server(SCRIPT))
    assert [value for name, value in samples.items() if name.startswith("antiphon:build_info{")] == [1]
    assert samples["process_open_fds"] > 0 and samples["process_start_time_seconds"] > 0
    assert samples["antiphon:event_loop_tasks"] >= 1 and samples["antiphon:spans_dropped_total"] == 0


def test_rejections_over_websocket_are_counted(start_server: StartServer) -> None:
    server = start_server(SCRIPT)
    with connect(server.url.replace("http", "ws") + "/responses") as websocket:
        websocket.send(json.dumps({"type": "response.create", "model": "nothing", "input": "Hi"}))
        assert json.loads(websocket.recv(HANG_TIMEOUT_S))["type"] == "error"
    assert read_samples(server)['antiphon:requests_rejected_total{reason="model_not_found"}'] == 1
