"""Every option of `antiphon serve` reaches its setting from the command line, the environment and a TOML file."""

import os
import re
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner, Result

from antiphon.app.assembly import models as assembly
from antiphon.app.assembly.models import EMBEDDED_MODEL_NAME, create_models
from antiphon.app.cli import commands as cli
from antiphon.app.cli.options import GROUPS, ServeOption
from antiphon.app.main import launch
from antiphon.app.options.api_keys import key_digest, plain_key
from antiphon.app.options.serve_options import ModelOption, ServeOptions
from antiphon.app.options.settings import Settings
from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.options import EngineOptions, LoraModule
from antiphon.engine.process.spawn import WorkerProcess
from antiphon.events.inputs import InputMessage
from antiphon.harmony.format import PromptInput
from antiphon.harmony.tools import ToolTable
from tests.options_page import render_page
from tests.syntax import ROOT

Reached = dict[str, Any]
"""What `serve` starts the server with: `settings.*`, `options.*`, `remote.*`, `engine.*`, `log_format` and `replace`."""

LORA_UPDATES: Reached = {
    "settings.allow_lora_updates": True,
    "settings.lora_dirs": ("/",),
    "engine.allow_lora_updates": True,
}
"""Changes by options for adapters, which are given together."""

FLAGS: dict[str, tuple[list[str], Reached]] = {
    "model": (["some/model", "b=other/model"], {"options.models": ("some/model", "b=other/model")}),
    "served_model_names": (
        ["--served-model-name", "a", "--served-model-name", "b"],
        {"options.served_model_names": ("a", "b")},
    ),
    "model_options": (
        ["--model-option", "a:quantization=int8", "--model-option", "qwen:4b:idle-unload=2m"],
        {
            "options.model_options": (
                ModelOption("a", "quantization", "int8"),
                ModelOption("qwen:4b", "idle_unload_s", 120.0),
            )
        },
    ),
    "load_on_demand": (["--load-on-demand"], {"options.load_on_demand": True}),
    "idle_unload_s": (["--idle-unload", "15m"], {"options.idle_unload_s": 900.0}),
    "memory_gib": (["--memory-gib", "12.5"], {"options.memory_gib": 12.5}),
    "load_timeout_s": (["--load-timeout", "60"], {"options.load_timeout_s": 60.0}),
    "embedding_models": (
        ["--embedding-model", "a/b", "--embedding-model", "c"],
        {"options.embedding_models": ("a/b", "c")},
    ),
    "rerank_models": (["--rerank-model", "a/b"], {"options.rerank_models": ("a/b",)}),
    "host": (["--host", "127.0.0.2"], {"settings.host": "127.0.0.2"}),
    "port": (["--port", "1234"], {"settings.port": 1234}),
    "grpc_port": (["--grpc", "50051"], {"settings.grpc_port": 50051}),
    "api_keys": (
        ["--api-key", "sk-1", "--api-key", "sk-2"],
        {"settings.fixed_keys": (plain_key(key_digest("sk-1")), plain_key(key_digest("sk-2")))},
    ),
    "api_key_file": (
        ["--api-key-file", "keys"],
        {"settings.file_keys": (plain_key(key_digest("sk-file")),), "settings.key_file": Path("keys")},
    ),
    "drain_delay": (["--drain-delay", "5"], {"settings.drain_delay": 5.0}),
    "reuse_port": (["--reuse-port"], {"settings.reuse_port": True}),
    "on_revoke": (["--on-revoke", "cancel"], {"settings.on_revoke": "cancel"}),
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
    "engine_urls": (
        ["--engine-url", "http://a:1", "--engine-url", "http://b:2"],
        {"remote.urls": ("http://a:1", "http://b:2")},
    ),
    "engine_tokenizer": (["--tokenizer", "some/model"], {"remote.tokenizer": "some/model"}),
    "engine_model": (["--engine-model", "name"], {"remote.model": "name"}),
    "engine_surface": (["--engine-surface", "generate"], {"remote.surface": "generate"}),
    "engine_key_env": (["--engine-key-env", "VLLM_API_KEY"], {"remote.key_env": "VLLM_API_KEY"}),
    "engine_affinity_header": (["--engine-affinity-header", "X-Key"], {"remote.affinity_header": "X-Key"}),
    "engine_capacity": (["--engine-capacity", "7"], {"remote.capacity": 7}),
    "engine_timeout_s": (["--engine-timeout", "1.5"], {"remote.timeout_s": 1.5}),
    "engine_grammar": (["--engine-grammar", "off"], {"remote.grammar": "off"}),
    "engine_continuation": (["--continue", "strict"], {"remote.continuation": "strict"}),
    "lora_modules": (
        ["--lora", "sql=/a/b", "--lora", "chat=/c"],
        {"engine.lora_modules": (LoraModule("sql", "/a/b"), LoraModule("chat", "/c"))},
    ),
    "allow_lora_updates": (["--allow-lora-updates", "--lora-dir", "/", "--insecure"], LORA_UPDATES),
    "lora_dirs": (
        ["--lora-dir", "/", "--lora-dir", "/usr", "--allow-lora-updates", "--insecure"],
        LORA_UPDATES | {"settings.lora_dirs": ("/", "/usr")},
    ),
    "script": (["--script", "a.toml"], {"options.script": Path("a.toml")}),
    "record": (["--record", "a.toml"], {"options.record": Path("a.toml")}),
    "dialect": (["--dialect", "hermes"], {"options.dialect": "hermes"}),
    "chat_template": (["--chat-template", "a.jinja"], {"options.chat_template": Path("a.jinja")}),
    "revision": (["--revision", "v1.0"], {"options.revision": "v1.0"}),
    "device": (["--device", "cuda:1"], {"engine.device": "cuda:1"}),
    "max_model_len": (["--max-model-len", "77"], {"engine.max_model_len": 77}),
    "max_num_seqs": (["--max-num-seqs", "7"], {"engine.max_num_seqs": 7}),
    "threads": (["--threads", "3"], {"engine.threads": 3}),
    "compile_kernels": (["--no-compile-kernels"], {"engine.compile_kernels": False}),
    "kv_cache_gib": (["--kv-cache-gib", "1.5"], {"engine.kv_cache_gib": 1.5}),
    "kv_cache_dtype": (["--kv-cache-dtype", "float16"], {"engine.kv_cache_dtype": "float16"}),
    "dtype": (["--dtype", "float32"], {"engine.dtype": "float32"}),
    "quantization": (["--quantization", "int4"], {"engine.quantization": "int4"}),
    "draft_model": (["--draft-model", "some/small-model"], {"engine.draft_model": "some/small-model"}),
    "force_quantization": (["--force-quantization"], {"engine.force_quantization": True}),
    "image_cache_mib": (["--image-cache-mib", "64"], {"engine.image_cache_mib": 64}),
    "pack_cache": (["--no-pack-cache"], {"engine.pack_cache": False}),
    "pack_cache_gib": (["--pack-cache-gib", "1.5"], {"engine.pack_cache_gib": 1.5}),
    "prefix_cache_disk": (["--prefix-cache-disk", "1.5"], {"engine.prefix_cache_disk": 1.5}),
    "deterministic": (["--deterministic"], {"engine.deterministic": True}),
    "reasoning_output": (["--reasoning-output", "both"], {"settings.reasoning_output": "both"}),
    "apply_patch_diffs": (["--apply-patch-diffs"], {"settings.apply_patch_diffs": True}),
    "images": (["--images", "off"], {"settings.images": "off"}),
    "image_tokens": (["--image-tokens", "99"], {"settings.image_tokens": 99}),
    "max_image_tokens": (["--max-image-tokens", "999"], {"settings.max_image_tokens": 999}),
    "max_images": (["--max-images", "9"], {"settings.max_images": 9}),
    "image_hosts": (["--allow-image-host", "x.example"], {"settings.image_hosts": ("x.example",)}),
    "allow_any_image_host": (["--allow-any-image-host"], {"settings.allow_any_image_host": True}),
    "max_file_mib": (["--max-file-mib", "7"], {"settings.max_file_mib": 7}),
    "media_workers": (["--media-workers", "2"], {"settings.media_workers": 2}),
    "media_memory_mib": (["--media-memory-mib", "64"], {"settings.media_memory_mib": 64}),
    "max_image_mib": (["--max-image-mib", "3"], {"settings.max_image_mib": 3}),
    "store": (["--store", "a/b.db"], {"settings.store_file": Path("a/b.db")}),
    "tool_servers": (
        ["--tool-server", "a=http://x/mcp", "--tool-server", "b=http://y/mcp"],
        {"settings.tool_servers": ("a=http://x/mcp", "b=http://y/mcp")},
    ),
    "tool_server_keys": (["--tool-server-key", "a=TOKEN"], {"settings.tool_server_keys": ("a=TOKEN",)}),
    "tool_commands": (["--tool-command", "c=time"], {"settings.tool_commands": ("c=time",)}),
    "tool_timeout_s": (["--tool-timeout", "2m"], {"settings.tool_timeout_s": 120.0}),
    "tool_approvals": (["--tool-approve", "a"], {"settings.tool_approvals": ("a",)}),
    "hosted_tools": (["--hosted", "web_search=a/search"], {"settings.hosted_tools": ("web_search=a/search",)}),
    "hosted_offline": (["--hosted-offline", "web_search"], {"settings.hosted_offline": ("web_search",)}),
    "vector_stores": (["--vector-store", "vs=/"], {"settings.vector_stores": ("vs=/",)}),
    "mcp_allowed_hosts": (["--mcp-allow", "x.example"], {"settings.mcp_allowed_hosts": ("x.example",)}),
    "encryption_key_file": (["--encryption-key-file", "k"], {"settings.encryption_key_file": Path("k")}),
    "disconnect_grace": (["--disconnect-grace", "2.5"], {"settings.disconnect_grace": 2.5}),
    "show_uncommitted": (["--show-uncommitted"], {"settings.show_uncommitted": True}),
    "store_retention_days": (["--store-retention-days", "2.5"], {"settings.store_retention_days": 2.5}),
    "store_max_gib": (["--store-max-gib", "0.5"], {"settings.store_max_gib": 0.5}),
    "enable_websocket": (["--no-websocket"], {"settings.enable_websocket": False}),
    "enable_batches": (["--no-batches"], {"settings.enable_batches": False}),
    "inspect": (["--inspect", "store"], {"settings.inspect": "store"}),
    "inspect_mib": (["--inspect-mib", "8"], {"settings.inspect_mib": 8}),
    "otlp_endpoint": (
        ["--otlp-endpoint", "http://127.0.0.1:4318"],
        {"settings.otlp_endpoint": "http://127.0.0.1:4318"},
    ),
    "otlp_content": (["--otlp-content", "event"], {"settings.otlp_content": "event"}),
    "otlp_content_of": (["--otlp-content-of", "team"], {"settings.otlp_content_of": "team"}),
    "enable_page": (["--no-ui"], {"settings.enable_page": False}),
    "unsupported_media": (["--unsupported-media", "refuse"], {"settings.unsupported_media": "refuse"}),
    "chat_reasoning_field": (
        ["--chat-reasoning-field", "reasoning"],
        {"settings.chat_reasoning_field": "reasoning"},
    ),
    "trust_request_chat_template": (
        ["--trust-request-chat-template"],
        {"settings.trust_request_chat_template": True},
    ),
    "unknown_tools": (["--unknown-tools", "text"], {"settings.unknown_tools": "text"}),
    "audit_log": (["--audit-log", "audit.jsonl"], {"settings.audit_log": Path("audit.jsonl")}),
    "log_format": (["--log-format", "json"], {"log_format": "json"}),
    "replace": (["--replace"], {"replace": True}),
    "default_max_output_tokens": (["--max-output-tokens", "9"], {"settings.default_max_output_tokens": 9}),
    "continue_within": (["--continue-within", "1.5"], {"settings.continue_within": 1.5}),
    "shutdown_timeout": (["--shutdown-timeout", "0.5"], {"settings.shutdown_timeout": 0.5}),
}
"""Maps each parameter of the command to arguments that set it, and to what these must change."""

