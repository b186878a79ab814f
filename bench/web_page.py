"""CPU time of the web page with a turn of 100 000 events, in the system's Chromium: `python -m bench.web_page`.

The times are those of the page's main thread (`threadTicks` of the DevTools protocol), so other load of the machine
changes them little. The server answers `/v1/inspect` with made-up lines.
"""

import argparse
import random
import statistics
from typing import Any

from tests.serving import serve
from tests.web.browser import open_browser, open_page
from tests.web.inspection import answer_with, make_rows

NUM_EVENTS = 100_000
NUM_PAINTS, NUM_LOADS, NUM_POSITIONS = 7, 5, 60
MOVE_SLIDER = """(number) => new Promise((done) => {
    const slider = document.querySelector("input[type=range]");
    slider.value = number;
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done)));
})"""
Json = dict[str, Any]


def make_events() -> list[Json]:
    """Returns the events of a turn whose items are messages and calls of 1 000 deltas each."""
    response = {"id": "resp_1", "object": "response", "status": "in_progress", "model": "coder", "output": []}
    events: list[Json] = [{"type": "response.created", "response": response}]
    while len(events) < NUM_EVENTS - 1:
        index = len(events) // 1000
        place = {"output_index": index, "item_id": f"item_{index}"}
        if index % 2:
            item = {"id": f"item_{index}", "type": "function_call", "name": "shell", "call_id": "c", "arguments": ""}
            delta = {"type": "response.function_call_arguments.delta", "delta": ' "ls"'} | place
        else:
            item = {"id": f"item_{index}", "type": "message", "role": "assistant", "content": []}
            delta = {"type": "response.output_text.delta", "delta": " word", "content_index": 0, "logprobs": []} | place
        events += [{"type": "response.output_item.added", "item": item} | place, *[delta] * 997]
        events.append({"type": "response.output_item.done", "item": item} | place)
    events = [*events[: NUM_EVENTS - 1], {"type": "response.completed", "response": response | {"status": "completed"}}]
    return [event | {"sequence_number": n} for n, event in enumerate(events)]


def read_metrics(session: Any) -> dict[str, float]:
    """Returns the browser's figures of the page, by name."""
    return {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}


def read_cpu_s(session: Any) -> float:
    """Returns the CPU time of the page's tasks so far, in seconds."""
    return read_metrics(session)["TaskDuration"]


def main() -> None:
    """Prints the figures."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    detail = {"tokens": [1234]}
    rows = make_rows(make_events(), lambda _: {"state": "MESSAGE", "cells": [["MESSAGE", "SAY"]], "detail": detail})
    source = random.Random(1)
    with serve([{"name": "x", "output": ["x"]}], wrap_app=answer_with(rows)) as server, open_browser() as browser:
        paints = [measure_paint(browser, server.root) for _ in range(NUM_PAINTS)]
        print(f"first paint {statistics.median(paints):6.0f} ms, wall time")
        loads: list[float] = []
        for number in range(NUM_LOADS):
            with open_page(browser, server.root) as (page, _):
                session = page.context.new_cdp_session(page)
                session.send("Performance.enable", {"timeDomain": "threadTicks"})
                page.goto(f"{server.root}/ui/turns/resp_1")
                page.get_by_text(f"event {NUM_EVENTS - 1} of {NUM_EVENTS - 1} · ").wait_for()
                loads.append(read_cpu_s(session))
                heap_mib = read_metrics(session)["JSHeapUsedSize"] / 2**20
                if number == NUM_LOADS - 1:
                    measure_slider(page, session, source)
        print(f"load of {NUM_EVENTS} events {statistics.median(loads):5.2f} s of CPU, then {heap_mib:.0f} MiB of heap")


def measure_paint(browser: Any, root: str) -> float:
    """Returns the wall time from the begin of the navigation to the first contentful paint, in milliseconds."""
    with open_page(browser, root) as (page, _):
        page.goto(f"{root}/ui/")
        page.get_by_text("● ready").wait_for()
        return float(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))


def measure_slider(page: Any, session: Any, source: random.Random) -> None:
    """Prints the CPU time of a position of the slider: one at random, and the one after."""
    for name in ("random", "next"):
        costs: list[float] = []
        position = NUM_EVENTS // 2
        for _ in range(NUM_POSITIONS):
            position = source.randrange(NUM_EVENTS) if name == "random" else position + 1
            before = read_cpu_s(session)
            page.evaluate(MOVE_SLIDER, position)
            costs.append((read_cpu_s(session) - before) * 1000)
        print(f"slider, {name} position {statistics.median(costs):6.1f} ms of CPU")


if __name__ == "__main__":
    main()
