"""The command line.

Importing this module imports nothing heavy: `serve` first spawns the engine's worker process, which needs seconds for
its own imports, and imports the server at the same time.
"""

import gc
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click

from antiphon.app.cli.options import (
    ServeCommand,
    create_batch_parameters,
    create_parameters,
    is_from_config_file,
    pick_fields,
)
from antiphon.app.keys.commands import keys
from antiphon.app.keys.file_marks import mark_files
from antiphon.app.keys.sources import load_api_keys
from antiphon.app.options.api_keys import ApiKeyError
from antiphon.app.options.remote_options import RemoteServeOptions
from antiphon.app.options.serve_options import (
    ServeError,
    ServeOptions,
    StartOptions,
    check_inspect_store,
    check_lora_updates,
    check_public_bind,
    check_store_url,
    resolve_store,
)
from antiphon.app.options.settings import Settings
from antiphon.app.store.maintenance.commands import store_commands
from antiphon.console.chat.command import chat
from antiphon.console.inspect.command import inspect
from antiphon.console.reload import drain, reload
from antiphon.console.top.command import top
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.spawn import PrespawnedWorker, SpawnWorker, WorkerProcess
from antiphon.kit.cli.cassettes import record, replay
from antiphon.kit.cli.check import check
from antiphon.kit.cli.demo import demo
from antiphon.kit.terminal_text import show_controls

PRELOADED_MODULE = "antiphon.engine.builder"
"""Module that the worker process imports before it receives its model."""


class SafeGroup(click.Group):
    """Commands whose error messages are safe for a terminal: they quote files and other servers."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs a command. In an error, what a terminal would obey is shown instead."""
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            error.message = show_controls(error.message)  # type: ignore[misc]  # click declares it final
            raise


@click.group(cls=SafeGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="antiphon")
def main() -> None:
    """Antiphon: a self-hosted server for the OpenAI Responses API."""


@main.command(cls=ServeCommand, params=[*create_parameters()])
def serve(**flags: Any) -> None:
    """Serve models. MODEL is a folder or a hub id, or NAME=MODEL; without it, the embedded model is served.

    A folder holds safetensors, config.json and tokenizer.json; MODEL may also be a GGUF file. A hub id (owner/name) is
    downloaded once. Every option can also be set by its environment variable (MODEL by ANTIPHON_MODEL) and in the file
    of --config. Values of repeatable options are separated by spaces in a variable.
    """
    for name in ("ANTIPHON_SSL_KEYFILE_PASSWORD", "ANTIPHON_STORE"):
        os.environ.pop(name, None)  # it has been read; child processes do not need the password
    start = StartOptions(**pick_fields(StartOptions, flags))
    environment_keys, key_file = os.environ.pop("ANTIPHON_API_KEY", None), start.api_key_file
    if environment_keys is not None and is_from_config_file("api_key_file"):
        key_file = None  # the environment takes precedence
    marks = mark_files(filter(None, (key_file, flags["ssl_certfile"], flags["ssl_keyfile"])))
    try:
        fixed_keys, file_keys = load_api_keys(start.api_keys, key_file, environment_keys)
    except ApiKeyError as error:
        raise ServeError(str(error)) from None
    store_file, store_url = resolve_store(start.store)
    if store_url is not None:
        check_store_url(store_url, flags["encryption_key_file"], is_in_file=is_from_config_file("store"))
    options = _read_models(flags)
    settings = Settings(
        fixed_keys=fixed_keys,
        file_keys=file_keys,
        key_file=key_file,
        file_marks=marks,
        store_file=store_file,
        store_url=store_url,
        **pick_fields(Settings, flags),
    )
    check_inspect_store(settings)
    check_public_bind(settings, insecure=start.insecure)
    check_lora_updates(settings, insecure=start.insecure)
    try:
        with _spawn_worker(options) as spawn:
            gc.disable()  # imports leave no garbage, only objects that stay: visiting them takes a twelfth of the start
            from antiphon.app.main.launch import run_until_signal  # noqa: PLC0415  see the module's docstring

            gc.freeze()
            gc.enable()
            run_until_signal(options, settings, start.log_format, spawn, replace=start.replace)
    except KeyboardInterrupt:  # during the imports; click would print "Aborted!"
        sys.exit(130)


@main.command("batch", cls=ServeCommand, params=[*create_batch_parameters()])
def run_batch(source: Path, target: Path, **flags: Any) -> None:
    """Run the requests of a file without a server. IN has one JSON object a line, as /v1/batches takes them.

    OUT gets their replies, in the same order. The exit status is 1 if a request failed.
    """
    options, settings = _read_models(flags), Settings(**pick_fields(Settings, flags))
    with _spawn_worker(options) as spawn:
        from antiphon.app.main.batch_command import run_batch_file  # noqa: PLC0415  see the module's docstring

        status = run_batch_file(options, settings, source, target, spawn)
    sys.exit(status)


def _read_models(flags: dict[str, Any]) -> ServeOptions:
    """Returns the options of models and engines."""
    return ServeOptions(
        models=flags["model"],
        engine_options=EngineOptions(**pick_fields(EngineOptions, flags)),
        remote=RemoteServeOptions(**pick_fields(RemoteServeOptions, flags)),
        **pick_fields(ServeOptions, flags),
    )


def _spawn_worker(options: ServeOptions) -> AbstractContextManager[SpawnWorker]:
    """Starts the engine's worker process if a model is loaded at the start."""
    loads_now = options.engine == "torch" and not options.load_on_demand
    return PrespawnedWorker(PRELOADED_MODULE) if loads_now else nullcontext(WorkerProcess)


main.add_command(chat)
main.add_command(check)
main.add_command(demo)
main.add_command(drain)
main.add_command(inspect)
main.add_command(keys)
main.add_command(store_commands)
main.add_command(record)
main.add_command(reload)
main.add_command(replay)
main.add_command(top)


@main.command("dialects")
def list_dialects() -> None:
    """List supported dialects. Shows the models of each, and how they write reasoning and tool calls."""
    from rich.console import Console  # noqa: PLC0415  see above
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from antiphon.harmony.detection.detect import dialect_table  # noqa: PLC0415

    screen = Console(highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("dialect", "models", "reasoning", "calls", "custom tools"):
        table.add_column(column, overflow="fold")
    for row in dialect_table():
        table.add_row(*map(escape, row))
    screen.print(table)
