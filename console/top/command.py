"""`antiphon top`: what a server does now."""

import shutil
import sys
from pathlib import Path

import click

from antiphon.console.server_options import inspection_key_option, url_option


@click.command()
@url_option
@inspection_key_option
def top(url: str | None, api_key_file: Path | None) -> None:
    """Show the turns that run on a server, one screen a second; q quits.

    Where standard input or output is no terminal, the lines of each second follow those of the last one. Turns of other
    keys are counted, not shown.
    """
    from antiphon.console.client import ChatClient, ReplyFailedError  # noqa: PLC0415
    from antiphon.console.interrupts import StoppedError, run_until_interrupt  # noqa: PLC0415
    from antiphon.console.server_address import (  # noqa: PLC0415
        ServerAddressError,
        find_api_key,
        find_page_key,
        find_server,
    )
    from antiphon.console.top.live_view import watch_in_terminal, watch_server  # noqa: PLC0415  the command line starts fast
    from antiphon.kit.terminal_output import print_line  # noqa: PLC0415

    try:
        address = find_server(url)
        page_key = find_page_key(address) if api_key_file is None else None
        client = ChatClient(address, page_key or find_api_key(api_key_file))
    except ServerAddressError as error:
        raise click.UsageError(str(error)) from None
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    try:
        run_until_interrupt(
            watch_in_terminal(client, shutil.get_terminal_size)
            if is_terminal
            else watch_server(client, lambda lines: print_line("\n".join(lines)))
        )
    except StoppedError:
        return
    except ReplyFailedError as error:
        raise click.ClickException(str(error)) from None
