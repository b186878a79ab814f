"""Prints `docs/reference/timeouts.md`: `python -m tests.timeouts_page > docs/reference/timeouts.md`."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from antiphon.app.cli import commands as cli
from antiphon.app.cli.options import ServeOption
from tests.syntax import list_source_modules, parse_module

HEAD = """# Timeouts, intervals and delays

For operators who set timeouts of proxies and clients beside the server's, and for developers who look for the constant of a delay.

This page is printed by `python -m tests.timeouts_page` from the code: every constant and every field of options or settings that is a time. A
test compares the two. Times are in seconds. Those with an option can be changed at the start; the others are fixed.

Two mechanisms keep silent streams open. A **ping** is a comment in the stream of events, which no client shows; the server sends one when a
connection was silent, so that proxies leave it open. A **keepalive** repeats the latest event of the response's life cycle while a turn has no
item yet, or the event of the call that a tool of the server works on, because some clients count events and not bytes. The Messages API has an event named `ping`, and a keepalive becomes that event.
"""

SECTIONS = {
    "Connections": ("app/errors.py", "app/options/settings.py", "app/http", "app/routes", "app/main"),
    "Turns": ("app/turns", "app/route_helpers", "app/encoders", "app/sandbox"),
    "Models": ("app/options/serve_options.py", "app/models"),
    "Storage": ("app/store",),
    "Engine process": ("engine/process",),
    "Remote engines": ("app/options/remote_options.py", "engine/remote"),
    "Other": ("",),
}
"""Headings, and the paths of their modules. The first that fits counts."""

TIME_NAME = re.compile(r"(?i).*(?<!buckets)(_s|_seconds|_timeout|_delay)")
NO_TIMES = {"DAY_SECONDS", "TICKS_PER_STEP_TIMEOUT", "cpu_s", "longest_gap_s"}
"""Names of units, counts and measurements."""
STRUCTS_OF_OPTIONS = ("Settings", "ServeOptions", "RemoteServeOptions")


def find_times() -> Iterator[tuple[Path, str, str, str]]:
    """Yields module, name, value and docstring of each time of the product."""
    for module in list_source_modules():
        if module.parts[0] in ("console", "harmony", "kit"):
            continue
        tree = parse_module(module)
        for body, prefix in [
            (tree.body, ""),
            *((each.body, f"{each.name}.") for each in tree.body if isinstance(each, ast.ClassDef)),
        ]:
            for node, following in zip(body, [*body[1:], ast.Pass()], strict=True):
                if (found := _read_time(node)) is not None:
                    yield module, prefix + found[0], found[1], _read_docstring(following)


def _read_time(node: ast.stmt) -> tuple[str, str] | None:
    """Returns name and value of a time, or None for another statement."""
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return None
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    if not isinstance(target, ast.Name) or not TIME_NAME.fullmatch(target.id) or target.id in NO_TIMES:
        return None
    elements = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
    numbers = [each.value for each in elements if isinstance(each, ast.Constant) and type(each.value) in (int, float)]
    return (target.id, ", ".join(map(_show_number, numbers))) if numbers else None  # type: ignore[arg-type]


def _read_docstring(node: ast.stmt) -> str:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return " ".join(node.value.value.split()) if is_text else ""  # type: ignore[attr-defined]


def _show_number(number: float) -> str:
    return f"{number:,}".removesuffix(".0").replace(",", " ")


def render_page() -> str:
    """Returns the text of `docs/reference/timeouts.md`."""
    options = {
        str(each.name).removeprefix("engine_"): each for each in cli.serve.params if isinstance(each, ServeOption)
    }
    rows: dict[str, list[str]] = {title: [] for title in SECTIONS}
    for module, name, value, docstring in find_times():
        title = next(title for title, paths in SECTIONS.items() if str(module).startswith(paths))
        owner, _, field = name.rpartition(".")
        option = options.get(field) if owner in STRUCTS_OF_OPTIONS else None
        shown, text = (f"`{option.opts[0]}`", option.help) if option is not None else ("", docstring)
        rows[title].append(f"| `{name}` | {value} | {shown} | {text} | `{module}` |\n")
    table = "| time | default | option | meaning | module |\n|---|---|---|---|---|\n"
    return HEAD + "".join(f"\n## {title}\n\n{table}{''.join(lines)}" for title, lines in rows.items())


if __name__ == "__main__":
    sys.stdout.write(render_page())
