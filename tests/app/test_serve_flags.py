"""Every flag of `antiphon serve` reaches the setting that it names, alone and from the environment."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from antiphon.app import cli, launch
from antiphon.app.api_keys import key_digest
from antiphon.app.serve_options import ServeOptions
from antiphon.app.settings import Settings
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.spawn import WorkerProcess

Reached = dict[str, Any]
"""What `serve` starts the server with: `settings.*`, `options.*`, `engine.*` and `log_format`."""

FLAGS: dict[str, tuple[list[str], Reached]] = {
    "model": (["some/model"], {"options.model": "some/model"}),
    "served_model_names": (
        ["--served-model-name", "a", "--served-model-name", "b"],
        {"options.served_model_names": ("a", "b")},
    ),
    "host": (["--host", "127.0.0.2"], {"settings.host": "127.0.0.2"}),
    "port": (["--port", "1234"], {"settings.port": 1234}),
    "api_keys": (
        ["--api-key", "sk-1", "--api-key", "sk-2"],
        {"settings.api_key_digests": (key_digest("sk-1"), key_digest("sk-2"))},
    ),
    "api_key_file": (["--api-key-file", "keys"], {"settings.api_key_digests": (key_digest("sk-file"),)}),
    "allowed_hosts": (
        ["--allowed-host", "box", "--allowed-host", "lan"],
        {"settings.allowed_hosts": ("box", "lan")},
    ),
    "allowed_origins": (
        ["--allowed-origin", "https://App.example:443", "--allowed-origin", "*"],
        {"settings.allowed_origins": ("https://app.example", "*")},
    ),
    "ssl_certfile": (["--ssl-certfile", "c.pem"], {"settings.ssl_certfile": Path("c.pem")}),
    "ssl_keyfile": (["--ssl-keyfile", "k.pem"], {"settings.ssl_keyfile": Path("k.pem")}),
    "ssl_keyfile_password": (["--ssl-keyfile-password", "open"], {"settings.ssl_keyfile_password": "open"}),
    "insecure": (["--insecure", "--host", "0.0.0.0"], {"settings.host": "0.0.0.0"}),
    "offline": (["--offline"], {"options.offline": True}),
    "engine": (["--engine", "scripted"], {"options.engine": "scripted"}),
    "script": (["--script", "a.toml"], {"options.script": Path("a.toml")}),
    "dialect": (["--dialect", "hermes"], {"options.dialect": "hermes"}),
    "device": (["--device", "cuda:1"], {"engine.device": "cuda:1"}),
    "max_model_len": (["--max-model-len", "77"], {"engine.max_model_len": 77}),
    "max_num_seqs": (["--max-num-seqs", "7"], {"engine.max_num_seqs": 7}),
    "threads": (["--threads", "3"], {"engine.threads": 3}),
    "compile_kernels": (["--no-compile-kernels"], {"engine.compile_kernels": False}),
    "kv_cache_gib": (["--kv-cache-gib", "1.5"], {"engine.kv_cache_gib": 1.5}),
    "kv_cache_dtype": (["--kv-cache-dtype", "float16"], {"engine.kv_cache_dtype": "float16"}),
    "quantization": (["--quantization", "int8"], {"engine.quantization": "int8"}),
    "force_quantization": (["--force-quantization"], {"engine.force_quantization": True}),
    "deterministic": (["--deterministic"], {"engine.deterministic": True}),
    "reasoning_output": (["--reasoning-output", "both"], {"settings.reasoning_output": "both"}),
    "store": (["--store", "a/b.db"], {"settings.store_file": Path("a/b.db")}),
    "encryption_key_file": (["--encryption-key-file", "k"], {"settings.encryption_key_file": Path("k")}),
    "store_retention_days": (["--store-retention-days", "2.5"], {"settings.store_retention_days": 2.5}),
    "store_max_gib": (["--store-max-gib", "0.5"], {"settings.store_max_gib": 0.5}),
    "enable_websocket": (["--no-websocket"], {"settings.enable_websocket": False}),
    "unsupported_media": (["--unsupported-media", "refuse"], {"settings.unsupported_media": "refuse"}),
    "unknown_tools": (["--unknown-tools", "text"], {"settings.unknown_tools": "text"}),
    "log_format": (["--log-format", "json"], {"log_format": "json"}),
    "default_max_output_tokens": (["--max-output-tokens", "9"], {"settings.default_max_output_tokens": 9}),
    "shutdown_timeout": (["--shutdown-timeout", "0.5"], {"settings.shutdown_timeout": 0.5}),
}
"""Maps each parameter of the command to arguments that set it, and to what these must change."""

ENVIRONMENT: dict[str, tuple[str, Reached]] = {
    "ANTIPHON_API_KEY": ("sk-1 sk-2", {"settings.api_key_digests": (key_digest("sk-1"), key_digest("sk-2"))}),
    "ANTIPHON_API_KEY_FILE": ("keys", {"settings.api_key_digests": (key_digest("sk-file"),)}),
    "ANTIPHON_STORE": ("a/b.db", {"settings.store_file": Path("a/b.db")}),
    "ANTIPHON_ENCRYPTION_KEY_FILE": ("k", {"settings.encryption_key_file": Path("k")}),
}


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys").write_text("sk-file\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[Reached]:
    """Records what the server would be started with. Neither it nor a worker process starts."""
    recorded: list[Reached] = []

    def record_start(options: ServeOptions, settings: Settings, log_format: str, *_: object) -> None:
        engine = options.engine_options
        recorded.append(
            {f"settings.{name}": value for name, value in msgspec.structs.asdict(settings).items()}
            | {f"options.{name}": value for name, value in msgspec.structs.asdict(options).items()}
            | {f"engine.{name}": value for name, value in msgspec.structs.asdict(engine).items()}
            | {"log_format": log_format}
        )
        del recorded[-1]["options.engine_options"]

    monkeypatch.setattr(launch, "run_until_signal", record_start)
    monkeypatch.setattr(cli, "PrespawnedWorker", lambda _: nullcontext(WorkerProcess))
    return recorded


def run_serve(starts: list[Reached], *args: str, **environment: str | None) -> Reached:
    """Runs the command. Returns what it starts the server with."""
    unset = dict.fromkeys(ENVIRONMENT) | environment
    result = CliRunner(env=unset).invoke(cli.main, ["serve", *args])
    assert result.exit_code == 0, result.output
    return starts.pop()


def find_changes(before: Reached, after: Reached) -> Reached:
    assert before.keys() == after.keys()
    return {name: value for name, value in after.items() if value != before[name]}


def test_every_flag_has_a_row() -> None:
    assert {parameter.name for parameter in cli.serve.params} == FLAGS.keys(), "add a row to FLAGS for a new flag"


@pytest.mark.parametrize("name", FLAGS)
def test_flag_changes_its_setting_and_no_other(starts: list[Reached], name: str) -> None:
    args, expected = FLAGS[name]
    assert find_changes(run_serve(starts), run_serve(starts, *args)) == expected


@pytest.mark.parametrize("name", ENVIRONMENT)
def test_environment_variable_changes_its_setting_and_no_other(starts: list[Reached], name: str) -> None:
    value, expected = ENVIRONMENT[name]
    assert find_changes(run_serve(starts), run_serve(starts, **{name: value})) == expected


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("ANTIPHON_API_KEY", "api_keys"),
        ("ANTIPHON_STORE", "store"),
        ("ANTIPHON_ENCRYPTION_KEY_FILE", "encryption_key_file"),
    ],
)
def test_flag_takes_precedence_over_the_environment(starts: list[Reached], name: str, flag: str) -> None:
    args, expected = FLAGS[flag]
    assert find_changes(run_serve(starts), run_serve(starts, *args, **{name: "other"})) == expected


def test_defaults_are_those_of_the_settings(
    starts: list[Reached], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    reached, settings = run_serve(starts), msgspec.structs.asdict(Settings())
    settings["store_file"] = tmp_path / "antiphon/responses.db"
    assert {name: reached[f"settings.{name}"] for name in settings} == settings
    assert run_serve(starts, "--store", "memory")["settings.store_file"] is None


# Options that the launcher uses by itself. The settings have tests of their behavior.


async def test_scripted_engine_gets_names_and_dialect(tmp_path: Path) -> None:
    script = tmp_path / "script.toml"
    script.write_text('[[reply]]\nname = "hello"\nspeak = ["Hello."]\n', encoding="utf-8")
    options = ServeOptions(engine="scripted", script=script, dialect="llama3", served_model_names=("a", "b"))
    model, _ = await launch._create_model(options, lambda _: None, WorkerProcess)
    assert model.names == ("scripted", "a", "b") and model.format.name == "llama3"


@pytest.mark.parametrize("offline", [False, True])
async def test_torch_engine_gets_its_options_and_the_hub_client_offline(
    offline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[tuple[str, bool]] = []
    engines: list[tuple[Any, ...]] = []

    def fetch(model: str, *, offline: bool, **_: Any) -> Path:
        fetched.append((model, offline))
        return launch.MODEL_DIR

    monkeypatch.setattr(launch, "fetch_checkpoint", fetch)
    monkeypatch.setattr(launch, "ProcessEngine", lambda *args, **_: engines.append(args))
    options = ServeOptions(model="some/model", offline=offline, engine_options=EngineOptions(threads=3))
    model, _ = await launch._create_model(options, lambda _: None, WorkerProcess)
    assert fetched == [("some/model", offline)] and model.names == ("some/model",)
    assert engines == [(launch.MODEL_DIR, options.engine_options)]
