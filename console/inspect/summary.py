"""The ending of a turn in lines: why it ended, its tokens, and its times by stage."""

from antiphon.console.inspect.api import as_number, is_running
from antiphon.console.inspect.line_output import LineOutput
from antiphon.kit.json_values import Json, as_objects, as_table, as_text

TURN_STAGES = (
    ("queue", "submitted", "admitted"),
    ("prefill", "admitted", "first_token"),
    ("decode", "first_token", "last_token"),
    ("total", "arrived", "ended"),
)
"""Name of a stage, and the times at which it begins and ends."""
MAX_UNOFFERED = 5
"""Calls of tools that were not offered, which a summary shows."""


def write_summary(turn: Json, output: LineOutput) -> None:
    """Writes the ending first, then what the turn was."""
    output.write_line(_describe_ending(turn), _choose_style(turn))
    if description := as_text(turn.get("description")):
        output.write_line(description, "dim")
    for call in as_objects(turn.get("unoffered_calls"))[:MAX_UNOFFERED]:
        output.write_wrapped(f"! {as_text(call.get('description'))}")
    output.write_line(_describe_tokens(turn))
    output.write_line(_describe_times(turn))
    names = [f"{key} {turn[key]}" for key in ("api", "model") if turn.get(key)]
    names += [f"dialect {turn['dialect']}"] if as_text(turn.get("dialect")) else []
    names += [f"after {turn['previous_response_id']}"] if turn.get("previous_response_id") else []
    output.write_line(f"{turn.get('id')}: {', '.join(names)}")
    if turn.get("recorded") is False:
        output.write_line(as_text(as_table(turn.get("dialect")).get("missing")) or "This turn was not recorded.", "dim")


def _describe_ending(turn: Json) -> str:
    ending = as_table(turn.get("ending"))
    words = [str(turn.get("status")), *(str(ending[key]) for key in ("cause", "detail") if ending.get(key))]
    return ": ".join(words) + (f" (error code {turn['error_code']})" if turn.get("error_code") else "")


def _choose_style(turn: Json) -> str:
    return "good" if turn.get("status") == "completed" else "plain" if is_running(turn) else "bad"


def _describe_tokens(turn: Json) -> str:
    counts = [turn.get(key) for key in ("input_tokens", "cached_tokens", "output_tokens")]
    shown = ["-" if count is None else str(count) for count in counts]
    return f"tokens: input {shown[0]} (cached {shown[1]}), output {shown[2]}"


def _describe_times(turn: Json) -> str:
    times = as_table(turn.get("times_ms"))
    shown = []
    for name, begin, end in TURN_STAGES:
        started, ended = as_number(times.get(begin)), as_number(times.get(end))
        shown.append(f"{name} {'-' if started is None or ended is None else f'{ended - started:.3f}'}")
    return f"ms: {', '.join(shown)}"
