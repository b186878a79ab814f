"""Lines of the kit's commands on standard output."""

import sys

import click

from antiphon.kit.terminal_text import show_controls


def print_line(text: str) -> None:
    """Prints a text and a line feed. What a terminal would obey is visible instead (see `terminal_text`).

    Characters that the encoding of standard output lacks are written as escapes.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    click.echo(show_controls(text).encode(encoding, "backslashreplace").decode(encoding))
