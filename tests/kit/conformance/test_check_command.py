"""`antiphon check`: targets, options, reports and exit statuses."""

import json
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import httpx
import pytest
from click.testing import CliRunner, Result

from antiphon.app.cli.commands import main
from antiphon.kit.conformance.suites import SUITE_NAMES, load_suite
from tests.kit.conformance.suite_scripts import write_script
from tests.serving import RunningServer, scripted_registry, serve

KEY = "sk-check-secret"
SERVER = partial(serve, lambda: scripted_registry(write_script(), names=("first", "second")), api_keys=(KEY,))
BODY = {"model": "first", "input": "Say hello. (basics.text.1)", "stream": True}


def run_check(*arguments: str, stdin: bytes | None = None, **environment: str) -> Result:
    return CliRunner().invoke(main, ["check", *arguments], input=stdin, env=environment, catch_exceptions=False)


@pytest.fixture(scope="module")
def recorded(server: RunningServer) -> bytes:
    headers = {"authorization": f"Bearer {KEY}"}
    return httpx.post(f"{server.url}/responses", json=BODY, headers=headers).content


def write_file(folder: Path, data: bytes) -> str:
    (folder / "stream.sse").write_bytes(data)
    return str(folder / "stream.sse")


def test_recorded_stream_without_findings_exits_with_0(tmp_path: Path, recorded: bytes) -> None:
    result = run_check(write_file(tmp_path, recorded))
    assert result.exit_code == 0 and "a responses stream with 0 findings" in result.output


def test_finding_is_shown_with_its_place_and_reason_and_exits_with_1(tmp_path: Path, recorded: bytes) -> None:
    result = run_check(write_file(tmp_path, recorded.replace(b'"sequence_number":3', b'"sequence_number":7')))
    assert result.exit_code == 1
    assert "error sequence-gap: event 3, sequence_number 7" in result.output
    assert "expected: 3\n" in result.output and "actual:   7\n" in result.output
    assert "why:      Clients that check for lost events report one." in result.output


def test_standard_input_is_checked(recorded: bytes) -> None:
    assert run_check("-", stdin=recorded).exit_code == 0
    assert run_check("-", stdin=recorded[:-400]).exit_code == 1


def test_chat_stream_is_detected(server: RunningServer) -> None:
    body = {"model": "first", "messages": [{"role": "user", "content": BODY["input"]}], "stream": True}
    chat = httpx.post(f"{server.url}/chat/completions", json=body, headers={"authorization": f"Bearer {KEY}"}).content
    result = run_check("-", "--json", stdin=chat)
    assert result.exit_code == 0 and json.loads(result.output) == {"target": "-", "api": "chat", "findings": []}
    assert "event-type-missing" in run_check("-", "--api", "responses", stdin=chat).output


def test_request_file_adds_the_checks_of_settings(tmp_path: Path, recorded: bytes) -> None:
    request = tmp_path / "request.json"
    request.write_text(json.dumps(BODY | {"max_output_tokens": 3, "tool_choice": "required"}))
    result = run_check("-", "--request", str(request), "--json", stdin=recorded)
    codes = {finding["code"] for finding in json.loads(result.output)["findings"]}
    assert result.exit_code == 1 and "tool-choice-required" in codes


def test_warnings_fail_with_strict_only(recorded: bytes) -> None:
    with_carriage_returns = recorded.replace(b"\n", b"\r\n")
    assert run_check("-", stdin=with_carriage_returns).exit_code == 0
    assert run_check("-", "--strict", stdin=with_carriage_returns).exit_code == 1


def test_junit_report_of_a_stream_has_one_failure(tmp_path: Path, recorded: bytes) -> None:
    run_check("-", "--junit", str(tmp_path / "good.xml"), stdin=recorded)
    run_check("-", "--junit", str(tmp_path / "bad.xml"), stdin=recorded[:-400])
    good, bad = (ET.parse(tmp_path / f"{name}.xml").getroot() for name in ("good", "bad"))
    assert [suite.get("failures") for suite in (*good, *bad)] == ["0", "1"]
    failure = bad.find("testsuite/testcase/failure")
    assert failure is not None and "terminal-missing" in (failure.text or "")


