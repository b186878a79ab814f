"""Frames of `/v1/inspect/live` in a terminal or a pipe."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Any

from antiphon.console.client import ServerClient, parse_frame
from antiphon.kit.json_values import as_objects, as_table
from antiphon.kit.terminal_output import write_text
from antiphon.kit.terminal_text import show_line

LIVE_PATH = "/inspect/live"
TITLES = ("stage", "seconds", "input", "cached", "output", "api", "model", "id")
COLUMN_WIDTHS = (8, 9, 8, 8, 8, 10, 20, 1)
"""Least widths of the columns. Numbers are at the right of theirs."""
NUMBER_COLUMNS = range(1, 5)
FIRST_LINE, CLEAR_LINE, CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
"""Sequences that draw a frame over the last one, without a flash of an empty screen."""
QUIT_KEYS = b"qQ"


def format_frame(frame: dict[str, Any], shown_url: str) -> list[str]:
    """Returns the lines of a frame: the server, each engine, and a line for each turn. They are safe for a terminal."""
    turns = as_objects(frame.get("turns"))
    others = _show_value(frame.get("turns_of_others", 0))
    lines = [f"{show_line(shown_url)}: {len(turns)} running, {others} of other keys"]
    for engine in as_objects(frame.get("engines")):
        figures = " ".join(
            f"{show_line(key)} {_show_value(value)}"
            for key, value in engine.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        )
        lines.append(f"engine {_show_value(engine.get('model'))}: {figures}")
    rows = [_list_cells(turn) for turn in turns]
    return lines + [_join_cells(cells) for cells in ([TITLES, *rows] if rows else [])]


def _list_cells(turn: dict[str, Any]) -> tuple[str, ...]:
    keys = ("stage", "seconds", "input_tokens", "cached_tokens", "output_tokens", "api", "model", "id")
    return tuple(_show_value(turn.get(key)) for key in keys)


def _show_value(value: object) -> str:
    text = f"{value:.1f}" if isinstance(value, float) else "-" if value is None else str(value)
    return show_line(text, 100)


def _join_cells(cells: tuple[str, ...]) -> str:
    padded = [
        cell.rjust(width) if column in NUMBER_COLUMNS else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(cells, COLUMN_WIDTHS, strict=True))
    ]
    return " ".join(padded).rstrip()


async def watch_server(client: ServerClient, show_lines: Callable[[list[str]], None]) -> None:
    """Shows each frame of the server until the stream ends. Raises `ReplyFailedError`."""
    async with aclosing(client.read_frames(LIVE_PATH)) as frames:
        async for frame in frames:
            if (event := parse_frame(frame)) is not None:
                show_lines(format_frame(as_table(event), client.address.shown_url))


async def watch_in_terminal(client: ServerClient, size: Callable[[], tuple[int, int]]) -> None:
    """The same on one screen of a terminal, until the key Q is pressed. `size` returns its columns and lines."""

    def draw(lines: list[str]) -> None:
        columns, height = size()
        shown = [show_line(line, columns) for line in lines[: height - 1]]
        write_text(FIRST_LINE + "".join(f"{line}{CLEAR_LINE}\n" for line in shown) + CLEAR_BELOW)

    loop, watch = asyncio.get_running_loop(), asyncio.ensure_future(watch_server(client, draw))
    with _read_keys() as read_key:

        def on_key() -> None:
            if read_key() in QUIT_KEYS:
                watch.cancel()

        loop.add_reader(sys.stdin.fileno(), on_key)
        write_text(FIRST_LINE + CLEAR_BELOW)
        try:
            with suppress(asyncio.CancelledError):
                await watch
        finally:
            watch.cancel()
            loop.remove_reader(sys.stdin.fileno())


@contextmanager
def _read_keys() -> Iterator[Callable[[], bytes]]:
    """Lets the terminal pass each key on at once, without showing it. Yields a function that reads one."""
    import os  # noqa: PLC0415  the next ones are not on every system
    import termios  # noqa: PLC0415
    import tty  # noqa: PLC0415

    descriptor = sys.stdin.fileno()
    kept = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield lambda: os.read(descriptor, 1)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, kept)
