"""The prompt of a turn, token by token, with marks."""

from collections.abc import AsyncGenerator

from antiphon.console.client import Json
from antiphon.console.inspect.api import as_list_of_integers
from antiphon.console.inspect.line_output import LineOutput
from antiphon.kit.checker.schema import as_list

MARKS = ("control", "cached", "restored")
"""Tokens that are no text; that the prefix cache held; that the model itself generated earlier."""
SEPARATOR = "·"
"""Stands between two tokens."""
INDENT = "    "


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
        marks = [mark for mark in MARKS if run.get(mark) is True]
        output.write_line(f"{run.get('n')!s:>6}  {len(ids)} tokens  {' '.join(marks)}".rstrip(), "dim")
        texts = as_list(run.get("texts")) or ids
        output.write_wrapped(SEPARATOR.join(map(str, texts)), INDENT)
