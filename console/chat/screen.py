"""Where a reply is shown: a terminal, with styles, or a pipe, which gets the answer and nothing else."""

import json
import os
from collections.abc import Mapping
from typing import Protocol

import click

from antiphon.console.chat.pieces import PendingCall, PieceKind, ReplyPiece
from antiphon.kit.terminal_output import write_text
from antiphon.kit.terminal_text import show_controls, show_line

PIECE_STYLES: dict[str, str] = {"reasoning": "2", "call": "36", "note": "2", "raw": "2", "error": "31"}
"""Parameters of the sequence SGR: dim, cyan, red. The answer has the terminal's own colour."""
LABELS = {"reasoning": "[reasoning]", "text": "[answer]"}
"""Lines above a part, where no style tells reasoning from the answer."""
MAX_CALL_CHARS = 20_000
MAX_RAW_CHARS = 20_000


class ReplyOutput(Protocol):
    """Shows the pieces of a reply."""

    def show_piece(self, piece: ReplyPiece) -> None:
        """Shows a piece."""

    def show_raw(self, name: str | None, data: str) -> None:
        """Shows a frame as it came."""

    def end_reply(self) -> None:
        """Ends the last line."""


def supports_styles(environment: Mapping[str, str] = os.environ) -> bool:
    """Tells whether a terminal may get colours: not with `NO_COLOR`, and not if it is dumb."""
    return not environment.get("NO_COLOR") and environment.get("TERM", "") not in ("", "dumb")


class TerminalScreen:
    """Writes to a terminal. Every text is made safe first, then gets its style."""

    def __init__(self, *, has_styles: bool) -> None:
        self._has_styles = has_styles
        self._kind: PieceKind | None = None
        """Kind of the part that is being written. None at the start of a reply and of a paragraph."""
        self._is_line_open = False
        self._has_reasoning = False

    def show_piece(self, piece: ReplyPiece) -> None:
        """Writes a piece. Another kind of it begins on a line of its own."""
        if piece.kind == "break":
            self._kind = None
        elif piece.kind == "call":
            self.write_line("call", f"→ {show_line(piece.text, MAX_CALL_CHARS)}")
        elif piece.kind == "note":
            self.write_line("note", f"[{show_line(piece.text)}]")
        elif piece.text:
            self._begin_part(piece.kind)
            self._write(piece.kind, show_controls(piece.text))

    def show_raw(self, name: str | None, data: str) -> None:
        """Writes a frame in one line."""
        self.write_line("raw", show_line(f"{name}: {data}" if name else data, MAX_RAW_CHARS))

    def show_error(self, text: str) -> None:
        """Writes an error in one line."""
        self.write_line("error", f"Error: {show_line(text)}")

    def write_line(self, style: str, text: str) -> None:
        """Writes a safe text as a line of its own."""
        self.end_line()
        self._kind = None
        self._write(style, text)
        self.end_line()

    def end_line(self) -> None:
        """Begins a line, unless the last one is empty."""
        if self._is_line_open:
            write_text("\n")
            self._is_line_open = False

    def end_reply(self) -> None:
        """Ends the last line. The next reply begins anew."""
        self.end_line()
        self._kind, self._has_reasoning = None, False

    def _begin_part(self, kind: PieceKind) -> None:
        if kind == self._kind:
            return
        self.end_line()
        self._kind = kind
        if not self._has_styles and (kind == "reasoning" or self._has_reasoning):
            write_text(f"{LABELS[kind]}\n")
        self._has_reasoning |= kind == "reasoning"

    def _write(self, style: str, text: str) -> None:
        code = PIECE_STYLES.get(style) if self._has_styles else None
        write_text(text if code is None else f"\x1b[{code}m{text}\x1b[0m")
        self._is_line_open = not text.endswith("\n")


class PipeOutput:
    """Writes the answer alone, and each call as a JSON line.

    A program gets the exact text; if standard output is a terminal, the text is made safe.
    """

    def __init__(self, *, is_terminal: bool) -> None:
        self._is_terminal = is_terminal
        self._is_line_open = False

    def show_piece(self, piece: ReplyPiece) -> None:
        """Writes a part of the answer."""
        if piece.kind == "text" and piece.text:
            self._write(piece.text)

    def show_raw(self, name: str | None, data: str) -> None:
        """Writes nothing: a pipe has no such setting."""

    def show_call(self, call: PendingCall) -> None:
        """Writes a call."""
        self.end_reply()
        fields = {"name": call.name, "arguments": call.arguments, "call_id": call.call_id}
        self._write(json.dumps(fields) + "\n")

    def end_reply(self) -> None:
        """Ends the last line."""
        if self._is_line_open:
            self._write("\n")

    def _write(self, text: str) -> None:
        self._is_line_open = not text.endswith("\n")
        if self._is_terminal:
            write_text(show_controls(text))
        else:
            click.echo(text.encode(errors="replace"), nl=False)
