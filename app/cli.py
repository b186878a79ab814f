"""The command line.

Importing this module imports nothing heavy: `serve` first spawns the engine's worker process, which needs seconds for
its own imports, and imports the server at the same time.
"""

import os
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import click

from antiphon.app.adapters.cli_options import add_adapter_options, check_lora_updates
from antiphon.app.base.api_keys import ApiKeyError, read_api_keys
from antiphon.app.base.settings import Settings
from antiphon.app.models.cli_options import add_model_options
from antiphon.app.option_types import (
    ApiKeyOption,
    OriginType,
    ServeArgument,
    ServeOption,
    apply_config_file,
    is_from_config_file,
)
from antiphon.app.remote.cli_options import add_remote_options, pop_remote_options
from antiphon.app.serve_options import ServeError, ServeOptions, check_public_bind, check_store_url, resolve_store
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.spawn import PrespawnedWorker, WorkerProcess
from antiphon.harmony.dialects import NAMES
from antiphon.kit.cli.check import check
from antiphon.kit.cli.record import record
from antiphon.kit.cli.replay import replay

PRELOADED_MODULE = "antiphon.engine.builder"
"""Module that the worker process imports before it receives its model."""

serve_option = partial(click.option, cls=ServeOption)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="antiphon")
def main() -> None:
    """Antiphon: a self-hosted server for the OpenAI Responses API."""


