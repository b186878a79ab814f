"""The events of a turn as snapshot lines with times, and its prompt token by token, with marks."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from antiphon.console.inspect.api import as_list_of_integers, as_number
from antiphon.console.inspect.line_output import LineOutput
from antiphon.kit.json_values import Json, as_list, as_table
from antiphon.kit.snapshot.event_lines import format_event
from antiphon.kit.snapshot.id_numbers import IdNumbers

TIME_CHARS = 11
"""Width of a time in milliseconds, enough for 10 hours with 3 decimals."""
TOKEN_MARKS = ("control", "cached", "restored")
"""Tokens that are no text; that the prefix cache held; that the model itself generated earlier."""
PROMPT_SEPARATOR = "·"
"""Stands between two tokens."""
INDENT = "    "


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


async def write_prompt(runs: AsyncGenerator[Json, None], output: LineOutput) -> None:
    """Writes each run of tokens with equal marks: a line with its place, and one with the texts of the tokens.

    Where the texts are not known, since the model is not served any more, the ids stand in their place.
    """
    current_round: object = None
    async for run in runs:
        if run.get("round") != current_round:
            current_round = run.get("round")
            output.write_line(f"round {current_round}", "dim")
        ids = as_list_of_integers(run.get("ids"))
        marks = [mark for mark in TOKEN_MARKS if run.get(mark) is True]
        output.write_line(f"{run.get('n')!s:>6}  {len(ids)} tokens  {' '.join(marks)}".rstrip(), "dim")
        texts = as_list(run.get("texts")) or ids
        output.write_wrapped(PROMPT_SEPARATOR.join(map(str, texts)), INDENT)
