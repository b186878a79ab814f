"""Every case of the suite hosted passes on Antiphon, with a tool server of the SDK, from Python and from the command line."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from mcp.server import MCPServer

from antiphon.app.cli.commands import main
from antiphon.kit.conformance.client import LiveClient, find_model
from antiphon.kit.conformance.reports import list_case_lines
from antiphon.kit.conformance.runner import CaseRunner
from antiphon.kit.conformance.suites import load_suite
from tests.app.tools.sdk_servers import Seen
from tests.clients.tool_servers import serve_sdk_tools
from tests.kit.conformance.suite_scripts import write_hosted_script
from tests.progress import HANG_TIMEOUT_S
from tests.serving import read_until_ready, scripted_registry, serve
from tests.syntax import ROOT

LABEL, TOOL, RESULT = "house", "look", "the house is green"
SUITE = load_suite("hosted")
SCRIPT = write_hosted_script(LABEL, TOOL, RESULT)


def build_server(_: Seen) -> MCPServer:
    server = MCPServer("house")

    @server.tool(name=TOOL)
    def look() -> str:
        """Looks at the house."""
        return RESULT

    return server


@pytest.fixture(scope="module", params=[False, True], ids=["modern", "legacy"])
def tool_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server of the SDK, of both eras of the protocol."""
    with serve_sdk_tools(build_server, is_legacy=request.param) as (url, _):
        yield url


@pytest.fixture(scope="module")
def runner(tool_url: str) -> Iterator[CaseRunner]:
    registry = scripted_registry(SCRIPT)
    with (
        serve(registry, tool_servers=(f"{LABEL}={tool_url}",)) as server,
        LiveClient(server.url, timeout=HANG_TIMEOUT_S) as client,
    ):
        model = find_model(client, None)
        yield CaseRunner(client, model.name, context_length=model.context_length, mcp_label=LABEL)


@pytest.mark.parametrize("case", SUITE.case, ids=lambda case: case.id)
def test_case_passes(runner: CaseRunner, case: object) -> None:
    report = runner.run_case(SUITE, case)  # type: ignore[arg-type]
    assert report.outcome == "passed" and not report.findings and not report.remarks, "\n".join(list_case_lines(report))


def test_command_line(tmp_path: Path, tool_url: str) -> None:
    """`antiphon check --suite hosted` against `antiphon serve`."""
    script = tmp_path / "script.toml"
    replies = "".join(
        f"[[reply]]\n{''.join(f'{key} = {json.dumps(reply[key], ensure_ascii=False)}{chr(10)}' for key in reply)}"
        for reply in SCRIPT
    )
    script.write_text(replies, encoding="utf-8")
    command = [sys.executable, "-m", "antiphon", "serve", "--engine", "scripted", "--script", str(script)]
    command += ["--port", "0", "--log-format", "json", "--tool-server", f"{LABEL}={tool_url}"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            (url,) = read_until_ready(process.stderr)["base_urls"]
            arguments = ["check", url, "--suite", "hosted", "--mcp-label", LABEL, "--strict"]
            result = CliRunner().invoke(main, arguments, catch_exceptions=False)
        finally:
            process.terminate()
            process.communicate()
    assert result.exit_code == 0, result.output
    assert result.output.count("passed      hosted.") == len(SUITE.case), result.output
