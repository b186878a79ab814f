"""Shell completion: the lines of README and docs print a script, and names of options are completed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.syntax import ROOT

PROGRAM = str(Path(sys.executable).with_name("antiphon"))
SHELLS = ("bash", "zsh", "fish")
DOCUMENTED = re.compile(r"_ANTIPHON_COMPLETE=(\w+)_source antiphon\b")


def complete(shell: str, *words: str) -> list[str]:
    """Returns the completions of the last word."""
    environment = {"_ANTIPHON_COMPLETE": f"{shell}_complete", "COMP_WORDS": " ".join(words)}
    environment["COMP_CWORD"] = words[-1] if shell == "fish" else str(len(words) - 1)
    run = subprocess.run([PROGRAM], env=os.environ | environment, capture_output=True, text=True, check=False)
    assert not run.stderr
    return run.stdout.split()


@pytest.mark.parametrize("shell", SHELLS)
def test_documented_line_prints_a_script(shell: str) -> None:
    text = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    assert set(DOCUMENTED.findall(text)) == set(SHELLS)
    run = subprocess.run(
        [PROGRAM],
        env=os.environ | {"_ANTIPHON_COMPLETE": f"{shell}_source"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"_ANTIPHON_COMPLETE={shell}_complete" in run.stdout and "antiphon" in run.stdout


def test_options_and_values_are_completed() -> None:
    assert complete("bash", "antiphon", "serve", "--grp") == ["plain,--grpc"]
    assert complete("zsh", "antiphon", "serve", "--grp")[:2] == ["plain", "--grpc"]
    assert complete("fish", "antiphon", "serve", "--grp")[0].startswith("plain,--grpc")
    assert complete("bash", "antiphon", "se") == ["plain,serve"]
    assert complete("bash", "antiphon", "serve", "--engine", "")[:3] == ["plain,torch", "plain,scripted", "plain,vllm"]
    assert complete("bash", "antiphon", "serve", "--config", "a.toml", "--grp") == ["plain,--grpc"]


def test_unusable_environment_does_not_disturb_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_PORT", "x")
    monkeypatch.setenv("ANTIPHON_HOST", "")
    monkeypatch.setenv("ANTIPHON_CONFIG", "nowhere.toml")
    assert complete("bash", "antiphon", "serve", "--grp") == ["plain,--grpc"]
