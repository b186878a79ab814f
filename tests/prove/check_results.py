"""Tabulates reports of `antiphon check --json` on other servers: `python -m tests.prove.check_results FILE`.

FILE is TOML with one `[[server]]` for each server: `name`, `version`, `command` (by which it was started) and
`report`, the path of its report, relative to FILE. The table is printed or, with `--write PAGE`, put into the page.
"""

import json
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from antiphon.kit.findings import load_codes
from tests.kit.conformance.suites_page import write_part

Json = dict[str, Any]


class CheckedServer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server, and the file with its report."""

    name: str
    version: str
    command: str
    report: str


class ResultsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The servers of one table."""

    server: tuple[CheckedServer, ...]


def format_results(results: Sequence[tuple[CheckedServer, Json]]) -> str:
    """Returns the reports as Markdown: the cases of each server, then the findings by code."""
    lines = ["| server | version | cases | passed | failed | skipped | unsupported | errors | warnings | notes |"]
    lines.append("|" + " --- |" * 10)
    for server, report in results:
        summary = report["summary"]
        cells = [server.name, server.version, len(report["cases"]), *summary.values()]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    counts = [_count_codes(report) for _, report in results]
    found = [code for code in load_codes().values() if any(count[code.name] for count in counts)]
    lines += ["", f"| code | level | rule | {' | '.join(server.name for server, _ in results)} |"]
    lines.append("|" + " --- |" * (3 + len(results)))
    for code in found:
        cells = [f"`{code.name}`", code.level, code.title, *(count[code.name] or "" for count in counts)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", "A number is the number of cases with the finding.", ""]
    lines += [f"- {server.name} {server.version}: `{server.command}`" for server, _ in results]
    return "\n".join(lines)


def _count_codes(report: Json) -> Counter[str]:
    """Returns the number of cases in which each code was found."""
    return Counter(code for case in report["cases"] for code in {entry["code"] for entry in case["findings"]})


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--write", "page", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="Page to change.")
def print_results(file: Path, page: Path | None) -> None:
    """Print the reports of FILE as tables."""
    servers = msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), ResultsFile).server
    reports = [json.loads((file.parent / server.report).read_text(encoding="utf-8")) for server in servers]
    text = format_results(list(zip(servers, reports, strict=True)))
    if page is None:
        click.echo(text)
    else:
        write_part(page, "results", "tests.prove.check_results", text)


if __name__ == "__main__":
    print_results()
