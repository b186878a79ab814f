"""The events of a turn as snapshot lines with times."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from antiphon.console.client import Json
from antiphon.console.inspect.api import as_number
from antiphon.console.inspect.line_output import LineOutput
from antiphon.kit.checker.schema import as_table
from antiphon.kit.snapshot.event_lines import format_event
from antiphon.kit.snapshot.id_numbers import IdNumbers

TIME_CHARS = 11
"""Width of a time in milliseconds, enough for 10 hours with 3 decimals."""


async def group_steps(rows: AsyncGenerator[Json, None]) -> AsyncGenerator[list[Json], None]:
    """Yields the events of each step together: the last of them has the time, the state and the inputs of all."""
    step: list[Json] = []
    async with aclosing(rows):
        async for row in rows:
            step.append(row)
            if "state" in row:
                yield step
                step = []
    if step:
        yield step


async def write_timeline(rows: AsyncGenerator[Json, None], output: LineOutput) -> None:
    """Writes the events as they come, each with the time of its step. Ids are numbered by appearance."""
    numbers = IdNumbers()
    output.write_line(f"{'ms':>{TIME_CHARS}}    n  event", "dim")
    async with aclosing(group_steps(rows)) as steps:
        async for step in steps:
            time = format_time(step[-1])
            for row in step:
                first, *items = format_event(as_table(row.get("event")), numbers).split("\n")
                output.write_line(f"{time:>{TIME_CHARS}}  {first}")
                for item in items:  # of the final response
                    output.write_line(f"{'':>{TIME_CHARS}}  {item}")


def format_time(row: Json) -> str:
    """Returns the time of a step in milliseconds; `-` if it was not recorded."""
    at_us = as_number(row.get("at_us"))
    return "-" if at_us is None else f"{at_us / 1e3:.3f}"
