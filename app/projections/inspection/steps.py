"""Steps of a log as JSON lines: each event with its step, its time, and what the state machine did."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec

from antiphon.app.turn_types.event_log import LogEntry
from antiphon.events.json_lines import encode_json_line
from antiphon.state.table import CELLS, GUARDS, TABLE, Input, State

_UNRECORDED = ("at_us", "inputs")


def encode_steps(entries: Iterable[LogEntry], number: int = 0, step: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yields the number of the step and the line of each event. `number` and `step` are those of the first event.

    Example of a line: `{"n": 3, "step": 2, "at_us": 1200, "state": "MESSAGE", "inputs": ["SAY"], "event": {…}}`. Time,
    state and inputs are on the last event of a step, and null in a turn that was not recorded.
    """
    for entry in entries:
        line: dict[str, Any] = {"n": number, "step": step, "event": msgspec.Raw(entry.data)}
        if entry.detail is not None:
            inputs = [CELLS[each] for each in entry.detail.inputs]
            line["at_us"] = entry.detail.at_us or None
            line["state"] = TABLE[inputs[-1]].next.name if inputs else None
            line["inputs"] = [symbol.name for _, symbol in inputs] if inputs else None
            line["cells"] = [[state.name, symbol.name] for state, symbol in inputs]
            detail = msgspec.to_builtins(entry.detail)
            line["detail"] = {name: value for name, value in detail.items() if name not in _UNRECORDED}
            step += 1
        number += 1
        yield step, encode_json_line(line)


def encode_page(entries: list[LogEntry], after: int, limit: int) -> bytes:
    """Returns the lines of up to `limit` events after number `after`."""
    first = min(after + 1, len(entries))
    step = sum(entry.detail is not None for entry in islice(entries, first))
    lines = encode_steps(islice(entries, first, first + limit), first, step)
    return b"".join(line for _, line in lines)


def build_table() -> dict[str, Any]:
    """Returns the table of the state machine."""
    return {
        "states": [state.name for state in State],
        "inputs": [symbol.name for symbol in Input],
        "cells": [
            {
                "state": state.name,
                "input": symbol.name,
                "next": cell.next.name,
                "verbs": list(cell.verbs),
                "guard": GUARDS.get((state, symbol)),
            }
            for (state, symbol), cell in TABLE.items()
        ],
    }
