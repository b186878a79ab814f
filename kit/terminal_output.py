"""Output of commands on standard output."""

import sys

import click

from antiphon.kit.terminal_text import show_controls


def print_line(text: str) -> None:
    """Prints a text and a line feed. What a terminal would obey is visible instead (see `terminal_text`)."""
    write_text(f"{show_controls(text)}\n")


def write_text(text: str) -> None:
    """Writes a text that is safe, with the styles of a view. Characters that the encoding lacks become escapes."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), nl=False)