PARAMETERS = {str(parameter.name): parameter for parameter in cli.serve.params}
SECRETS = ("api_keys", "ssl_keyfile_password")
"""Options that a configuration file must not contain."""


def name_of(parameter: str) -> str:
    """Returns the name of the option, as it is written on the command line without dashes, or `model`."""
    return PARAMETERS[parameter].opts[0].removeprefix("--")


def environment_of(name: str) -> dict[str, str]:
    """Returns the variables that set the same as a row of FLAGS."""
    values: dict[str, list[str]] = {}
    variable = ""
    for argument in FLAGS[name][0]:
        if argument.startswith("--no-"):
            values[argument.removeprefix("--no-")] = ["false"]
        elif argument.startswith("--"):
            variable = argument.removeprefix("--")
            values.setdefault(variable, [])
        else:
            values.setdefault(variable or "model", []).append(argument)
    return {
        f"ANTIPHON_{option.replace('-', '_').upper()}": " ".join(texts) or "true" for option, texts in values.items()
    }


def config_of(name: str, separator: str) -> str:
    """Returns a configuration file that sets the same as a row of FLAGS."""
    lines = []
    for variable, text in environment_of(name).items():
        key = variable.removeprefix("ANTIPHON_").lower().replace("_", separator)
        (parameter,) = (each for each in cli.serve.params if each.opts[0].removeprefix("--") == key.replace("_", "-"))
        is_bare = text in ("true", "false") or isinstance(parameter.type, click.IntRange | click.FloatRange)
        is_repeatable = getattr(parameter, "multiple", False) or parameter.nargs == -1
        value = str(text.split()) if is_repeatable else text if is_bare else f'"{text}"'
        lines.append(f"{key} = {value}")
    return "\n".join(lines)


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys").write_text("sk-file\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[Reached]:
    """Records what the server would be started with. Neither it nor a worker process starts."""
    recorded: list[Reached] = []

    def record_start(options: ServeOptions, settings: Settings, log_format: str, *_: object, replace: bool) -> None:
        engine = options.engine_options
        recorded.append(
            {f"settings.{name}": value for name, value in msgspec.structs.asdict(settings).items()}
            | {f"options.{name}": value for name, value in msgspec.structs.asdict(options).items()}
            | {f"engine.{name}": value for name, value in msgspec.structs.asdict(engine).items()}
            | {f"remote.{name}": value for name, value in msgspec.structs.asdict(options.remote).items()}
            | {"log_format": log_format, "replace": replace}
        )
        del recorded[-1]["options.engine_options"], recorded[-1]["options.remote"]
        del recorded[-1]["settings.file_marks"]  # they follow from the files

    monkeypatch.setattr(launch, "run_until_signal", record_start)
    monkeypatch.setattr(cli, "PrespawnedWorker", lambda _: nullcontext(WorkerProcess))
    return recorded


