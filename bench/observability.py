"""Cost of traces and of a scrape of `/metrics`: `python -m bench.observability`.

The times are CPU times of one thread, medians over rounds, in one process. The spans of a turn are made on the event loop; a thread encodes them
for the collector, which here is none.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import uvloop
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

from antiphon.app.observability.metrics.collector import MetricsCollector
from antiphon.app.registry.model_registry import ModelRegistry
from antiphon.app.requests.responses.request import read_responses_request
from antiphon.app.store.sqlite.store import MemoryStore
from antiphon.app.tracing import conventions as names
from antiphon.app.tracing.export import SpanQueue
from antiphon.app.tracing.options import TraceOptions
from antiphon.app.tracing.spans import SpanBuilder
from antiphon.app.tracing.tracer import Tracer
from antiphon.app.turn_types.endings import CAUSES, Ending
from antiphon.app.turn_types.tracing.turn_trace import TurnDescription
from antiphon.app.turn_types.turn_stats import TurnStats, TurnTimes
from antiphon.app.turns.capacity import TurnCapacity
from antiphon.app.turns.manager import TurnManager
from antiphon.events.items import FunctionCall
from antiphon.events.stream import ItemAdded, ItemDone
from tests.log_store import make_log_store
from tests.serving import scripted_registry

NUM_ROUNDS, TURNS_PER_ROUND = 51, 40
NUM_MODELS, NUM_TURNS = 20, 1000
ITEM = FunctionCall(id="fc_1", call_id="call_1", name="get_weather", arguments="{}", status="completed")
SAMPLED, UNSAMPLED = (f"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0{flag}" for flag in (1, 0))


class _Nowhere:
    """Takes spans and forgets them."""

    name = "SUCCESS"

    def export(self, _: Sequence[Any], /) -> "_Nowhere":
        return self

    def shutdown(self) -> None:
        """Does nothing."""


def create_tracer() -> Tracer:
    options = TraceOptions(endpoint=None, sampler=lambda parent, _: parent is None or parent.is_sampled)
    queue = SpanQueue(_Nowhere(), max_spans=100_000, max_batch=512, delay_s=0.05, on_dropped=print)
    return Tracer(options, SpanBuilder(), queue)


def describe() -> TurnDescription:
    """Returns as many attributes as a turn of the Responses API has."""
    sampling = {names.REQUEST_TEMPERATURE: 1.0, names.REQUEST_TOP_P: 1.0, names.REQUEST_SEED: 7}
    turn = {**sampling, names.RESPONSE_FINISH_REASONS: ["stop"], names.DIALECT: "hermes", names.REASONING_TOKENS: 5}
    render = {names.PROMPT_TOKENS: 100, names.RESTORED_TOKENS: 0, names.GRAMMAR: False}
    return TurnDescription(turn=turn, render=render, job={names.ENGINE: "process"})


def run_turn(tracer: Tracer | None, traceparent: str = "") -> TurnStats:
    """Keeps the figures of a turn of two jobs, with three items and a tool: twelve spans if it is sampled."""
    stats = TurnStats(response_id="resp_1", model="coder", ending=Ending("stop_token"), status="completed")
    now = time.monotonic()
    if tracer is not None:
        begin_trace(tracer, traceparent, stats, now)
    stats.times = TurnTimes(arrived=now, parsed=now, rendered=now, ended=time.monotonic() + 1)
    for _ in range(2):
        job = stats.begin_job(now)
        stats.admit_job(now)
        stats.add_tokens(now)
        stats.add_tokens(now)
        job.ended = now
    if tracer is not None:
        tracer.end_turn(stats)
    return stats


def begin_trace(tracer: Tracer, traceparent: str, stats: TurnStats, now: float) -> None:
    trace = stats.trace = tracer.begin_turn(tracer.begin_request({"traceparent": traceparent}))
    if trace.ids.is_sampled:
        trace.describe = describe
        for index in range(3):
            trace.note_events([ItemAdded(sequence_number=0, output_index=index, item=ITEM)], now, 1)
            trace.note_events([ItemDone(sequence_number=0, output_index=index, item=ITEM)], now, 2)
    with trace.note_call("mcp", "search", "", "tools"):
        pass


def measure(run: Callable[[], object], repeats: int = TURNS_PER_ROUND) -> float:
    """Returns the median time of a call in microseconds."""
    rounds = []
    for _ in range(NUM_ROUNDS):
        start = time.thread_time()
        for _ in range(repeats):
            run()
        rounds.append((time.thread_time() - start) / repeats * 1e6)
    return statistics.median(rounds)


def measure_traces() -> None:
    tracer = create_tracer()
    stats = run_turn(tracer, SAMPLED)
    assert stats.trace is not None
    spans = SpanBuilder().build_turn(stats, stats.trace)
    base = measure(lambda: run_turn(None))
    print(f"sampled turn of {len(spans)} spans: {measure(lambda: run_turn(tracer, SAMPLED)) - base:.0f} us")
    print(f"unsampled turn: {measure(lambda: run_turn(tracer, UNSAMPLED)) - base:.1f} us")
    print(f"encoding of these spans, in a thread: {measure(lambda: encode_spans(spans).SerializeToString()):.0f} us")
    tracer.close()


async def measure_scrape() -> None:
    """Measures a scrape while turns run, each of which has an ending of several causes behind it."""
    script = [{"name": "stall", "output": ["Hello", {"stall": True}]}]
    served = [
        scripted_registry(script, names=(f"model-{number}",), max_num_seqs=NUM_TURNS).served[0]
        for number in range(NUM_MODELS)
    ]
    models = ModelRegistry(served)
    store = MemoryStore()
    metrics = MetricsCollector(models.all_models, store)
    manager = TurnManager(make_log_store(), TurnCapacity(model.engine for model in served))
    logs = []
    for number in range(NUM_TURNS):
        body = {"model": f"model-{number % NUM_MODELS}", "input": "Hi", "store": False}
        parsed = read_responses_request(body, models)
        logs.append(await manager.start_turn(parsed.model, parsed.spec))
    for log in logs:
        for cause in CAUSES[:8]:
            assert log.stats is not None
            stats = TurnStats(response_id="r", model=log.stats.model, ending=Ending(cause), output_tokens=5)
            stats.times, stats.jobs = log.stats.times, log.stats.jobs
            metrics.on_turn_end(stats)
    for accept in ("text/plain", "application/openmetrics-text"):
        page, _ = metrics.render_page(accept)
        cost = measure(lambda accept=accept: metrics.render_page(accept), 1)  # type: ignore[misc]
        lines = page.count(b"\n")
        print(f"scrape as {accept}, {len(asyncio.all_tasks())} tasks, {lines} lines: {cost / 1000:.1f} ms")
    await manager.drain(0.0)
    await store.close()


def main() -> None:
    """Prints the costs."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    measure_traces()
    uvloop.run(measure_scrape())


if __name__ == "__main__":
    main()
