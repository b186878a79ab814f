"""The command line: errors of one line with a remedy and exit code 2, the banner, and the loading status."""

import io
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from antiphon.app.cli.commands import main
from antiphon.app.cli.options import MOST_USED
from antiphon.app.observability import startup
from antiphon.app.options.api_keys import key_digest, plain_key
from antiphon.app.options.serve_options import resolve_store
from antiphon.app.options.settings import Settings
from antiphon.engine.protocol import EngineInfo
from tests.serving import scripted_registry
from tests.syntax import ROOT

SCRIPT = '[[reply]]\nname = "hello"\nspeak = ["Hello."]\n'


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "script.toml"
    path.write_text(SCRIPT, encoding="utf-8")
    return str(path)


def run_serve(*options: str) -> Result:
    return CliRunner().invoke(main, ["serve", "--port", "0", *options])


def read_error_line(result: Result) -> str:
    """Returns the single line of an error with exit code 2."""
    assert result.exit_code == 2
    lines = result.output.strip().splitlines()
    assert len(lines) == 1, result.output
    return lines[0]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "box.lan"])
def test_public_host_requires_an_api_key_or_insecure(host: str, script: str) -> None:
    error = read_error_line(run_serve("--host", host, "--engine", "scripted", "--script", script))
    assert "--api-key" in error
    assert "--insecure" in error


def test_scripted_engine_requires_a_script() -> None:
    assert "needs --script FILE" in read_error_line(run_serve("--engine", "scripted"))


def test_script_requires_the_scripted_engine(script: str) -> None:
    assert "--engine scripted" in read_error_line(run_serve("--script", script))


def test_missing_script_is_an_error() -> None:
    assert "nowhere.toml: cannot be read" in read_error_line(
        run_serve("--engine", "scripted", "--script", "nowhere.toml")
    )


def test_invalid_script_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("[[reply]]\nspeak = 5\n", encoding="utf-8")
    assert "reply 1" in read_error_line(run_serve("--engine", "scripted", "--script", str(path)))


def test_model_that_is_neither_folder_nor_id_is_an_error() -> None:
    assert "no such folder" in read_error_line(run_serve("/no/such/folder"))


def test_folder_without_a_model_is_an_error(tmp_path: Path) -> None:
    assert str(tmp_path) in read_error_line(run_serve(str(tmp_path)))


def test_port_in_use_is_reported_before_the_model_loads(script: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        error = read_error_line(run_serve("--port", port, "--engine", "scripted", "--script", script))
    assert f"cannot listen on 127.0.0.1:{port}" in error
    assert "--port" in error


def test_store_option_sets_the_store_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert resolve_store(None) == (tmp_path / "antiphon" / "responses.db", None)
    assert resolve_store("memory") == (None, None) and resolve_store("some/file.db") == (Path("some/file.db"), None)
    for url in ("postgresql://db/antiphon", "postgres://db/antiphon"):
        assert resolve_store(url) == (None, url)


def test_records_in_a_store_that_ends_with_the_server_are_refused(script: str) -> None:
    command = ("--engine", "scripted", "--script", script, "--store", "memory", "--inspect", "store")
    error = read_error_line(run_serve(*command))
    assert "--store memory" in error and "--inspect memory" in error


def test_store_that_cannot_be_opened_is_an_error(script: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    error = read_error_line(
        run_serve("--engine", "scripted", "--script", script, "--store", str(tmp_path / "file" / "x.db"))
    )
    assert "cannot open the store" in error


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://hans:geheim@127.0.0.1:1/antiphon", "postgresql://127.0.0.1:1/antiphon: Connection refused"),
        ("postgresql://hans:ge:heim@127.0.0.1:1/antiphon", "postgresql://127.0.0.1:1/antiphon: Connection refused"),
        ("postgresql://hans:geh/eim@127.0.0.1:1/antiphon", "the URL of --store cannot be parsed"),
        ("postgresql://127.0.0.1:1/antiphon?password=geheim", "postgresql://127.0.0.1:1/antiphon: Connection refused"),
    ],
)
def test_database_that_cannot_be_opened_is_an_error_without_the_password(
    script: str, tmp_path: Path, url: str, reason: str
) -> None:
    key = str(tmp_path / "key")
    store = ("--store", url, "--encryption-key-file", key)
    error = read_error_line(run_serve("--engine", "scripted", "--script", script, *store))
    assert reason in error and "heim" not in error and "hans" not in error