def run_serve(starts: list[Reached], *args: str, **environment: str | None) -> Reached:
    """Runs the command. Returns what it starts the server with."""
    result = invoke_serve(*args, **environment)
    assert result.exit_code == 0, result.output
    return starts.pop()


def invoke_serve(*args: str, **environment: str | None) -> Result:
    unset = dict.fromkeys(str(parameter.envvar) for parameter in cli.serve.params)
    return CliRunner(env=unset | environment).invoke(cli.main, ["serve", *args])


def read_refusal(*args: str, **environment: str | None) -> str:
    """Returns the single line of a refusal, without `Error: `."""
    result = invoke_serve(*args, **environment)
    lines = result.output.splitlines()
    assert (result.exit_code, len(lines)) == (2, 1), result.output
    return lines[0].removeprefix("Error: ")


def find_changes(before: Reached, after: Reached) -> Reached:
    assert before.keys() == after.keys()
    return {name: value for name, value in after.items() if value != before[name]}


def test_every_flag_has_a_row() -> None:
    assert PARAMETERS.keys() - {"config"} == FLAGS.keys(), "add a row to FLAGS for a new flag"


def test_help_names_the_variable_of_every_option() -> None:
    words = " ".join(invoke_serve("--help-all").output.split())
    for name in FLAGS:
        assert f"ANTIPHON_{name_of(name).replace('-', '_').upper()}" in words


