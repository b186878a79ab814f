"""`antiphon demo`: the first command of a newcomer, which needs no model."""

import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from antiphon.app.cli.commands import main
from antiphon.kit.cli import demo


def test_reply_is_streamed_and_checked() -> None:
    done = subprocess.run([sys.executable, "-m", "antiphon", "demo"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    added = re.findall(r"output_item.added +\[\d\] (\w+)", done.stdout)
    assert added == ["reasoning", "message", "function_call"]
    assert 'name=get_weather call=call_1 "{\\"city\\": \\"Oslo\\"}"' in done.stdout
    assert done.stdout.endswith("checked: 0 findings\n")


def test_finding_makes_the_command_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = 'fault = {kind = "drop_event", at = "response.output_text.done"}\n'
    monkeypatch.setattr(demo, "SCRIPT", demo.SCRIPT.replace("output =", f"{fault}output ="))
    result = CliRunner().invoke(main, ["demo"])
    assert result.exit_code == 1
    assert "error sequence-gap" in result.output
    assert "checked: 0 findings" not in result.output


def test_server_that_does_not_start_is_an_error_with_its_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "SCRIPT", "reply = 1")
    result = CliRunner().invoke(main, ["demo"])
    assert result.exit_code == 1
    assert "the scripted server did not start:" in result.output
    assert "reply" in result.output