def list_commands(command: click.Command, *path: str) -> Iterator[tuple[str, ...]]:
    """Yields the path of a command and of all below it."""
    yield path
    if isinstance(command, click.Group):
        for name, subcommand in command.commands.items():
            yield from list_commands(subcommand, *path, name)


@pytest.mark.parametrize("option", ["--help", "-h", "--help-all"])
@pytest.mark.parametrize("path", [*list_commands(main)], ids=lambda path: " ".join(path) or "antiphon")
def test_help_of_every_command(path: tuple[str, ...], option: str) -> None:
    result = CliRunner().invoke(main, [*path, option])
    if option == "--help-all" and path not in [("serve",), ("batch",)]:
        assert result.exit_code == 2 and "No such option" in result.output
    else:
        assert result.exit_code == 0, result.output
        assert result.output.startswith(" ".join(["Usage: main", *path]))


def test_commands_are_found_at_every_level() -> None:
    paths = {*list_commands(main)}
    assert {(), ("serve",), ("batch",), ("keys",), ("keys", "add"), ("store", "check")} <= paths


@pytest.mark.parametrize(("command", "count"), [("serve", 10), ("batch", 6)])
def test_short_help_describes_the_most_used_options_and_names_the_others(command: str, count: int) -> None:
    short, full = (CliRunner().invoke(main, [command, option]).output for option in ("--help", "--help-all"))
    sections = {head: text for head, _, text in (each.partition(":\n") for each in short.split("\n\n"))}
    described = re.findall(r"^  (--[a-z-]+)", sections["Most used"], re.MULTILINE)
    assert len(described) == count and described == [name for name in MOST_USED if name in described]
    named = re.findall(r"(?<!\S)--[a-z-]+", sections["All others, described by --help-all"])
    assert len({*described, *named}) == len(described) + len(named)
    assert {*described, *named, "--help-all"} == {*re.findall(r"^  (--[a-z-]+)", full, re.MULTILINE)}
    assert len(short.splitlines()) < 100 < len(full.splitlines())


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


def test_heavy_modules_are_not_imported_with_the_cli() -> None:
    program = "import sys, antiphon.app.cli.commands; print(*{'litestar', 'uvicorn', 'tokenizers', 'openai_harmony'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True)
    assert not result.stdout.split()


def test_banner_has_lines_to_copy() -> None:
    console = Console(file=io.StringIO(), width=200, force_terminal=False)
    registry = scripted_registry([{"name": "hello", "output": ["Hello."]}], names=("tiny", "gpt-tiny"))
    settings = Settings(host="0.0.0.0", fixed_keys=(plain_key(key_digest("sk-secret")),))
    startup.show_banner(console, settings, registry, 8123, {"tiny": "dialect hermes: chosen by name"})
    banner = console.file.getvalue()  # type: ignore[attr-defined]
    assert "http://127.0.0.1:8123/v1" in banner
    assert "kept in memory" in banner
    assert "tiny, gpt-tiny" in banner
    assert "dialect hermes" in banner
    assert "curl http://127.0.0.1:8123/v1/responses" in banner
    assert '[model_providers.antiphon]\nname = "Antiphon"\nbase_url = "http://127.0.0.1:8123/v1"' in banner
    assert 'env_key = "ANTIPHON_API_KEY"' in banner
    assert "sk-secret" not in banner


def test_loading_status_is_printed_as_lines_without_a_terminal() -> None:
    console = Console(file=io.StringIO(), width=40, force_terminal=False)
    with startup.StartupScreen(console) as loading:
        loading.start(["tiny[bold]", "big"])
        for status in ("loading", "loading: weights", "ready"):
            loading.update("tiny[bold]", status)
        loading.stop()
        for status in ("restarting: try 1 in 0.1 s", "loading: weights", "ready"):
            loading.update("tiny[bold]", status)
        loading.print_lines("200 GET [bold]\n")
    output = console.file.getvalue()  # type: ignore[attr-defined]
    assert output.splitlines() == [
        "Loading tiny[bold], big …",
        "Loading tiny[bold]: weights",
        "The engine of tiny[bold] is ready.",
        "200 GET [bold]",
    ]


@pytest.mark.slow
def test_error_in_the_worker_process_ends_with_one_line() -> None:
    result = run_serve("--device", "abacus")
    assert result.exit_code == 2
    last_line = result.output.strip().splitlines()[-1]
    assert last_line.startswith("Error: ") and "abacus" in last_line


