"""Every program of `bench` starts, and every command of a peer names files that exist."""

import importlib.util
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from bench import install, peers, picture_peers
from bench.install import find_script
from bench.peers import PEERS
from tests.syntax import ROOT

PROGRAMS = sorted(path.stem for path in (ROOT / "bench").glob("*.py") if "__main__" in path.read_text(encoding="utf-8"))
PEERS_PACKAGES = ("gguf", "xllamacpp", "sentence_transformers")
"""Packages of the peers' environments, which are not in that of the tests."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_starts(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for package in PEERS_PACKAGES:
        if importlib.util.find_spec(package) is None:
            monkeypatch.setitem(sys.modules, package, MagicMock())
    monkeypatch.delitem(sys.modules, f"bench.{name}", raising=False)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"bench.{name}", run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {name}.py")


def test_programs_are_found() -> None:
    assert {"compare", "decoding", "llama_server", "gguf_file"} <= {*PROGRAMS} and len(PROGRAMS) > 30


def find_missing_scripts(command: list[Any]) -> list[str]:
    """Returns the Python files of a command line that do not exist."""
    return [str(part) for part in command if str(part).endswith(".py") and not Path(part).exists()]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """Returns the commands that are run while a peer's own is built: none of them is really run."""
    run: list[list[Any]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: run.append(command))
    monkeypatch.setattr(peers, "create_model", lambda name: tmp_path / name)
    monkeypatch.setattr(peers, "MODELS_DIR", tmp_path)
    for module in (peers, picture_peers, install):
        monkeypatch.setattr(module, "ENVS_DIR", tmp_path / "envs")
    return run


@pytest.mark.parametrize("name", PEERS)
def test_commands_of_a_peer_name_files_that_exist(name: str, commands: list[list[Any]]) -> None:
    built = [PEERS[name].build_command(Path(model), 8001) for model in PEERS[name].models]
    commands += built
    assert commands and not [missing for command in commands for missing in find_missing_scripts(command)]
    if "llama" in name:
        scripts = {Path(part).name for command in commands for part in command if str(part).endswith(".py")}
        assert scripts == {"gguf_file.py", "llama_server.py"}


def test_commands_of_the_picture_peers_name_files_that_exist(tmp_path: Path, commands: list[list[Any]]) -> None:
    commands.append(picture_peers.LlamaPeer().build_command(tmp_path))
    assert len(commands) == 2 and not [missing for command in commands for missing in find_missing_scripts(command)]


def test_script_that_does_not_exist_is_an_error() -> None:
    assert Path(find_script("llama_server")).is_file()
    with pytest.raises(FileNotFoundError, match="bench has no module nothing"):
        find_script("nothing")
