"""A reader can hold any file in the head: limits on modules and functions, and every exception with its reason."""

import ast
from pathlib import Path

from tests.syntax import ROOT, dotted, modules, tree

MODULE_LINES = 320
FUNCTION_LINES = 50

LONG_MODULES: dict[str, str] = {
    "app.requests.fields": "the one list of request fields; in two files a field could be listed twice or not at all",
    "harmony.calls.xml_tags": "the declaration and the reader of its values know each other; apart they need a protocol of twelve stubs",
    "state.machine": "the whole machine is one file, so that order is decided, and read, in one place",
}
"""Module name to the reason why it is long."""

LONG_FUNCTIONS: dict[str, str] = {}
"""`module:function` to the reason why it is long."""


def test_no_module_is_too_long() -> None:
    long = {dotted(path): count for path in modules() if (count := _lines(path)) > MODULE_LINES}
    unexcused = {name: count for name, count in long.items() if name not in LONG_MODULES}
    assert not unexcused, f"modules over {MODULE_LINES} lines: {unexcused}"
    assert set(LONG_MODULES) <= set(long), f"no longer long: {set(LONG_MODULES) - set(long)}"


def test_no_function_is_too_long() -> None:
    long = {name: size for name, size in functions() if size > FUNCTION_LINES}
    unexcused = {name: size for name, size in long.items() if name not in LONG_FUNCTIONS}
    assert not unexcused, f"functions over {FUNCTION_LINES} lines: {unexcused}"
    assert set(LONG_FUNCTIONS) <= set(long), f"no longer long: {set(LONG_FUNCTIONS) - set(long)}"


def functions() -> list[tuple[str, int]]:
    """(`module:function`, lines) of every function in the five packages."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [
        (f"{dotted(path)}:{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1)
        for path in modules()
        for node in ast.walk(tree(path))
        if isinstance(node, kinds)
    ]


def _lines(path: Path) -> int:
    return len((ROOT / path).read_text(encoding="utf-8").splitlines())
