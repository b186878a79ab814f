"""Sample outputs of any dialect: calls written by its call formats, alone and with text and reasoning."""

import json
from dataclasses import dataclass
from typing import Any

from antiphon.harmony.dialect import Dialect
from antiphon.harmony.tools import ToolTable
from tests.harmony import parser_helpers

SAMPLE_CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "one": ("add", {"a": 1}),
    "two": ("add", {"a": 17, "b": -4}),
    "none": ("now", {}),
    "text": ("write", {"path": "a b.txt", "text": "Grüße, 世界 😀: 1 < 2 & \"so\" \\ 'on'"}),
    "lines": ("write", {"text": "first\n  second\n\nfourth"}),
    "types": ("write", {"path": "x", "deep": {"a": [1, {"b": None}], "c": "d"}, "yes": True, "tags": ["u", "v w"]}),
    "empty": ("write", {"text": "", "tags": []}),
    "short": ("write", {"path": "a.txt", "yes": True}),
}


def write_sample_calls(dialect: Dialect, *names: str) -> str:
    """Returns the text of one or more parallel calls in the dialect's first format that can write them."""
    calls = []
    for name in names:
        tool, arguments = SAMPLE_CALLS[name]
        offer = parser_helpers.TOOLS.find_tool(tool)
        assert offer is not None
        calls.append((offer, json.dumps(arguments, ensure_ascii=False)))
    return next(text for call_format in dialect.calls if (text := call_format.write_calls(calls)) is not None)


@dataclass(frozen=True)
class SampleOutput:
    """An output of a model, with what its prompt held.

    `thinking` means that the prompt opened reasoning; `tools` that it offered tools.
    """

    name: str
    text: str
    thinking: bool = False
    tools: bool = True

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments for `parser_helpers.parse_tokens`."""
        prompt_input = (
            parser_helpers.build_prompt_input() if self.tools else parser_helpers.build_prompt_input(tools=ToolTable())
        )
        return {"prompt_input": prompt_input, "thinking": self.thinking}


def list_sample_outputs(dialect: Dialect) -> list[SampleOutput]:
    """Returns the outputs that every dialect must parse, with the markers of this one."""
    before, after = dialect.answer or ("", "")
    answer = f"{before}\nGood morning.\n{after}" if dialect.answer else "Good morning."
    samples = [SampleOutput("text", answer)]
    if dialect.think:
        opener, closer = dialect.think
        reasoning = f"{opener}\nLet me see.\n{closer}\n\n"
        samples += [
            SampleOutput("reasoning, then text", reasoning + answer),
            SampleOutput(
                "reasoning that the prompt began, then text", f"Let me see.\n{closer}\n\n{answer}", thinking=True
            ),
        ]
    if not dialect.calls:
        return [
            *samples,
            SampleOutput("stray markers in prose", f"One writes {dialect.all_markers[1]} at its end, or </b>."),
        ]
    call = write_sample_calls(dialect, "one")
    if dialect.think:
        samples += [SampleOutput("reasoning, then a call", reasoning + call)]
    if dialect.think and not dialect.calls[0].head_only:
        samples += [SampleOutput("reasoning that a call ends", f"{opener}\nLet me see.\n{call}")]
    if not dialect.calls[0].head_only:
        samples += [SampleOutput("text, then a call", f"I will add.\n\n{call}")]
    marker = next((marker for marker in dialect.calls[0].markers if marker), "[")
    return [
        *samples,
        SampleOutput("one call", call),
        SampleOutput("two parallel calls", write_sample_calls(dialect, "short", "two")),
        SampleOutput("no arguments", write_sample_calls(dialect, "none")),
        SampleOutput("unicode and escapes in arguments", write_sample_calls(dialect, "text")),
        SampleOutput("lines and nested values", write_sample_calls(dialect, "types")),
        SampleOutput("no tools were offered", call, tools=False),
        SampleOutput("stray markers in prose", f"One writes {marker} before a call, and so on."),
    ]