@pytest.mark.parametrize("name", FLAGS)
def test_flag_changes_its_setting_and_no_other(starts: list[Reached], name: str) -> None:
    args, expected = FLAGS[name]
    assert find_changes(run_serve(starts), run_serve(starts, *args)) == expected


@pytest.mark.parametrize("name", FLAGS)
def test_environment_variable_changes_its_setting_and_no_other(starts: list[Reached], name: str) -> None:
    assert find_changes(run_serve(starts), run_serve(starts, **environment_of(name))) == FLAGS[name][1]


@pytest.mark.parametrize("separator", ["-", "_"])
@pytest.mark.parametrize("name", [name for name in FLAGS if name not in SECRETS])
def test_key_of_the_file_changes_its_setting_and_no_other(starts: list[Reached], name: str, separator: str) -> None:
    Path("serve.toml").write_text(config_of(name, separator), encoding="utf-8")
    assert find_changes(run_serve(starts), run_serve(starts, "--config", "serve.toml")) == FLAGS[name][1]
    assert find_changes(run_serve(starts), run_serve(starts, ANTIPHON_CONFIG="serve.toml")) == FLAGS[name][1]


@pytest.mark.parametrize(
    ("key", "setting", "in_file", "in_environment", "on_command_line"),
    [
        ("port", "settings.port", (1, 1), ("2", 2), (["--port", "3"], 3)),
        ("threads", "engine.threads", (1, 1), ("2", 2), (["--threads", "3"], 3)),
        ("shutdown-timeout", "settings.shutdown_timeout", (1, 1.0), ("2", 2.0), (["--shutdown-timeout", "3"], 3.0)),
        ("offline", "options.offline", ("true", True), ("false", False), (["--offline"], True)),
        ("websocket", "settings.enable_websocket", ("false", False), ("true", True), (["--no-websocket"], False)),
        ("store", "settings.store_file", ('"a"', Path("a")), ("b", Path("b")), (["--store", "c"], Path("c"))),
        ("model", "options.models", ('"a/a"', ("a/a",)), ("b/b", ("b/b",)), (["c/c", "d"], ("c/c", "d"))),
        (
            "allowed-host",
            "settings.allowed_hosts",
            ('["a", "b"]', ("a", "b")),
            ("c  d", ("c", "d")),
            (["--allowed-host", "e"], ("e",)),
        ),
    ],
)
def test_command_line_precedes_environment_precedes_file(
    starts: list[Reached],
    key: str,
    setting: str,
    in_file: tuple[Any, Any],
    in_environment: tuple[str, Any],
    on_command_line: tuple[list[str], Any],
) -> None:
    Path("serve.toml").write_text(f"{key} = {in_file[0]}\n", encoding="utf-8")
    file, variable = ("--config", "serve.toml"), {f"ANTIPHON_{key.replace('-', '_').upper()}": in_environment[0]}
    assert run_serve(starts, *file)[setting] == in_file[1]
    assert run_serve(starts, *file, **variable)[setting] == in_environment[1]
    assert run_serve(starts, *file, *on_command_line[0], **variable)[setting] == on_command_line[1]


