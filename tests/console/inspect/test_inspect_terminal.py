"""`antiphon inspect` in a pseudo-terminal, and against servers whose every field attacks it."""

import json
import re
from typing import Any

import pytest

from antiphon.kit.proxy.exchange import ServerExchange
from tests.app.inspection.inspector import Inspector
from tests.console.inspect.inspect_script import TOOLS, run_piped
from tests.kit.hostile_server import ATTACKS, list_responses_events, spoil
from tests.kit.hostile_texts import find_foreign_controls
from tests.kit.proxy.wire_servers import run_handler
from tests.kit.pseudo_terminal import PseudoTerminal, run_in_terminal

Json = dict[str, Any]
COLOR = re.compile(r"\x1b\[[0-9;]*m")
MAX_OUTPUT_BYTES = 400_000
VALUES: tuple[Any, ...] = (None, 7, "x", [], [None], {"a": []}, [[["x"]]], float("inf"), True)


def read_lines(terminal: PseudoTerminal, status: int = 0) -> list[str]:
    """Returns the lines without colours, once the command has ended."""
    assert terminal.wait_end() == status, terminal.text
    assert not find_foreign_controls(terminal.output)
    return COLOR.sub("", terminal.text).split("\n")[:-1]


@pytest.mark.parametrize("columns", [40, 200])
def test_timeline_fits_the_terminal(inspector: Inspector, columns: int) -> None:
    turn_id = inspector.ask("Search", tools=TOOLS)
    with run_in_terminal("inspect", turn_id, columns=columns) as terminal:
        lines = read_lines(terminal)
        assert terminal.text.startswith("\x1b[1;32mcompleted: stop_token")
    whole = run_piped(turn_id).stdout.splitlines()
    assert lines == [line if len(line) <= columns else f"{line[: columns - 1]}…" for line in whole]
    assert any(len(line) > 40 for line in whole)


@pytest.mark.parametrize("columns", [40, 200])
def test_response_so_far_is_wrapped(inspector: Inspector, columns: int) -> None:
    turn_id = inspector.ask("Search", tools=TOOLS)
    last = len(inspector.lines(f"/turns/{turn_id}/events")) - 1
    with run_in_terminal("inspect", turn_id, "--at", str(last), columns=columns) as terminal:
        lines = read_lines(terminal)
    assert max(map(len, lines)) <= columns
    whole = run_piped(turn_id, "--at", str(last)).stdout.splitlines()
    start = "response so far:"
    assert "".join(lines[lines.index(start) :]) == "".join(whole[whole.index(start) :])


def test_no_color(inspector: Inspector) -> None:
    turn_id = inspector.ask("Hi")
    with run_in_terminal("inspect", turn_id, NO_COLOR="1") as terminal:
        lines = read_lines(terminal)
        assert b"\x1b" not in terminal.output and lines[0].startswith("completed: stop_token")


@pytest.mark.parametrize(
    "option", [(), ("--at", "8"), ("--prompt",), ("--as", "chat"), ("--as", "test"), ("--as", "json")]
)
def test_hostile_reply_reaches_the_terminal_as_text(inspector: Inspector, option: tuple[str, ...]) -> None:
    turn_id = inspector.ask("attack \x1b[2J\u202e")
    with run_in_terminal("inspect", turn_id, *option, columns=200) as terminal:
        assert read_lines(terminal)


def build_answer(path: str, turn: Json, rows: list[Json], other: Json) -> bytes:
    """Returns the body of a hostile server for a path of `/v1/inspect`."""
    name = path.partition("?")[0].rpartition("/")[2]
    if name == "turns":
        return json.dumps({"data": [turn]}).encode()
    if name in ("events", "prompt", "chat"):
        return b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    if name == "curl":
        return ATTACKS["sequences"].encode("utf-8", "surrogatepass") + b"x\x9b\xff"
    return json.dumps(turn if name == "resp_1" else other).encode()


OPTIONS = ((), ("--follow",), ("--at", "5"), ("--prompt",), ("--as", "chat"), ("--as", "json"), ("--as", "curl"))


def run_against(turn: Json, rows: list[Json], other: Json, option: tuple[str, ...]) -> PseudoTerminal:
    async def handle(exchange: ServerExchange) -> None:
        exchange.start_reply(200, [(b"content-type", b"application/x-ndjson")])
        exchange.write_data(build_answer(exchange.request.target, turn, rows, other))
        exchange.end_reply()

    with run_handler(handle) as url, run_in_terminal("inspect", "resp_1", *option, "--url", url) as terminal:
        terminal.wait_end()
    assert not find_foreign_controls(terminal.output), find_foreign_controls(terminal.output)
    assert "Traceback" not in terminal.text and "the connection" not in terminal.text
    return terminal


@pytest.mark.parametrize("option", [*OPTIONS, ("--verify",), ("--diff", "resp_2")], ids=" ".join)
def test_hostile_server(option: tuple[str, ...]) -> None:
    attack = ATTACKS["sequences"]
    record = {"id": "x", "api": "a", "model": "m", "status": "failed", "dialect": "d", "recorded": True}
    record |= {"ending": {"cause": "c", "detail": "d"}, "description": "d", "error_code": "e"}
    record |= {"previous_response_id": "p", "input_tokens": "1", "times_ms": {"queued": "x"}}
    row = {"step": "s", "state": "S", "inputs": ["I"], "cells": [["S", "I"]], "ids": [1], "texts": ["t"], "data": "d"}
    rows = [
        spoil(row, attack) | {"n": number, "event": spoil(event, attack)}
        for number, event in enumerate(list_responses_events("m"))
    ]
    finding = {"code": "c", "level": "error", "event": "e", "subject": "s", "expected": "e", "actual": "a", "why": "w"}
    cell = {"state": f"S{attack}", "input": f"I{attack}", "next": attack, "verbs": [attack], "guard": attack}
    terminal = run_against(spoil(record, attack), rows, {"data": [spoil(finding, attack)], "cells": [cell]}, option)
    assert len(terminal.output) < MAX_OUTPUT_BYTES and len(terminal.output) > 50


@pytest.mark.parametrize("option", [*OPTIONS[:4], ("--verify",), ("--diff", "resp_2")], ids=" ".join)
@pytest.mark.parametrize("value", VALUES, ids=str)
def test_values_of_any_shape(value: Any, option: tuple[str, ...]) -> None:
    keys = ("status", "ending", "description", "error_code", "dialect", "times_ms", "input_tokens", "recorded", "model")
    row_keys = ("step", "event", "at_us", "state", "inputs", "cells", "detail", "ids", "texts", "round", "cached")
    rows = [{"n": number, **dict.fromkeys(row_keys, value)} for number in range(8)]
    run_against(dict.fromkeys(keys, value), rows, {"data": value, "cells": [value]}, option)


def test_marks_of_restored_tokens() -> None:
    runs = [
        {"round": 0, "n": 0, "ids": [7, 8], "texts": ["a", "b"], "control": False, "cached": True, "restored": True}
    ]
    runs += [{"round": 1, "n": 2, "ids": [9], "control": False, "cached": False, "restored": False}]
    terminal = run_against({}, runs, {}, ("--prompt",))
    lines = COLOR.sub("", terminal.text).split("\n")
    assert lines == [
        "round 0",
        "     0  2 tokens  cached restored",
        "    a·b",
        "round 1",
        "     2  1 tokens",
        "    9",
        "",
    ]
