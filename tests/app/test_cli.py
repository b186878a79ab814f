"""The command line: what it refuses, in one line with a remedy and exit code 2, and what it says when it serves."""

import io
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from antiphon.app.cli import _resolve_store_file, main
from antiphon.app.observability import startup
from antiphon.app.settings import Settings, key_digest, matching_key
from tests.serving import scripted_registry
from tests.syntax import ROOT

SCRIPT = '[[reply]]\nname = "hello"\nspeak = ["Hello."]\n'


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "script.toml"
    path.write_text(SCRIPT, encoding="utf-8")
    return str(path)


def serve(*words: str) -> Result:
    return CliRunner().invoke(main, ["serve", "--port", "0", *words])


def refusal(result: Result) -> str:
    """The one line of a refusal."""
    assert result.exit_code == 2
    lines = result.output.strip().splitlines()
    assert len(lines) == 1, result.output
    return lines[0]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "box.lan"])
def test_no_open_server_by_accident(host: str, script: str) -> None:
    said = refusal(serve("--host", host, "--engine", "scripted", "--script", script))
    assert "--api-key" in said
    assert "--insecure" in said


def test_a_scripted_engine_needs_a_script() -> None:
    assert "needs --script FILE" in refusal(serve("--engine", "scripted"))


def test_a_script_needs_a_scripted_engine(script: str) -> None:
    assert "--engine scripted" in refusal(serve("--script", script))


def test_a_script_that_is_not_there() -> None:
    assert "nowhere.toml: cannot be read" in refusal(serve("--engine", "scripted", "--script", "nowhere.toml"))


def test_a_script_that_cannot_be_played(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("[[reply]]\nspeak = 5\n", encoding="utf-8")
    assert "reply 1" in refusal(serve("--engine", "scripted", "--script", str(path)))


def test_a_model_that_is_neither_folder_nor_id() -> None:
    assert "no such folder" in refusal(serve("/no/such/folder"))


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    assert str(tmp_path) in refusal(serve(str(tmp_path)))


def test_a_port_in_use_is_known_before_anything_loads(script: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        said = refusal(serve("--port", port, "--engine", "scripted", "--script", script))
    assert f"cannot listen on 127.0.0.1:{port}" in said
    assert "--port" in said


def test_where_responses_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert _resolve_store_file(None) == tmp_path / "antiphon" / "responses.db"
    assert _resolve_store_file("memory") is None and _resolve_store_file("some/file.db") == Path("some/file.db")


def test_a_store_that_cannot_be_opened_is_a_refusal(script: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    said = refusal(serve("--engine", "scripted", "--script", script, "--store", str(tmp_path / "file" / "x.db")))
    assert "cannot open the store" in said


def test_help_names_every_option() -> None:
    result = CliRunner().invoke(main, ["serve", "--help"])
    assert result.exit_code == 0
    for option in (
        "--served-model-name",
        "--host",
        "--port",
        "--api-key",
        "--offline",
        "--engine",
        "--script",
        "--reasoning-output",
    ):
        assert option in result.output


def test_nothing_heavy_is_loaded_before_the_engines_process_begins() -> None:
    check = "import sys, antiphon.app.cli; print(*{'litestar', 'uvicorn', 'tokenizers', 'openai_harmony'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", check], cwd=ROOT, check=True, capture_output=True, text=True)
    assert not done.stdout.split()


def test_the_banner_has_lines_to_paste() -> None:
    screen = Console(file=io.StringIO(), width=200, force_terminal=False)
    catalogue = scripted_registry([{"name": "hello", "output": ["Hello."]}], names=("tiny", "gpt-tiny"))
    settings = Settings(host="0.0.0.0", api_key_digests=(key_digest("sk-secret"),))
    startup.show_banner(screen, settings, catalogue, 8123, {"tiny": "dialect hermes: chosen by name"})
    said = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "http://127.0.0.1:8123/v1" in said
    assert "kept in memory" in said
    assert "tiny, gpt-tiny" in said
    assert "dialect hermes" in said
    assert "curl http://127.0.0.1:8123/v1/responses" in said
    assert '[model_providers.antiphon]\nname = "Antiphon"\nbase_url = "http://127.0.0.1:8123/v1"' in said
    assert 'env_key = "ANTIPHON_API_KEY"' in said
    assert "sk-secret" not in said


def test_loading_is_told_in_lines_where_nothing_can_move() -> None:
    screen = Console(file=io.StringIO(), width=40, force_terminal=False)
    with startup.LoadingStatus(screen) as loading:
        loading.start("tiny[bold]")
        for news in ("loading", "loading: weights", "ready"):
            loading.update(news)
        loading.stop()
        for news in ("restarting: try 1 in 0.1 s", "loading: weights", "ready"):
            loading.update(news)
        loading.print_lines("200 GET [bold]\n")
    said = screen.file.getvalue()  # type: ignore[attr-defined]
    assert said.splitlines() == [
        "Loading tiny[bold] …",
        "Loading tiny[bold]: weights",
        "The engine is back.",
        "200 GET [bold]",
    ]


@pytest.mark.slow
def test_what_only_the_engines_process_finds_out_is_one_line_too() -> None:
    result = serve("--device", "abacus")
    assert result.exit_code == 2
    last = result.output.strip().splitlines()[-1]
    assert last.startswith("Error: ") and "abacus" in last


def test_keys_are_kept_as_digests() -> None:
    keys = (key_digest("one"), key_digest("two"))
    assert matching_key(keys, "two") == key_digest("two")
    assert matching_key(keys, "three") is None
    assert matching_key((), "") is None
    assert b"one" not in b"".join(keys)
