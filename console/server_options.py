"""Options of the commands that use a running server: its address and the key, and what both find."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

if TYPE_CHECKING:
    from antiphon.console.server_address import ServerAddress

Result = TypeVar("Result")

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


def find_target(
    url: str | None, api_key_file: Path | None, runtime_key: Literal["page_key", "control_key"] | None = None
) -> tuple["ServerAddress", str | None]:
    """Returns the server that the options name, and the key for it. Raises `click.UsageError`.

    Without a file, the key of the server's runtime file comes before those of the environment.
    """
    from antiphon.console import server_address  # noqa: PLC0415  the command line starts fast

    try:
        address = server_address.find_server(url)
        key = server_address.find_runtime_key(address, runtime_key) if runtime_key and api_key_file is None else None
        return address, key or server_address.find_api_key(api_key_file)
    except server_address.ServerAddressError as error:
        raise click.UsageError(str(error)) from None


def run_client(work: Coroutine[Any, Any, Result]) -> Result:
    """Runs requests to a server. Raises `click.ClickException` if they fail, `StoppedError` after Ctrl-C."""
    from antiphon.console.client import ReplyFailedError  # noqa: PLC0415  the command line starts fast
    from antiphon.console.interrupts import run_until_interrupt  # noqa: PLC0415

    try:
        return run_until_interrupt(work)
    except RecursionError:
        raise click.ClickException("the server sent a value that is nested too deeply") from None
    except ReplyFailedError as error:
        raise click.ClickException(str(error)) from None
