"""The response as of an event: events of the Responses API → the object that they describe.

Events may be of any server: one that names no place in the response changes nothing.
"""

from collections.abc import Iterator
from copy import deepcopy
from io import StringIO
from itertools import pairwise
from typing import Any

from antiphon.kit.json_values import Json, as_table

LIFE_CYCLE = ("created", "queued", "in_progress", "completed", "incomplete", "failed")
TERMINAL = ("completed", "incomplete", "failed")
TEXT_PLACES = {
    "output_text": ("content", "#content_index", "text"),
    "refusal": ("content", "#content_index", "refusal"),
    "reasoning_text": ("content", "#content_index", "text"),
    "reasoning_summary_text": ("summary", "#summary_index", "text"),
    "function_call_arguments": ("arguments",),
    "mcp_call_arguments": ("arguments",),
    "custom_tool_call_input": ("input",),
    "code_interpreter_call_code": ("code",),
    "apply_patch_call_operation_diff": ("operation", "diff"),
    "shell_call_command": ("action", "commands", "#command_index"),
}
"""Place of each text below its item. A step with `#` is the position that the event has under this key."""
VALUE_PLACES = {
    "output_item": ((), "item"),
    "content_part": (("content", "#content_index"), "part"),
    "reasoning_summary_part": (("summary", "#summary_index"), "part"),
    "output_text.annotation": (("content", "#content_index", "annotations", "#annotation_index"), "annotation"),
}
"""Place of a value below its item, and the event's field that has it."""
WHOLE_FIELDS = {"code_interpreter_call_code": "code", "apply_patch_call_operation_diff": "diff"} | {
    "shell_call_command": "command",
    "function_call_arguments": "arguments",
    "mcp_call_arguments": "arguments",
    "custom_tool_call_input": "input",
    "refusal": "refusal",
}
"""Field of a `done` event that has the whole text, where it is not `text`."""

Place = tuple[str | int, ...]


class ResponseFold:
    """Takes events in their order."""

    def __init__(self) -> None:
        self._response: Json = {}
        self._growing: dict[Place, StringIO] = {}
        """Texts that deltas extend: a text in the response would be copied for each delta."""

    def add_event(self, event: Json) -> str:
        """Takes the next event. Returns the place that it changes, such as `output[1].arguments`; "" for none."""
        kind, _, stage = str(event.get("type")).removeprefix("response.").rpartition(".")
        if not kind and stage in LIFE_CYCLE:
            return self._take_response(as_table(event.get("response")), is_final=stage in TERMINAL)
        if kind in VALUE_PLACES:
            steps, field = VALUE_PLACES[kind]
            return self._set_value(_find_place(event, steps), deepcopy(event.get(field)))
        place = _find_place(event, TEXT_PLACES[kind]) if kind in TEXT_PLACES else None
        if stage == "delta" and place is not None and isinstance(event.get("delta"), str):
            return self._grow_text(place, event["delta"])
        return self._set_value(place, event.get(WHOLE_FIELDS.get(kind, "text"))) if stage in ("done", "added") else ""

    def build_response(self) -> Json:
        """Returns the response after the events so far. The next event may change it."""
        for place, text in self._growing.items():
            _put_value(self._response, place, text.getvalue())
        return self._response

    def _take_response(self, sent: Json, *, is_final: bool) -> str:
        response = deepcopy(sent)
        if is_final:
            self._growing.clear()
        elif "output" in self._response:
            response["output"] = self._response["output"]
        self._response = response
        return "response"

    def _set_value(self, place: Place | None, value: Any) -> str:
        if place is None or not _put_value(self._response, place, value):
            return ""
        for inside in [each for each in self._growing if each[: len(place)] == place]:
            del self._growing[inside]
        return format_place(place)

    def _grow_text(self, place: Place, delta: str) -> str:
        if place not in self._growing:
            if not _put_value(self._response, place, ""):
                return ""
            self._growing[place] = StringIO()
        self._growing[place].write(delta)
        return format_place(place)


def format_place(place: Place) -> str:
    """Returns a place as people write it: `output[1].arguments`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).removeprefix(".")


def _find_place(event: Json, steps: tuple[str, ...]) -> Place | None:
    """Returns the place that an event names; None if a position is none."""
    place = tuple(_resolve_steps(event, ("output", "#output_index", *steps)))
    return None if None in place else place  # type: ignore[return-value]  # it has no None


def _resolve_steps(event: Json, steps: tuple[str, ...]) -> Iterator[str | int | None]:
    for step in steps:
        position = event.get(step[1:]) if step.startswith("#") else None
        yield step if not step.startswith("#") else position if type(position) is int and position >= 0 else None


def _put_value(response: Json, place: Place, value: Any) -> bool:
    """Sets a value, or adds it at the end of its list. Returns False if the response has no such place."""
    owner: Any = response
    for step, following in pairwise(place):
        if isinstance(step, int):
            if not isinstance(owner, list) or step >= len(owner):
                return False
            owner = owner[step]
        elif isinstance(owner, dict):
            owner = owner.setdefault(step, [] if isinstance(following, int) else {})
        else:
            return False
    last = place[-1]
    if isinstance(owner, list) and isinstance(last, int) and last <= len(owner):
        owner[last : last + 1] = [value]
        return True
    if isinstance(owner, dict) and isinstance(last, str):
        owner[last] = value
        return True
    return False
