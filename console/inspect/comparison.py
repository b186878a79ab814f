"""Two turns compared: what was asked, what the models read, and what they wrote."""

import difflib
import json
from contextlib import aclosing
from itertools import takewhile
from typing import Any

from antiphon.console.inspect.api import InspectApi, PartMissingError, as_list_of_integers, parse_object
from antiphon.console.inspect.line_output import LineOutput
from antiphon.console.inspect.response_fold import ResponseFold
from antiphon.console.inspect.summary import write_summary
from antiphon.kit.json_values import as_list, as_table
from antiphon.kit.snapshot.event_lines import format_item
from antiphon.kit.snapshot.id_numbers import IdNumbers
from antiphon.kit.snapshot.stream_text import HIDDEN_REASONING

MAX_COMPARED_LINES = 5_000
"""Lines of each text: their comparison takes time in the square of the number."""
NUM_SHOWN_TOKENS = 8
"""Tokens of each prompt that are shown after the common ones."""


async def write_comparison(api: InspectApi, turn_id: str, other_id: str, output: LineOutput) -> None:
    """Writes the differences between two turns: `-` marks the first, `+` the other."""
    turns = [await api.fetch_turn(each) for each in (turn_id, other_id)]
    for sign, turn in zip("-+", turns, strict=True):
        output.write_line(f"{sign} {turn.get('id')}", "removed" if sign == "-" else "added")
        write_summary(turn, output)
    for name, read in (("request", _read_request), ("output", _read_output)):
        try:
            first, second = [await read(api, each) for each in (turn_id, other_id)]
        except PartMissingError as error:
            output.write_line(f"{name}: {error}")
            continue
        _write_lines(name, first, second, output)
    try:
        first_prompt, second_prompt = [await _read_prompt(api, each) for each in (turn_id, other_id)]
    except PartMissingError as error:
        output.write_line(f"prompt: {error}")
    else:
        _write_prompts(first_prompt, second_prompt, output)


async def _read_request(api: InspectApi, turn_id: str) -> list[str]:
    request = parse_object(await api.fetch_part(turn_id, "request"))
    return json.dumps(request, ensure_ascii=False, indent=1, sort_keys=True).split("\n")


async def _read_output(api: InspectApi, turn_id: str) -> list[str]:
    fold, numbers = ResponseFold(), IdNumbers()
    async with aclosing(api.read_events(turn_id)) as rows:
        async for row in rows:
            fold.add_event(as_table(row.get("event")))
    return [
        format_item(_hide_secret(numbers.number_ids(item))) for item in as_list(fold.build_response().get("output"))
    ]


def _hide_secret(item: Any) -> Any:
    """Returns an item without the text of its encrypted reasoning, which differs for the same reasoning."""
    has_secret = isinstance(item, dict) and item.get("encrypted_content") is not None
    return item | {"encrypted_content": HIDDEN_REASONING} if has_secret else item


async def _read_prompt(api: InspectApi, turn_id: str) -> list[tuple[int, str]]:
    """Returns the ids of the prompt's tokens with their texts, which are empty if they are not known."""
    tokens: list[tuple[int, str]] = []
    async with aclosing(api.read_prompt(turn_id)) as runs:
        async for run in runs:
            ids = as_list_of_integers(run.get("ids"))
            texts = [*map(str, as_list(run.get("texts"))), *[""] * len(ids)]
            tokens += zip(ids, texts, strict=False)
    return tokens


def _write_lines(name: str, first: list[str], second: list[str], output: LineOutput) -> None:
    if first == second:
        output.write_line(f"{name}: the same")
        return
    output.write_line(f"{name}: different")
    if max(len(first), len(second)) > MAX_COMPARED_LINES:
        output.write_line(f"  more than {MAX_COMPARED_LINES} lines: they are not compared")
        return
    for line in list(difflib.unified_diff(first, second, n=1, lineterm=""))[2:]:
        output.write_line(line, {"-": "removed", "+": "added"}.get(line[:1], "dim"))


def _write_prompts(first: list[tuple[int, str]], second: list[tuple[int, str]], output: LineOutput) -> None:
    num_common = sum(1 for _ in takewhile(lambda pair: pair[0][0] == pair[1][0], zip(first, second, strict=False)))
    if num_common == len(first) == len(second):
        output.write_line(f"prompt: the same {num_common} tokens")
        return
    output.write_line(f"prompt: {len(first)} and {len(second)} tokens, of which the first {num_common} are the same")
    for sign, style, tokens in (("-", "removed", first), ("+", "added", second)):
        shown = [text or str(token) for token, text in tokens[num_common : num_common + NUM_SHOWN_TOKENS]]
        output.write_line(f"{sign} {num_common}: {'·'.join(shown) or '(the end)'}", style)
