"""Options of the commands that use a running server: its address and the key."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

url_option: Callable[[Any], Any] = click.option(
    "--url",
    metavar="URL",
    help="Base URL of the server. Default: $ANTIPHON_URL, else the only server that you run on this machine, else "
    "http://127.0.0.1:8000.",
)
inspection_key_option: Callable[[Any], Any] = click.option(
    "--api-key-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File whose first line is the API key. Default: the key that a server on this machine has written to its "
    "runtime file, else $ANTIPHON_API_KEY, else $OPENAI_API_KEY.",
)
operator_key_option: Callable[[Any], Any] = click.option(
    "--api-key-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File whose first line is the API key of an operator. Default: the key that a server of yours on this machine "
    "has written to its runtime file, else $ANTIPHON_API_KEY.",
)
