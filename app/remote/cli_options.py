"""Options of `antiphon serve` for an engine on other servers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from antiphon.app.option_types import ServeOption
from antiphon.app.remote_options import RemoteServeOptions

serve_option = partial(click.option, cls=ServeOption)


OPTIONS = (
    serve_option(
        "--engine-url",
        "engine_urls",
        multiple=True,
        help="Address of a server that runs the model, such as http://gpu1:8000 or unix:/path/to/socket; repeatable.",
    ),
    serve_option("--tokenizer", help="Folder or hub id of the model that the servers run. Default: MODEL."),
    serve_option("--engine-model", help="Name of the model on the servers. Default: the only one that they serve."),
    serve_option(
        "--engine-surface",
        type=click.Choice(["auto", "completions", "generate"]),
        default="auto",
        show_default=True,
        help="Interface of the servers: /v1/completions, or the token-level one of vLLM and SGLang.",
    ),
    serve_option("--engine-key-env", help="Name of the variable that holds the servers' API key."),
    serve_option(
        "--engine-affinity-header",
        default="X-Session-ID",
        show_default=True,
        help="Header with the key of the conversation, for a router in front of the servers.",
    ),
    serve_option(
        "--engine-capacity",
        type=click.IntRange(1),
        default=1024,
        show_default=True,
        help="Maximum number of requests on all servers together.",
    ),
    serve_option(
        "--engine-timeout",
        "engine_timeout_s",
        type=click.FloatRange(0, min_open=True),
        default=300.0,
        show_default=True,
        help="Seconds of silence after which a server's reply is given up. Long prompts are silent.",
    ),
    serve_option(
        "--engine-grammar",
        type=click.Choice(["probe", "require", "off"]),
        default="probe",
        show_default=True,
        help="Servers that do not follow grammars: refuse requests that need one, or do not use the server; off: "
        "refuse all such requests.",
    ),
)


def add_remote_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options to a command, in order."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def pop_remote_options(flags: dict[str, Any]) -> RemoteServeOptions:
    """Removes the values of these options from `flags` and returns them."""
    names = RemoteServeOptions.__struct_fields__
    flag_names = {name: name if name == "tokenizer" else f"engine_{name}" for name in names}
    return RemoteServeOptions(**{name: flags.pop(flag) for name, flag in flag_names.items()})
