"""Order of the events inside each kind of item, as data.

Source: the event grammar of the Responses API. Messages and reasoning have parts: `parts.py` checks those.
"""

import msgspec


class Step(msgspec.Struct, frozen=True):
    """One place of a sequence: the events that may stand there, and how often (`1`, `?`, `*` or `+`)."""

    kinds: tuple[str, ...]
    quantifier: str = "1"

    @property
    def is_required(self) -> bool:
        """True if at least one event must come."""
        return self.quantifier in "1+"


class BodyGrammar(msgspec.Struct, frozen=True):
    """Sequence of the events of one kind of item. `repeats`: the whole sequence may come any number of times."""

    steps: tuple[Step, ...] = ()
    repeats: bool = False


DONE_FIELDS = {
    "function_call_arguments": "arguments",
    "custom_tool_call_input": "input",
    "mcp_call_arguments": "arguments",
    "code_interpreter_call_code": "code",
    "shell_call_command": "command",
    "apply_patch_call_operation_diff": "diff",
}
"""Fields of done events with texts that are streamed in deltas, by the prefix of the events."""
ITEM_FIELDS = {
    "function_call": ("arguments",),
    "custom_tool_call": ("input",),
    "mcp_call": ("arguments",),
    "code_interpreter_call": ("code",),
    "shell_call": ("action", "commands"),
    "apply_patch_call": ("operation", "diff"),
}
"""Paths in items of such a text or, for commands, of the list of all texts."""
OPTIONAL_TEXTS = ("apply_patch_call",)
"""Items whose text a server may leave out of the stream."""


def _sequence(*steps: str, repeats: bool = False) -> BodyGrammar:
    """Returns the grammar of steps such as `"mcp_call.completed|mcp_call.failed"` and `"a.delta*"`."""
    parsed = []
    for step in steps:
        quantifier = step[-1] if step[-1] in "?*+" else "1"
        parsed.append(Step(tuple(step.rstrip("?*+").split("|")), quantifier))
    return BodyGrammar(tuple(parsed), repeats)


def _text(name: str) -> tuple[str, str]:
    return f"{name}.delta*", f"{name}.done"


BODIES = {
    "function_call": _sequence(*_text("function_call_arguments")),
    "custom_tool_call": _sequence(*_text("custom_tool_call_input")),
    "mcp_call": _sequence(
        "mcp_call.in_progress",
        "mcp_call_arguments.delta|mcp_call.in_progress*",
        "mcp_call_arguments.done",
        "mcp_call.in_progress*",
        "mcp_call.completed|mcp_call.failed?",
    ),
    "mcp_list_tools": _sequence("mcp_list_tools.in_progress", "mcp_list_tools.completed|mcp_list_tools.failed?"),
    "web_search_call": _sequence(
        "web_search_call.in_progress", "web_search_call.searching+", "web_search_call.completed?"
    ),
    "file_search_call": _sequence(
        "file_search_call.in_progress", "file_search_call.searching+", "file_search_call.completed?"
    ),
    "code_interpreter_call": _sequence(
        "code_interpreter_call.in_progress",
        *_text("code_interpreter_call_code"),
        "code_interpreter_call.interpreting+",
        "code_interpreter_call.completed?",
    ),
    "image_generation_call": _sequence(
        "image_generation_call.in_progress",
        "image_generation_call.generating?",
        "image_generation_call.partial_image*",
        "image_generation_call.completed?",  # OpenAI leaves it out
    ),
    "compaction": _sequence("compaction.compacting*"),
    "shell_call": _sequence("shell_call_command.added", *_text("shell_call_command"), repeats=True),
    "apply_patch_call": _sequence("apply_patch_call_operation_diff.delta*", "apply_patch_call_operation_diff.done?"),
    "shell_call_output": _sequence("shell_call_output_content.delta*", "shell_call_output_content.done+", repeats=True),
}
"""Grammar by kind of item. A kind that is not here has no events between `added` and `done`.

A stage that a server repeats keeps the stream alive while its tool runs. The last event of a hosted item is optional
here: `hosted.py` compares it with the item's status.
"""


class BodyMatcher:
    """Accepts the events of one item, one by one."""

    def __init__(self, grammar: BodyGrammar) -> None:
        self._steps = grammar.steps
        self._repeats = grammar.repeats
        self._position = 0
        self._count = 0

    def accept(self, kind: str) -> bool:
        """Returns whether the event may come now. If it may not, but later, the matcher continues after it."""
        position, count = self._position, self._count
        for _ in range(len(self._steps) * 2):
            if position == len(self._steps):
                if not self._repeats:
                    break
                position, count = 0, 0
            step = self._steps[position]
            if kind in step.kinds and (count == 0 or step.quantifier in "*+"):
                self._position, self._count = position, count + 1
                return True
            if count == 0 and step.is_required:
                break
            position, count = position + 1, 0
        self._resume_at(kind)
        return False

    def list_expected(self) -> list[str]:
        """Returns the events that may come now."""
        kinds: list[str] = []
        position, count = self._position, self._count
        while position < len(self._steps):
            step = self._steps[position]
            if count == 0 or step.quantifier in "*+":
                kinds += step.kinds
            if count == 0 and step.is_required:
                break
            position, count = position + 1, 0
        return kinds

    def list_missing(self) -> list[str]:
        """Returns the events without which the item must not end."""
        rest = self._steps[self._position :]
        if self._repeats and self._position == 0 and self._count == 0:
            return []
        return [
            "|".join(step.kinds)
            for number, step in enumerate(rest)
            if step.is_required and (number > 0 or self._count == 0)
        ]

    def _resume_at(self, kind: str) -> None:
        for position, step in enumerate(self._steps):
            if kind in step.kinds and position >= self._position:
                self._position, self._count = position, 1
                return
