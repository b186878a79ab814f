"""Prompts as JSON lines: runs of tokens with their texts, and which of them were cached or restored."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from antiphon.app.inspection.record import RoundRecord
from antiphon.app.turn_types.step_detail import token_text
from antiphon.events.json_lines import encode_json_line
from antiphon.harmony.format import ModelFormat

MAX_RUN_TOKENS = 256
"""Tokens in one line."""


def encode_prompt(rounds: Sequence[RoundRecord], form: ModelFormat | None, after: int, limit: int) -> bytes:
    """Returns the lines of up to `limit` tokens after number `after`, counted over the prompts of all rounds.

    Without `form`, since the model is not loaded, the lines have no texts. Example of a line:
    `{"round": 0, "n": 0, "ids": [1], "texts": ["<s>"], "control": true, "cached": true, "restored": false}`.
    """
    lines, first = [], 0
    for number, each in enumerate(rounds):
        start, end = max(after + 1 - first, 0), min(after + 1 + limit - first, len(each.prompt))
        lines += [{"round": number, "n": first + run["at"], **run} for run in _list_runs(each, form, start, end)]
        first += len(each.prompt)
    for line in lines:
        del line["at"]
    return b"".join(map(encode_json_line, lines))


def _list_runs(each: RoundRecord, form: ModelFormat | None, start: int, end: int) -> Iterator[dict[str, Any]]:
    def find_kind(position: int) -> tuple[bool, bool, bool]:
        is_control = form is not None and each.prompt[position] in form.passthrough.control_ids
        is_restored = each.restored[0] <= position < each.restored[1]
        return is_control, position < each.cached_tokens, is_restored

    for (control, cached, restored), group in groupby(range(start, end), find_kind):
        positions = list(group)
        for offset in range(0, len(positions), MAX_RUN_TOKENS):
            part = positions[offset : offset + MAX_RUN_TOKENS]
            ids = [each.prompt[position] for position in part]
            run: dict[str, Any] = {"at": part[0], "ids": ids}
            if form is not None:
                run["texts"] = [token_text(form.decode_token(token)[1]) for token in ids]
            yield run | {"control": control, "cached": cached, "restored": restored}
