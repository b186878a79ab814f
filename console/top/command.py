"""`antiphon top`: what a server does now."""

import shutil
import sys
from contextlib import suppress
from pathlib import Path

import click

from antiphon.console.server_options import find_target, inspection_key_option, run_client, url_option


@click.command()
@url_option
@inspection_key_option
def top(url: str | None, api_key_file: Path | None) -> None:
    """Show the turns that run on a server, one screen a second; q quits.

    Where standard input or output is no terminal, the lines of each second follow those of the last one. Turns of other
    keys are counted, not shown.
    """
    from antiphon.console.client import ServerClient  # noqa: PLC0415  the command line starts fast
    from antiphon.console.interrupts import StoppedError  # noqa: PLC0415
    from antiphon.console.top.live_view import watch_in_terminal, watch_server  # noqa: PLC0415
    from antiphon.kit.terminal_output import print_line  # noqa: PLC0415

    client = ServerClient(*find_target(url, api_key_file, "page_key"))
    with suppress(StoppedError):
        run_client(
            watch_in_terminal(client, shutil.get_terminal_size)
            if sys.stdin.isatty() and sys.stdout.isatty()
            else watch_server(client, lambda lines: print_line("\n".join(lines)))
        )
