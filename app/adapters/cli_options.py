"""Options of `antiphon serve` for adapters."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from antiphon.app.base.settings import Settings
from antiphon.app.option_types import ServeOption
from antiphon.app.serve_options import ServeError
from antiphon.engine.adapters.modules import parse_lora_option
from antiphon.engine.errors import LoadError
from antiphon.engine.options import LoraModule

serve_option = partial(click.option, cls=ServeOption)


class LoraType(click.ParamType[LoraModule]):
    """An adapter, as NAME=PATH."""

    name = "name=path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> LoraModule:
        """Returns the adapter with an absolute path."""
        try:
            return value if isinstance(value, LoraModule) else parse_lora_option(str(value))
        except LoadError as error:
            self.fail(error.message, param, ctx)


OPTIONS = (
    serve_option(
        "--lora",
        "lora_modules",
        multiple=True,
        type=LoraType(),
        help="LoRA adapter to serve under a model name of its own: a folder that PEFT has saved; repeatable. With "
        "several models, MODEL:NAME=PATH.",
    ),
    serve_option(
        "--allow-lora-updates",
        is_flag=True,
        help="Let clients load and unload adapters of --lora-dir by /v1/load_lora_adapter. Requires an API key.",
    ),
    serve_option(
        "--lora-dir",
        "lora_dirs",
        multiple=True,
        help="Folder whose adapters clients may load with --allow-lora-updates; repeatable.",
    ),
)


def add_adapter_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options to a command, in order."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def check_lora_updates(settings: Settings, *, insecure: bool) -> None:
    """Raises `ServeError` if clients may load adapters, and of no folder, or none needs an API key."""
    if settings.allow_lora_updates != bool(settings.lora_dirs):
        raise ServeError(
            "--allow-lora-updates requires --lora-dir: name the folder whose adapters clients may load"
            if settings.allow_lora_updates
            else "--lora-dir names folders for clients: add --allow-lora-updates, or name adapters by --lora"
        )
    missing = next((folder for folder in settings.lora_dirs if not Path(folder).is_dir()), None)
    if missing is not None:
        raise ServeError(f"--lora-dir {missing}: there is no such folder; create it, or name another one")
    if settings.allow_lora_updates and not settings.api_key_digests and not insecure:
        raise ServeError(
            "--allow-lora-updates lets clients load adapters: set an API key with --api-key-file, or pass --insecure"
        )