@pytest.mark.parametrize("options", [("--api-key", ""), ("--api-key", " ")])
def test_empty_api_key_is_an_error(options: tuple[str, ...], script: str) -> None:
    error = read_error_line(run_serve("--host", "0.0.0.0", "--engine", "scripted", "--script", script, *options))
    assert "the API key is empty" in error


@pytest.mark.parametrize("value", ["", " ", "a,b"])
def test_empty_api_key_in_the_environment_is_an_error(value: str, script: str) -> None:
    options = ["serve", "--port", "0", "--host", "0.0.0.0", "--engine", "scripted", "--script", script]
    result = CliRunner(env={"ANTIPHON_API_KEY": value}).invoke(main, options)
    assert "ANTIPHON_API_KEY" in read_error_line(result)


@pytest.mark.parametrize(
    ("settings", "warnings"),
    [
        (Settings(), []),
        (Settings(allowed_origins=("https://app.example",)), []),
        (Settings(allowed_origins=("*",)), [startup.PAGES_WARNING]),
        (Settings(host="0.0.0.0", allowed_origins=("*",)), [startup.OPEN_WARNING, startup.PAGES_WARNING]),
        (Settings(host="0.0.0.0", allowed_origins=("*",), fixed_keys=(plain_key(b"digest"),)), []),
    ],
)
def test_banner_warns_of_clients_without_a_key(settings: Settings, warnings: list[str]) -> None:
    console = Console(file=io.StringIO(), width=200, force_terminal=False)
    startup.show_banner(console, settings, scripted_registry([{"name": "hello", "output": ["Hello."]}]), 8000, {})
    banner = console.file.getvalue()  # type: ignore[attr-defined]
    assert [text for text in (startup.OPEN_WARNING, startup.PAGES_WARNING) if text in banner] == warnings


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        (Settings(inspect="off"), ["recording off", "kept in memory"]),
        (Settings(inspect_mib=8), ["recording turns in memory, up to 8 MiB"]),
        (
            Settings(inspect="store", store_file=Path("some.db")),
            ["recording turns in the store, those with `store: false` in memory, up to 64 MiB", "kept in some.db"],
        ),
        (
            Settings(inspect="store", store_url="postgresql://me:secret@host/name"),
            ["recording turns in the store", "kept in a PostgreSQL database"],
        ),
    ],
)
def test_banner_says_what_is_recorded_and_where(settings: Settings, lines: list[str]) -> None:
    console = Console(file=io.StringIO(), width=200, force_terminal=False)
    startup.show_banner(console, settings, scripted_registry([{"name": "hello", "output": ["Hello."]}]), 8000, {})
    banner = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(line in banner for line in lines) and "--inspect" in banner and "secret" not in banner


def test_value_that_is_not_an_origin_is_refused(script: str) -> None:
    result = run_serve("--engine", "scripted", "--script", script, "--allowed-origin", "https://app.example/page")
    assert result.exit_code == 2 and "scheme://host" in result.output


def test_unusable_certificate_is_refused_with_one_line(script: str) -> None:
    error = read_error_line(run_serve("--engine", "scripted", "--script", script, "--ssl-certfile", "missing.pem"))
    assert error == "Error: --ssl-certfile missing.pem: cannot be read: No such file or directory"


def test_banner_says_which_type_is_that_of_the_computation(monkeypatch: pytest.MonkeyPatch) -> None:
    info = EngineInfo(
        max_model_len=64, vocab_size=96, device="cpu", dtype="float32", description="Tiny; packed in bfloat16"
    )
    monkeypatch.setattr(startup, "loaded_info", lambda _: info)
    console = Console(file=io.StringIO(), width=200, force_terminal=False)
    startup.show_banner(console, Settings(), scripted_registry([{"name": "hello", "output": ["Hello."]}]), 8000, {})
    banner = console.file.getvalue()  # type: ignore[attr-defined]
    assert "Tiny; packed in bfloat16 · cpu · computed in float32 · context 64" in banner


def test_banner_of_a_server_with_a_certificate_says_https() -> None:
    console = Console(file=io.StringIO(), width=200, force_terminal=False)
    settings = Settings(host="127.0.0.1", ssl_certfile=Path("certificate.pem"))
    startup.show_banner(console, settings, scripted_registry([{"name": "hello", "output": ["Hello."]}]), 8443, {})
    banner = console.file.getvalue()  # type: ignore[attr-defined]
    assert "base URL  https://127.0.0.1:8443/v1" in banner
    assert "curl https://127.0.0.1:8443/v1/responses" in banner and 'base_url = "https://127.0.0.1:8443/v1"' in banner
    assert "http://" not in banner