@main.command()
@click.argument("model", nargs=-1, cls=ServeArgument, envvar="ANTIPHON_MODEL")
@serve_option(
    "--config",
    type=click.Path(path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=apply_config_file,
    help="TOML file with options: their names are the keys. Command line and environment take precedence over it.",
)
@add_model_options
@serve_option("--host", default="127.0.0.1", show_default=True, help="Address to bind.")
@serve_option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="Port; 0: any free port.")
@serve_option("--grpc", "grpc_port", type=click.IntRange(0, 65535), help="Port of gRPC; 0: any. Models have one each.")
@serve_option(
    "--api-key",
    "api_keys",
    cls=ApiKeyOption,
    multiple=True,
    help="API key that clients must send; repeatable. Other users of the machine can see it in the process list: use "
    "--api-key-file or the variable, which may hold several keys separated by spaces.",
)
@serve_option(
    "--api-key-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with API keys, one per line.",
)
@serve_option("--allowed-host", "allowed_hosts", multiple=True, help="Additional allowed Host header; repeatable.")
@serve_option(
    "--allowed-origin",
    "allowed_origins",
    multiple=True,
    type=OriginType(),
    help="Origin of web pages that may use the server from a browser, such as https://app.example, or * for every "
    "page; repeatable.",
)
@serve_option(
    "--ssl-certfile",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Certificate in PEM format, followed by those of its issuers: serve HTTPS instead of HTTP.",
)
@serve_option(
    "--ssl-keyfile",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Private key of the certificate in PEM format. Default: in the file of the certificate.",
)
@serve_option(
    "--ssl-keyfile-password",
    help="Password of an encrypted private key. Other users of the machine can see it in the process list: use "
    "the variable.",
)
@serve_option("--insecure", is_flag=True, help="Allow a non-loopback address without an API key.")
@serve_option("--revision", help="Branch, tag or commit of a model of the hub. Default: the main branch.")
@serve_option("--offline", is_flag=True, help="Load hub models from the local cache only.")
@serve_option(
    "--engine",
    type=click.Choice(["torch", "scripted", "vllm", "sglang", "llama.cpp", "trtllm", "remote"]),
    default="torch",
    show_default=True,
    help="torch runs a model; scripted replays the file of --script; the others use the servers of --engine-url "
    "(remote: of any of these kinds).",
)
@add_remote_options
@add_adapter_options
@serve_option("--script", type=click.Path(path_type=Path), help="TOML file that the scripted engine replays.")
@serve_option(
    "--record",
    type=click.Path(path_type=Path, dir_okay=False),
    help="New file for the engine's token streams, as a script for --script. It holds prompts and replies in clear.",
)
@serve_option(
    "--dialect",
    type=click.Choice(NAMES),
    metavar="TEXT",
    help="Output dialect of the model; see `antiphon dialects`. Default: detected.",
)
@serve_option(
    "--chat-template",
    type=click.Path(path_type=Path),
    help="Jinja file to use instead of the model's own chat template.",
)
@serve_option("--device", help="Device to run on: cpu, cuda, cuda:1, … Default: cuda if available, otherwise cpu.")
@serve_option("--max-model-len", type=click.IntRange(1), help="Maximum context length in tokens. Default: the model's.")
@serve_option("--max-num-seqs", type=click.IntRange(1), help="Maximum number of concurrent sequences. Default: 64.")
@serve_option("--threads", type=click.IntRange(1), help="CPU threads. Default: the physical cores, fewer under load.")
@serve_option(
    "--compile-kernels/--no-compile-kernels",
    default=True,
    show_default=True,
    help="Compile native CPU kernels at the first start.",
)
@serve_option(
    "--kv-cache-gib",
    type=click.FloatRange(0, min_open=True),
    help="KV cache memory in GiB. Default: 70 % of the memory that is free after loading.",
)
@serve_option(
    "--kv-cache-dtype",
    type=click.Choice(["float32", "float16"]),
    help="KV cache type on a CPU. Default: float16 with quantized weights, otherwise the model's.",
)
@serve_option(
    "--quantization", type=click.Choice(["int8", "int4"]), help="Quantize linear layers to 8 or 4 bits (CPU only)."
)
@serve_option("--force-quantization", is_flag=True, help="Serve a quantized model even if its logits differ too much.")
@serve_option(
    "--pack-cache/--no-pack-cache",
    default=True,
    show_default=True,
    help="Keep quantized weights in ~/.cache/antiphon, so that the next start is fast.",
)
@serve_option(
    "--pack-cache-gib",
    type=click.FloatRange(0, min_open=True),
    help="Disk space for quantized weights in GiB; those used longest ago are deleted. Default: 32.",
)
@serve_option(
    "--deterministic", is_flag=True, help="Generate the same tokens for the same seed under any load. Slower."
)
@serve_option(
    "--reasoning-output",
    type=click.Choice(["content", "summary", "both"]),
    default="content",
    show_default=True,
    help="Where reasoning appears. Codex shows summaries only.",
)
@serve_option(
    "--store",
    help="File for stored responses, postgresql://USER:PASSWORD@HOST/DATABASE, or `memory`. "
    "Default: antiphon/responses.db in the user's data folder.",
)
@serve_option(
    "--encryption-key-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Key file for encrypted_content; created if missing. Default: next to the store.",
)
@serve_option(
    "--store-retention-days",
    default=30.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Days to keep stored responses.",
)
@serve_option(
    "--store-max-gib",
    default=4.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Maximum size of stored responses in GiB; the oldest are deleted first.",
)
@serve_option(
    "--websocket/--no-websocket",
    "enable_websocket",
    default=True,
    show_default=True,
    help="Serve WebSockets on /v1/responses.",
)
@serve_option(
    "--unsupported-media",
    type=click.Choice(["placeholder", "refuse"]),
    default="placeholder",
    show_default=True,
    help="Images and files in the input: replace by a placeholder, or answer 400.",
)
@serve_option(
    "--unknown-tools",
    type=click.Choice(["call", "text"]),
    default="call",
    show_default=True,
    help="Calls of tools that were not offered: return them as calls, or as text.",
)
@serve_option(
    "--chat-reasoning-field",
    type=click.Choice(["reasoning_content", "reasoning"]),
    default="reasoning_content",
    show_default=True,
    help="Name of the field for reasoning in chat messages. Both names are read.",
)
@serve_option(
    "--trust-request-chat-template",
    is_flag=True,
    help="Let requests bring a chat template of their own (`chat_template`), which can write any control token.",
)
@serve_option(
    "--log-format",
    type=click.Choice(["console", "json"]),
    default="console",
    show_default=True,
    help="Log lines for people, or one JSON object per line.",
)
@serve_option(
    "--max-output-tokens",
    "default_max_output_tokens",
    type=click.IntRange(1),
    help="Output limit of requests that set none. Default: the rest of the context.",
)
@serve_option(
    "--shutdown-timeout",
    default=5.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Seconds to let running responses finish on shutdown.",
)
def serve(**flags: Any) -> None:
    """Serve models. MODEL is a folder or a hub id, or NAME=MODEL; without it, the embedded model is served.

    A folder holds safetensors, config.json and tokenizer.json; MODEL may also be a GGUF file. A hub id (owner/name) is
    downloaded once. Every option can also be set by its environment variable (MODEL by ANTIPHON_MODEL) and in the file
    of --config. Values of repeatable options are separated by spaces in a variable.
    """
    for name in ("ANTIPHON_SSL_KEYFILE_PASSWORD", "ANTIPHON_STORE"):
        os.environ.pop(name, None)  # it has been read; child processes do not need the password
    environment_keys, key_file = os.environ.pop("ANTIPHON_API_KEY", None), flags.pop("api_key_file")
    if environment_keys is not None and is_from_config_file("api_key_file"):
        key_file = None  # the environment takes precedence
    try:
        digests = read_api_keys(flags.pop("api_keys"), key_file, environment_keys)
    except ApiKeyError as error:
        raise ServeError(str(error)) from None
    store_file, store_url = resolve_store(flags.pop("store"))
    if store_url is not None:
        check_store_url(store_url, flags["encryption_key_file"], is_in_file=is_from_config_file("store"))
    settings = Settings(api_key_digests=digests, store_file=store_file, store_url=store_url, **_pick(Settings, flags))
    engine_options = EngineOptions(
        **{name: value for name, value in _pick(EngineOptions, flags).items() if value is not None}
    )
    remote = pop_remote_options(flags)
    models = flags.pop("model")
    options = ServeOptions(models=models, engine_options=engine_options, remote=remote, **_pick(ServeOptions, flags))
    check_public_bind(settings, insecure=flags["insecure"])
    check_lora_updates(settings, insecure=flags["insecure"])
    loads_now = options.engine == "torch" and not options.load_on_demand
    preloading = PrespawnedWorker(PRELOADED_MODULE) if loads_now else nullcontext(WorkerProcess)
    try:
        with preloading as spawn:
            from antiphon.app.launch import run_until_signal  # noqa: PLC0415  see the module's docstring

            run_until_signal(options, settings, flags["log_format"], spawn)
    except KeyboardInterrupt:  # during the imports; click would print "Aborted!"
        sys.exit(130)


main.add_command(check)
main.add_command(record)
main.add_command(replay)


@main.command("dialects")
def list_dialects() -> None:
    """List supported dialects. Shows the models of each, and how they write reasoning and tool calls."""
    from rich.console import Console  # noqa: PLC0415  see above
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from antiphon.harmony.detect import dialect_table  # noqa: PLC0415

    screen = Console(highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("dialect", "models", "reasoning", "calls", "custom tools"):
        table.add_column(column, overflow="fold")
    for row in dialect_table():
        table.add_row(*map(escape, row))
    screen.print(table)


def _pick(struct: type[Any], flags: dict[str, Any]) -> dict[str, Any]:
    """Returns the flags whose names are fields of `struct`."""
    return {name: flags[name] for name in struct.__struct_fields__ if name in flags}


if __name__ == "__main__":
    main()
