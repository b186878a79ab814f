"""Where the lines of `antiphon inspect` go: a terminal, which has a width, or a pipe, which gets whole lines."""

import json
import shutil
import sys
from typing import Self

from antiphon.console.chat.screen import supports_styles
from antiphon.kit.terminal_output import write_text
from antiphon.kit.terminal_text import escape_json, show_controls, show_line

LINE_STYLES = {"good": "1;32", "bad": "1;31", "added": "32", "removed": "31", "dim": "2", "plain": ""}
"""Parameters of the sequence SGR: bold green, bold red, green, red, dim."""
MIN_COLUMNS = 20


class LineOutput:
    """Writes lines. Every text is made safe first, then cut or wrapped at the width, then gets its style."""

    def __init__(self, columns: int | None = None, *, has_styles: bool = False) -> None:
        self.columns = columns
        """Width of the terminal in characters; None: lines of any length."""
        self._has_styles = has_styles

    @classmethod
    def open_standard_output(cls) -> Self:
        """Returns the output of this process."""
        if not sys.stdout.isatty():
            return cls()
        return cls(max(shutil.get_terminal_size().columns, MIN_COLUMNS), has_styles=supports_styles())

    def write_line(self, text: str, style: str = "plain") -> None:
        """Writes a text as one line. A terminal gets as much as fits."""
        self._write(show_line(text.replace("\t", " "), self.columns) if self.columns else _show_whole(text), style)

    def write_wrapped(self, text: str, indent: str = "") -> None:
        """Writes a text as one line, or as many as a terminal needs for the whole of it."""
        shown = _show_whole(text)
        width = self.columns - len(indent) if self.columns else max(len(shown), 1)
        for start in range(0, max(len(shown), 1), width):
            self._write(indent + shown[start : start + width], "plain")

    def write_text(self, text: str) -> None:
        """Writes a text of many lines."""
        write_text(show_controls(text if text.endswith("\n") else f"{text}\n"))

    def write_json(self, value: object) -> None:
        """Writes a JSON value in one line, with escapes for what a terminal would obey."""
        write_text(f"{escape_json(json.dumps(value, ensure_ascii=False))}\n")

    def _write(self, safe_text: str, style: str) -> None:
        code = LINE_STYLES[style] if self._has_styles else ""
        write_text(f"\x1b[{code}m{safe_text}\x1b[0m\n" if code else f"{safe_text}\n")


def _show_whole(text: str) -> str:
    return show_controls(text.replace("\t", " ")).replace("\n", "␊")