def test_variable_may_name_a_folder_with_spaces(starts: list[Reached], tmp_path: Path) -> None:
    folder = tmp_path / "my model"
    folder.mkdir()
    assert run_serve(starts, ANTIPHON_MODEL=str(folder))["options.models"] == (str(folder),)
    assert run_serve(starts, ANTIPHON_MODEL="a b=c")["options.models"] == ("a", "b=c")


def test_keys_of_the_environment_precede_the_key_file_of_the_file(starts: list[Reached]) -> None:
    Path("serve.toml").write_text('api-key-file = "keys"\n', encoding="utf-8")
    sources = {"ANTIPHON_API_KEY": "sk-environment", "ANTIPHON_CONFIG": "serve.toml"}
    assert run_serve(starts, **sources)["settings.fixed_keys"] == (plain_key(key_digest("sk-environment")),)
    reached = run_serve(starts, "--api-key-file", "keys", **sources)
    assert reached["settings.file_keys"] == (plain_key(key_digest("sk-file")),)


def test_secrets_are_removed_from_the_environment(starts: list[Reached], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTIPHON_API_KEY", "ANTIPHON_SSL_KEYFILE_PASSWORD", "ANTIPHON_STORE"):
        monkeypatch.setenv(name, "sk-secret")
    cli.serve.main(["--port", "0"], standalone_mode=False)
    assert starts.pop()["settings.ssl_keyfile_password"] == "sk-secret"
    assert "sk-secret" not in os.environ.values()


@pytest.mark.parametrize("name", [name for name in FLAGS if name != "api_keys"])
def test_empty_variable_is_refused(starts: list[Reached], name: str) -> None:
    variable = str(PARAMETERS[name].envvar)
    assert read_refusal(**{variable: " "}) == f"{variable} is empty; set a value, or unset the variable"
    assert not starts


@pytest.mark.parametrize("text", ["served-model-name = 'qwen'", "served-model-name = ['qwen']"])
def test_repeatable_key_of_a_file_takes_one_string(starts: list[Reached], text: str) -> None:
    Path("serve.toml").write_text(f"{text}\n", encoding="utf-8")
    cli.serve.main(["--config", "serve.toml", "--port", "0"], standalone_mode=False)
    assert starts.pop()["options.served_model_names"] == ("qwen",)


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("ANTIPHON_PORT", "tcp://10.0.0.1:80", "'tcp://10.0.0.1:80' is not a valid integer range"),
        ("ANTIPHON_PORT", "70000", "70000 is not in the range 0<=x<=65535"),
        ("ANTIPHON_OFFLINE", "maybe", "'maybe' is not a valid boolean"),
        ("ANTIPHON_ENGINE", "steam", "'steam' is not one of 'torch', 'scripted'"),
        ("ANTIPHON_ALLOWED_ORIGIN", "a.example", "'a.example' is not an origin"),
        ("ANTIPHON_CONFIG", "nowhere.toml", "nowhere.toml: cannot be read: No such file or directory"),
    ],
)
def test_unusable_variable_is_refused_in_one_line(
    starts: list[Reached], variable: str, value: str, reason: str
) -> None:
    refusal = read_refusal(**{variable: value})
    assert reason in refusal and (refusal.startswith(f"{variable}: ") or variable == "ANTIPHON_CONFIG")
    assert not starts


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("hots = 'a'", "hots: unknown key; did you mean host?"),
        ("enable_websocket = true", "enable_websocket: unknown key"),
        ("no-websocket = true", "no-websocket: unknown key; did you mean websocket?"),
        ("config = 'other.toml'", "config: unknown key; see `antiphon serve --help`"),
        ("[serve]\nport = 1", "serve: unknown key"),
        ("host = 5", "host: expected a string"),
        ("host = ['a']", "host: expected a string"),
        ("port = '8000'", "port: expected an integer"),
        ("port = true", "port: expected an integer"),
        ("port = 8000.0", "port: expected an integer"),
        ("port = 70000", "port: 70000 is not in the range 0<=x<=65535"),
        ("kv-cache-gib = '1'", "kv-cache-gib: expected a number"),
        ("kv_cache_gib = 0", "kv_cache_gib: 0.0 is not in the range x>0"),
        ("offline = 'yes'", "offline: expected true or false"),
        ("websocket = 1", "websocket: expected true or false"),
        ("allowed-host = 5", "allowed-host: expected a string, or an array of strings"),
        ("allowed-host = ['box', 1]", "allowed-host: expected a string, or an array of strings"),
        ("allowed-origin = ['box']", "allowed-origin: 'box' is not an origin"),
        ("engine = 'steam'", "engine: 'steam' is not one of 'torch', 'scripted'"),
        ("model = 1", "model: expected a string"),
        ("max-num-seqs = 1\nmax_num_seqs = 2", "max_num_seqs: the option is set twice, also as max-num-seqs"),
        ("api-key = ['sk-1']", "api-key: secrets do not belong into this file; name a file with keys in api-key-file"),
        ("api_key = 'sk-1'", "api_key: secrets do not belong into this file"),
        ("ssl-keyfile-password = 'x'", "ssl-keyfile-password: secrets do not belong into this file"),
        ("port = ", "is not valid TOML: "),
    ],
)
def test_unusable_file_is_refused_in_one_line(starts: list[Reached], text: str, refusal: str) -> None:
    Path("serve.toml").write_text(text, encoding="utf-8")
    assert read_refusal("--config", "serve.toml").startswith(f"serve.toml: {refusal}")
    assert not starts