def test_suite_against_a_server_exits_with_0_and_hides_the_key(server: RunningServer, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    result = run_check(server.root, "--suite", "basics", "--junit", str(report), OPENAI_API_KEY=KEY)
    assert result.exit_code == 0, result.output
    assert "passed      basics.text" in result.output and KEY not in result.output + report.read_text()
    [suite] = ET.parse(report).getroot()
    count = str(len(load_suite("basics").case))
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("basics", count, "0")


def test_report_as_json_has_summary_and_cases(server: RunningServer) -> None:
    result = run_check(server.url, "--case", "tools.call", "--json", "--model", "second", "--api-key", KEY)
    report = json.loads(result.output)
    assert (result.exit_code, report["model"], report["summary"]["passed"]) == (0, "second", 1)
    assert [(case["suite"], case["id"], case["outcome"], case["findings"]) for case in report["cases"]] == [
        ("tools", "call", "passed", [])
    ]


def test_findings_of_a_server_exit_with_1(server: RunningServer) -> None:
    result = run_check(server.url, "--case", "basics.text", "--model", "third", "--api-key", KEY)
    assert result.exit_code == 1
    assert "failed      basics.text" in result.output and "error http-status: step 1" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing argument TARGET"),
        (("/no/such/file.sse",), "cannot be read"),
        (("http://127.0.0.1:9",), "cannot connect to http://127.0.0.1:9"),
        (("http://127.0.0.1:9", "--suite", "none"), "there is no suite 'none': use one of basics"),
        (("http://127.0.0.1:9", "--case", "no-such"), "there is no case 'no-such'"),
        (("--list", "--suite", "none"), "there is no suite 'none'"),
        (("-", "--request", "/no/such/file.json"), "cannot be read"),
        (("--proxy", "ftp://x"), "ftp://x"),
    ],
    ids=str,
)
def test_unusable_target_exits_with_2(arguments: tuple[str, ...], message: str) -> None:
    result = run_check(*arguments, stdin=b"")
    assert result.exit_code == 2 and message in result.output


def test_list_has_every_case() -> None:
    lines = run_check("--list").output.splitlines()
    cases: list[Any] = [f"  {name}.{case.id}: {case.title}" for name in SUITE_NAMES for case in load_suite(name).case]
    assert [line for line in lines if line.startswith("  ")] == cases
    assert [line.partition(":")[0] for line in lines if not line.startswith("  ")] == list(SUITE_NAMES)


def test_terminal_shows_progress_and_a_table(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = run_check(server.url, "--suite", "basics", "--api-key", KEY)
    assert result.exit_code == 0 and "\x1b[" in result.output and "unsupported" in result.output
    assert "passed      basics.text" not in result.output


def test_limit_of_the_output_holds_for_every_turn(server: RunningServer) -> None:
    names = ("codex.first-request", "basics.text", "basics.settings")
    arguments = (server.url, "--api-key", KEY, "--json", *(word for name in names for word in ("--case", name)))
    limited = json.loads(run_check(*arguments, "--max-output-tokens", "2").output)
    assert [case["outcome"] for case in limited["cases"]] == ["skipped", "passed", "skipped"]
    assert not any(case["findings"] for case in limited["cases"])
    limited_chat = json.loads(
        run_check(
            server.url, "--api-key", KEY, "--json", "--case", "tools.chat-round-trip", "--max-output-tokens", "2"
        ).output
    )
    assert limited_chat["cases"][0]["outcome"] == "skipped" and "max_tokens" in str(limited_chat["cases"][0]), (
        limited_chat
    )
    assert {case["outcome"] for case in json.loads(run_check(*arguments).output)["cases"]} == {"passed"}
