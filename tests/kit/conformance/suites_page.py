"""Prints the part of `docs/check.md` about the suites: `python -m tests.kit.conformance.suites_page`."""

import sys
from pathlib import Path

from antiphon.kit.conformance.suites import SUITE_NAMES, load_suite

BEGIN, END = "<!-- {name}: printed by python -m {module} -->", "<!-- end -->"
"""Lines around a printed part of a page."""


def format_suites() -> str:
    """Returns the suites as Markdown: one table for each, one row for each case."""
    lines: list[str] = []
    for suite in map(load_suite, SUITE_NAMES):
        lines += [f"### {suite.name}", "", f"{suite.title}: {len(suite.case)} cases.", ""]
        has_client = any(case.client for case in suite.case)
        lines += _table_row("case", "checks", "needs", *(["if it goes wrong"] if has_client else []))
        lines += _table_row("---", "---", "---", *(["---"] if has_client else []))
        for case in suite.case:
            clients = [case.client] if has_client else []
            lines += _table_row(f"`{suite.name}.{case.id}`", case.title, ", ".join(case.needs), *clients)
        lines.append("")
    return "\n".join(lines).rstrip()


def replace_part(page: str, name: str, module: str, text: str) -> str:
    """Returns the page with a new text in its part `name`. Raises `ValueError` if the page has no such part."""
    begin = BEGIN.format(name=name, module=module)
    before, found, rest = page.partition(begin)
    _, found_end, after = rest.partition(END)
    if not found or not found_end:
        raise ValueError(f"the page has no part {begin}")
    return f"{before}{begin}\n{text}\n{END}{after}"


def write_part(path: Path, name: str, module: str, text: str) -> None:
    """Writes the new text of a part into a page."""
    path.write_text(replace_part(path.read_text(encoding="utf-8"), name, module, text), encoding="utf-8")


def _table_row(*cells: str) -> list[str]:
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"]


if __name__ == "__main__":
    sys.stdout.write(format_suites() + "\n")
