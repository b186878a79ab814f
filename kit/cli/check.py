"""`antiphon check`: checks a recorded stream, or a running server."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from antiphon.kit.terminal_output import print_line
from antiphon.kit.terminal_text import escape_json

if TYPE_CHECKING:
    from rich.console import Console

    from antiphon.kit.conformance.client import LiveClient
    from antiphon.kit.conformance.runner import CaseReport

FOUND, UNUSABLE = 1, 2
"""Exit statuses: there are findings; the target cannot be checked."""
DEFAULT_PROXY_PORT = 8001


class UnusableTargetError(click.ClickException):
    """Raised for a target or an option that cannot be used."""

    exit_code = UNUSABLE


@click.command()
@click.argument("target", required=False)
@click.option("--suite", "suites", multiple=True, help="Suite to run; repeatable. Default: all.")
@click.option("--case", "cases", multiple=True, help="Case to run, ID or SUITE.ID; repeatable. Default: all.")
@click.option("--model", help="Model to ask. Default: the first of /v1/models.")
@click.option("--api-key", envvar="OPENAI_API_KEY", help="API key; better given by the variable OPENAI_API_KEY.")
@click.option("--api", type=click.Choice(["responses", "chat"]), help="API of a recorded stream. Default: detected.")
@click.option(
    "--request",
    "request_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="JSON file with the request of a recorded stream, to check settings and tools, too.",
)
@click.option("--json", "as_json", is_flag=True, help="Write the report as one JSON object.")
@click.option(
    "--junit", "junit_file", type=click.Path(path_type=Path, dir_okay=False), help="File for a report in JUnit's XML."
)
@click.option("--strict", is_flag=True, help="Fail for warnings, too.")
@click.option(
    "--timeout",
    default=60.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Seconds to wait for the next byte of the server.",
)
@click.option(
    "--max-output-tokens",
    type=click.IntRange(1),
    help="Limit of the output of a turn, where a case does not need another one. Default: 512.",
)
@click.option(
    "--mcp-label", metavar="LABEL", help="MCP server that the server can reach, for the suite hosted. Default: none."
)
@click.option("--list", "list_only", is_flag=True, help="List suites and cases.")
@click.option("--proxy", metavar="URL", help="Forward requests to this server, and report on all that pass.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to bind with --proxy.")
@click.option(
    "--port",
    default=DEFAULT_PROXY_PORT,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to bind with --proxy; 0: any free port.",
)
@click.pass_context
def check(context: click.Context, /, target: str | None, **options: Any) -> None:
    """Check TARGET: a file with a recorded stream, - for standard input, or the URL of a running server.

    The exit status is 0 without findings, 1 with findings, 2 if the target cannot be checked. The page docs/check.md
    explains the suites, docs/reference/checks.md every code.
    """
    if options["list_only"]:
        _list_suites(options["suites"])
    elif options["proxy"]:
        context.exit(_run_proxy(options))
    elif target is None:
        raise UnusableTargetError("Missing argument TARGET: a file, - or a URL. --list lists the suites.")
    elif target.startswith(("http://", "https://")):
        context.exit(_check_server(target, options))
    else:
        context.exit(_check_file(target, options))


def _check_file(target: str, options: dict[str, Any]) -> int:
    """Checks a recorded stream. Returns the exit status."""
    from antiphon.kit.conformance import exchanges, reports  # noqa: PLC0415  the command line starts fast

    try:
        data = sys.stdin.buffer.read() if target == "-" else Path(target).read_bytes()
    except OSError as error:
        raise UnusableTargetError(f"{target}: cannot be read: {error.strerror or error}") from None
    request = _read_request(options["request_file"])
    api, findings = exchanges.check_recorded(data, options["api"], request)
    failing = _failing_levels(options)
    _write_junit(options["junit_file"], lambda: reports.format_stream_junit(target, findings, failing))
    if options["as_json"]:
        _write_json(reports.describe_stream(target, api, findings))
    else:
        for finding in findings:
            print_line("\n".join(reports.list_finding_lines(finding)))
        print_line(f"{target}: a {api} stream with {len(findings)} findings")
    return FOUND if any(finding.level in failing for finding in findings) else 0


def _check_server(target: str, options: dict[str, Any]) -> int:
    """Runs suites against a server. Returns the exit status."""
    from antiphon.kit.conformance import reports, suites  # noqa: PLC0415  the command line starts fast
    from antiphon.kit.conformance.client import LiveClient, UnreachableError  # noqa: PLC0415
    from antiphon.kit.conformance.display import show_summary  # noqa: PLC0415

    console = _open_console(is_beside_json=options["as_json"])
    try:
        chosen = suites.select_cases(options["suites"], options["cases"])
        with LiveClient(target, api_key=options["api_key"], timeout=options["timeout"]) as client:
            model, results = _run_cases(client, chosen, options, console)
    except (UnreachableError, suites.SuiteError) as error:
        raise UnusableTargetError(str(error)) from None
    _write_junit(options["junit_file"], lambda: reports.format_junit(results))
    if options["as_json"]:
        _write_json(reports.describe_run(target, model, results))
    show_summary(console, results)
    return FOUND if any(report.outcome == "failed" for report in results) else 0


def _run_cases(
    client: "LiveClient", chosen: list[Any], options: dict[str, Any], console: "Console"
) -> tuple[str, list["CaseReport"]]:
    from antiphon.kit.conformance.client import find_model  # noqa: PLC0415
    from antiphon.kit.conformance.display import CaseDisplay  # noqa: PLC0415
    from antiphon.kit.conformance.runner import CaseRunner  # noqa: PLC0415

    model = find_model(client, options["model"])
    runner = CaseRunner(
        client,
        model.name,
        context_length=model.context_length,
        required_suites=options["suites"],
        is_strict=options["strict"],
        max_output_tokens=options["max_output_tokens"],
        mcp_label=options["mcp_label"],
    )
    results = []
    with CaseDisplay(console, len(chosen)) as display:
        for suite, case in chosen:
            display.start_case(f"{suite.name}.{case.id}")
            results.append(runner.run_case(suite, case))
            display.end_case(results[-1])
    return model.name, results


def _run_proxy(options: dict[str, Any]) -> int:
    """Forwards requests until Ctrl+C, and reports on each. Returns the exit status."""
    from antiphon.kit.proxy.check_proxy import run_proxy_command  # noqa: PLC0415  the command line starts fast
    from antiphon.kit.proxy.server import WireServerError  # noqa: PLC0415
    from antiphon.kit.proxy.upstream import UpstreamUrlError  # noqa: PLC0415

    try:
        return run_proxy_command(options["proxy"], options["host"], options["port"])
    except (UpstreamUrlError, WireServerError) as error:
        raise UnusableTargetError(str(error)) from None


def _list_suites(names: tuple[str, ...]) -> None:
    from antiphon.kit.conformance import suites  # noqa: PLC0415  the command line starts fast

    try:
        loaded = [suites.load_suite(name) for name in names or suites.SUITE_NAMES]
    except suites.SuiteError as error:
        raise UnusableTargetError(str(error)) from None
    for suite in loaded:
        click.echo(f"{suite.name}: {suite.title} ({len(suite.case)} cases)")
        for case in suite.case:
            click.echo(f"  {suite.name}.{case.id}: {case.title}")


def _read_request(path: Path | None) -> dict[str, Any] | None:
    import json  # noqa: PLC0415

    if path is None:
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnusableTargetError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise UnusableTargetError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UnusableTargetError(f"{path}: not a JSON object")
    return value


def _failing_levels(options: dict[str, Any]) -> tuple[str, ...]:
    return ("error", "warning") if options["strict"] else ("error",)


def _open_console(*, is_beside_json: bool) -> "Console":
    """Returns the console of the display: standard error if the report is JSON, and then only if it is a terminal."""
    from rich.console import Console  # noqa: PLC0415  the command line starts fast

    console = Console(highlight=False, stderr=is_beside_json)
    console.quiet = is_beside_json and not console.is_terminal
    return console


def _write_json(value: object) -> None:
    import json  # noqa: PLC0415

    click.echo(escape_json(json.dumps(value, ensure_ascii=False, indent=2)))


def _write_junit(path: Path | None, format_report: Any) -> None:
    if path is None:
        return
    try:
        path.write_text(format_report(), encoding="utf-8")
    except OSError as error:
        raise UnusableTargetError(f"{path}: cannot be written: {error.strerror or error}") from None
