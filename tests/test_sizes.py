"""Limits on the length of modules and functions, and every exception with its reason."""

import ast
from pathlib import Path

from tests.syntax import ROOT, list_source_modules, module_name, parse_module

MAX_MODULE_LINES = 320
MAX_FUNCTION_LINES = 50

LONG_MODULES: dict[str, str] = {
    "engine.protocol": "the whole contract of engines is one page: its messages refer to each other, and most lines describe fields",
    "app.turn_types.event_log": "a log and its readers depend on each other: which entries a reader may see is decided in one place",
    "harmony.calls.xml_tags": "the declaration and the parser of its values depend on each other; apart they need a protocol of twelve stubs",
    "app.websocket.endpoint": "one connection: its frames, turns and steers share its lanes, what they remember, and the declaration of the endpoint",
    "state.machine": "the whole machine is in one file, so that the order of events is decided in one place",
}
"""Maps a module name to the reason why it is long."""

LONG_FUNCTIONS: dict[str, str] = {}
"""Maps `module:function` to the reason why it is long."""


def test_no_module_is_too_long() -> None:
    long = {
        module_name(path): count for path in list_source_modules() if (count := _count_lines(path)) > MAX_MODULE_LINES
    }
    unlisted = {name: count for name, count in long.items() if name not in LONG_MODULES}
    assert not unlisted, f"modules over {MAX_MODULE_LINES} lines: {unlisted}"
    assert set(LONG_MODULES) <= set(long), f"no longer long: {set(LONG_MODULES) - set(long)}"


def test_no_function_is_too_long() -> None:
    long = {name: size for name, size in measure_functions() if size > MAX_FUNCTION_LINES}
    unlisted = {name: size for name, size in long.items() if name not in LONG_FUNCTIONS}
    assert not unlisted, f"functions over {MAX_FUNCTION_LINES} lines: {unlisted}"
    assert set(LONG_FUNCTIONS) <= set(long), f"no longer long: {set(LONG_FUNCTIONS) - set(long)}"


def measure_functions() -> list[tuple[str, int]]:
    """Returns (`module:function`, lines) of every function in the five packages."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [
        (f"{module_name(path)}:{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1)
        for path in list_source_modules()
        for node in ast.walk(parse_module(path))
        if isinstance(node, kinds)
    ]


def _count_lines(path: Path) -> int:
    return len((ROOT / path).read_text(encoding="utf-8").splitlines())