def test_file_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path) -> None:
    assert read_refusal("--config", "nowhere.toml") == "nowhere.toml: cannot be read: No such file or directory"
    assert read_refusal("--config", str(tmp_path)) == f"{tmp_path}: cannot be read: Is a directory"
    Path("latin.toml").write_bytes(b'host = "\xff"')
    assert read_refusal("--config", "latin.toml") == "latin.toml: is not UTF-8"


def test_store_url_selects_a_database(starts: list[Reached]) -> None:
    url = "postgresql://antiphon:secret@db.internal/antiphon"
    reached = run_serve(starts, "--store", url, "--encryption-key-file", "key")
    assert reached["settings.store_url"] == url and reached["settings.store_file"] is None
    assert reached["settings.encryption_key_file"] == Path("key")


def test_database_requires_a_common_key_and_no_password_in_the_file() -> None:
    refusal = read_refusal("--store", "postgresql://a:secret@db/antiphon")
    assert refusal.startswith("--store postgresql://… requires --encryption-key-file") and "secret" not in refusal
    for url in ("postgresql://a:secret@db/antiphon", "postgresql://db/antiphon?password=secret"):
        Path("serve.toml").write_text(f'store = "{url}"\nencryption-key-file = "key"\n', encoding="utf-8")
        refusal = read_refusal("--config", "serve.toml")
        assert refusal.startswith("store: secrets do not belong into this file") and "secret@" not in refusal


