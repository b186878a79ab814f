"""Spans of turns that no script plays: very many items, very long names, times that are missing."""

import time

import pytest

from antiphon.app.tracing.content import encode_cut
from antiphon.app.tracing.spans import MAX_VALUE_CHARS, SpanBuilder
from antiphon.app.turn_types.endings import Ending
from antiphon.app.turn_types.tracing.context import RequestTrace, create_root
from antiphon.app.turn_types.tracing.turn_trace import MAX_TRACED_ITEMS, TurnDescription, begin_turn_trace
from antiphon.app.turn_types.turn_stats import TurnStats
from antiphon.events.items import FunctionCall
from antiphon.events.stream import ItemAdded, ItemDone


def make_stats(**fields: object) -> TurnStats:
    stats = TurnStats(response_id="resp_1", model="m", ending=Ending("stop_token"), status="completed")
    stats.trace = begin_turn_trace(RequestTrace(create_root(trace_id=1, is_sampled=True)), background=False)
    stats.times.parsed = stats.times.arrived = time.monotonic()
    return stats


def add_item(stats: TurnStats, index: int, name: str) -> None:
    assert stats.trace is not None
    item = FunctionCall(id=f"fc_{index}", call_id="c", name=name, arguments="", status="completed")
    now = time.monotonic()
    stats.trace.note_events([ItemAdded(sequence_number=0, output_index=index, item=item)], now, index)
    stats.trace.note_events([ItemDone(sequence_number=0, output_index=index, item=item)], now + 1e-6, index + 1)


def test_items_beyond_the_limit_are_counted() -> None:
    stats = make_stats()
    for index in range(100_000):
        add_item(stats, index, "f")
    stats.times.ended = time.monotonic()
    assert stats.trace is not None
    own, *children = SpanBuilder().build_turn(stats, stats.trace)
    assert len(children) == MAX_TRACED_ITEMS and own.attributes is not None
    assert own.attributes["antiphon.items.omitted"] == 100_000 - MAX_TRACED_ITEMS


def test_calls_beyond_the_limit_are_counted() -> None:
    stats = make_stats()
    assert stats.trace is not None
    for _ in range(MAX_TRACED_ITEMS + 3):
        with stats.trace.note_call("mcp", "f", "", "tools"):
            pass
    stats.times.ended = time.monotonic()
    own, *children = SpanBuilder().build_turn(stats, stats.trace)
    assert len(children) == MAX_TRACED_ITEMS and own.attributes is not None
    assert own.attributes["antiphon.calls.omitted"] == 3


def test_long_texts_are_cut() -> None:
    stats, huge = make_stats(), "n" * 10_000_000
    add_item(stats, 0, huge)
    stats.times.ended = time.monotonic()
    stats.error_code = huge
    stats.status = "failed"
    assert stats.trace is not None
    stats.trace.describe = lambda: TurnDescription(turn={"a": huge}, render={}, job={})
    for span in SpanBuilder().build_turn(stats, stats.trace):
        assert len(span.name) <= MAX_VALUE_CHARS
        assert all(
            len(value) <= MAX_VALUE_CHARS for value in (span.attributes or {}).values() if isinstance(value, str)
        )


def test_turn_that_ended_before_everything() -> None:
    stats = make_stats()
    stats.times.arrived = stats.times.parsed = None
    stats.times.ended = time.monotonic()
    assert stats.trace is not None
    [own] = SpanBuilder().build_turn(stats, stats.trace)
    assert own.start_time == own.end_time


def test_call_that_is_cancelled_or_broken() -> None:
    stats = make_stats()
    assert stats.trace is not None
    for error in (KeyboardInterrupt, ValueError):
        with pytest.raises(error), stats.trace.note_call("mcp", "f", "", ""):
            raise error("a secret")
    assert [call.error for call in stats.trace.calls] == ["cancelled", "ValueError"]


def test_content_is_cut_to_its_size_and_stays_json() -> None:
    for count, length in ((1, 10_000_000), (3000, 100), (100_000, 1), (1, 1)):
        values = [{"role": "user", "parts": [{"type": "text", "content": "é" * length}]} for _ in range(count)]
        text = encode_cut(values, 4096)
        assert len(text.encode()) <= 4096 and text.startswith("[") and text.endswith("]")
        assert text != "[]"