def test_file_may_name_a_database_without_a_password(starts: list[Reached]) -> None:
    for url in ("postgresql://a@db/antiphon", "postgresql://db:5433/antiphon"):
        Path("serve.toml").write_text(f'store = "{url}"\nencryption-key-file = "key"\n', encoding="utf-8")
        assert run_serve(starts, "--config", "serve.toml")["settings.store_url"] == url


def test_help_needs_no_valid_environment() -> None:
    assert invoke_serve("--help", ANTIPHON_PORT="x", ANTIPHON_CONFIG="nowhere.toml", ANTIPHON_HOST="").exit_code == 0


def test_defaults_are_those_of_the_settings(
    starts: list[Reached], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    reached, settings = run_serve(starts), msgspec.structs.asdict(Settings())
    settings["store_file"] = tmp_path / "antiphon/responses.db"
    del settings["file_marks"]
    assert {name: reached[f"settings.{name}"] for name in settings} == settings
    assert run_serve(starts, "--store", "memory")["settings.store_file"] is None


# Options that the launcher uses by itself. The settings have tests of their behavior.


async def test_scripted_engine_gets_names_and_dialect(tmp_path: Path) -> None:
    script = tmp_path / "script.toml"
    script.write_text('[[reply]]\nname = "hello"\nspeak = ["Hello."]\n', encoding="utf-8")
    options = ServeOptions(engine="scripted", script=script, dialect="llama3", served_model_names=("a", "b"))
    models, _ = await create_models(options, Settings(), lambda *_: None, WorkerProcess)
    (model,) = models.served
    assert model.names == ("scripted", "a", "b") and model.format.name == "llama3"


@pytest.mark.parametrize("offline", [False, True])
async def test_torch_engine_gets_its_options_and_the_hub_client_offline(
    offline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[tuple[str, bool, str | None]] = []
    engines: list[tuple[Any, ...]] = []

    def fetch(model: str, *, offline: bool, revision: str | None) -> Path:
        fetched.append((model, offline, revision))
        return MODEL_DIR

    monkeypatch.setattr(assembly, "fetch_checkpoint", fetch)
    monkeypatch.setattr(assembly, "ProcessEngine", lambda *args, **_: engines.append(args))
    engine_options = EngineOptions(threads=3)
    options = ServeOptions(models=("some/model",), offline=offline, revision="v1.0", engine_options=engine_options)
    models, _ = await create_models(options, Settings(), lambda *_: None, WorkerProcess)
    assert fetched == [("some/model", offline, "v1.0")] and models.served[0].names == ("some/model",)
    assert engines == [(MODEL_DIR, options.engine_options)]


async def test_chat_template_of_the_operator_replaces_that_of_the_model(tmp_path: Path) -> None:
    template = tmp_path / "own.jinja"
    template.write_text("{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{% endfor %}")
    options = ServeOptions(chat_template=template)
    models, notes = await create_models(options, Settings(), lambda *_: None, WorkerProcess)
    (model,) = models.served
    prompt_input = PromptInput(items=(InputMessage(role="user", content="Hi."),), tools=ToolTable())
    prompt = model.format.render_prompt(prompt_input, now=datetime(2026, 1, 1, tzinfo=UTC))
    assert prompt.text == "<|user|>Hi."
    assert str(template) in notes[EMBEDDED_MODEL_NAME] and "warning" not in notes[EMBEDDED_MODEL_NAME]


def test_line_about_images_joins_that_about_the_dialect(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, str]] = []
    for name in ("tune_gc", "_write_runtime_file", "show_grpc"):
        monkeypatch.setattr(launch, name, lambda *_: None)
    monkeypatch.setattr(launch, "_explain_images", lambda _: {"both": "No images.", "blind": "No images."})
    display: Any = SimpleNamespace(show_ready=lambda *args: shown.append(args[3]))
    context: Any = SimpleNamespace(settings=Settings(), models=None, page_key="")
    launch._on_ready(display, context, {"both": "dialect glm; warning", "plain": "dialect plain"}, 8000)
    assert shown == [{"both": "dialect glm; warning; No images.", "plain": "dialect plain", "blind": "No images."}]


async def test_calls_of_a_template_that_no_dialect_reads_are_told(tmp_path: Path) -> None:
    template = tmp_path / "own.jinja"
    template.write_text(
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}<deed>{{ c.function.name }}"
        "({{ c.function.arguments | tojson }})</deed>{% endfor %}{% endfor %}"
    )
    _, notes = await create_models(ServeOptions(chat_template=template), Settings(), lambda *_: None, WorkerProcess)
    assert "warning: its chat template writes calls after '<|assistant|><deed>'" in notes[EMBEDDED_MODEL_NAME]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"chat_template": "nowhere.jinja"}, "--chat-template nowhere.jinja: cannot be read: No such file or directory"),
        ({"chat_template": "."}, "--chat-template .: cannot be read: Is a directory"),
        ({"chat_template": "latin.jinja"}, "--chat-template latin.jinja: is not UTF-8"),
        ({"chat_template": "broken.jinja"}, "--chat-template broken.jinja: The model's chat template does not compile"),
        ({"chat_template": "failing.jinja"}, "--chat-template failing.jinja: The model's chat template refused the conversation"),
        ({"chat_template": "silent.jinja"}, "--chat-template silent.jinja: it writes prompts without the user's message"),
        ({"chat_template": "empty.jinja"}, "--chat-template empty.jinja: it writes prompts without the user's message"),
        ({"chat_template": "good.jinja", "dialect": "gpt-oss"}, "--chat-template good.jinja: gpt-oss has a format of its own"),
        ({"chat_template": "good.jinja", "engine": "scripted", "script": "s.toml"}, "--chat-template requires --engine torch"),
        ({"revision": "v1"}, "--revision requires a model of the hub"),
        ({"revision": "v1", "model": "."}, ".: --revision requires a model of the hub, and this is a folder"),
        ({"revision": "v1", "engine": "scripted", "script": "s.toml"}, "--revision requires --engine torch"),
    ],
)  # fmt: skip
def test_unusable_template_or_revision_is_refused_in_one_line(options: dict[str, str], reason: str) -> None:
    Path("latin.jinja").write_bytes(b"\xff")
    Path("broken.jinja").write_text("{% if %}")
    Path("failing.jinja").write_text("{{ messages[0].content.nothing() }}")
    Path("silent.jinja").write_text("{{ bos_token }}Hello!")
    Path("empty.jinja").write_text("")
    Path("good.jinja").write_text("{{ messages[-1].content }}")
    Path("s.toml").write_text('[[reply]]\nname = "hello"\noutput = ["Hello."]\n')
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if name != "model"]
    model = [options["model"]] if "model" in options else []
    result = invoke_serve("--port", "0", "--store", "memory", *flags, *model)
    error = result.output.splitlines()[-1]
    assert (result.exit_code, error[: len(reason) + 7]) == (2, f"Error: {reason}")


def test_page_of_options_is_that_of_the_program() -> None:
    page = (ROOT / "docs/reference/options.md").read_text(encoding="utf-8")
    assert page == render_page(), "run: python -m tests.options_page > docs/reference/options.md"
    assert [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")] == [*GROUPS]


def test_help_shows_every_option_once_below_its_heading() -> None:
    sections = invoke_serve("--help-all").output.split("\n\n")[3:]
    shown = {section.splitlines()[0].removesuffix(":"): section for section in sections}
    assert [*shown] == [*GROUPS, "Help"]
    for parameter in cli.serve.params:
        if isinstance(parameter, ServeOption):
            listed = [
                group
                for group, text in shown.items()
                if re.search(rf"^  {parameter.opts[0]}\b(?!-)", text, re.MULTILINE)
            ]
            assert listed == [parameter.group]
