"""What a model of any dialect might say: calls as its frames write them, and the transcripts made of them."""

import json
from dataclasses import dataclass
from typing import Any

from antiphon.harmony.dialect import Dialect
from antiphon.harmony.tools import ToolTable
from tests.harmony import parser_helpers

ARGUMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "one": ("add", {"a": 1}),
    "two": ("add", {"a": 17, "b": -4}),
    "none": ("now", {}),
    "text": ("write", {"path": "a b.txt", "text": "Grüße, 世界 😀: 1 < 2 & \"so\" \\ 'on'"}),
    "lines": ("write", {"text": "first\n  second\n\nfourth"}),
    "types": ("write", {"path": "x", "deep": {"a": [1, {"b": None}], "c": "d"}, "yes": True, "tags": ["u", "v w"]}),
    "empty": ("write", {"text": "", "tags": []}),
    "short": ("write", {"path": "a.txt", "yes": True}),
}


def written(dialect: Dialect, *names: str) -> str:
    """Calls as the dialect writes them, together."""
    calls = []
    for name in names:
        tool, arguments = ARGUMENTS[name]
        offer = parser_helpers.TOOLS.find_tool(tool)
        assert offer is not None
        calls.append((offer, json.dumps(arguments, ensure_ascii=False)))
    return next(text for frame in dialect.calls if (text := frame.write_calls(calls)) is not None)


@dataclass(frozen=True)
class Transcript:
    """What a model said, whether the prompt had begun reasoning for it, and whether it had tools."""

    name: str
    text: str
    thinking: bool = False
    tools: bool = True

    @property
    def options(self) -> dict[str, Any]:
        """How it is read."""
        talk = parser_helpers.conversation() if self.tools else parser_helpers.conversation(tools=ToolTable())
        return {"talk": talk, "thinking": self.thinking}


def transcripts(dialect: Dialect) -> list[Transcript]:
    """What every dialect must read, in the words of this one."""
    before, after = dialect.answer or ("", "")
    answer = f"{before}\nGood morning.\n{after}" if dialect.answer else "Good morning."
    said = [Transcript("text", answer)]
    if dialect.think:
        opener, closer = dialect.think
        thought = f"{opener}\nLet me see.\n{closer}\n\n"
        said += [
            Transcript("reasoning, then text", thought + answer),
            Transcript(
                "reasoning that the prompt began, then text", f"Let me see.\n{closer}\n\n{answer}", thinking=True
            ),
        ]
    if not dialect.calls:
        return [
            *said,
            Transcript("stray markers in prose", f"One writes {dialect.all_markers[1]} at its end, or </b>."),
        ]
    one = written(dialect, "one")
    if dialect.think:
        said += [Transcript("reasoning, then a call", thought + one)]
    if dialect.think and not dialect.calls[0].head_only:
        said += [Transcript("reasoning that a call ends", f"{opener}\nLet me see.\n{one}")]
    if not dialect.calls[0].head_only:
        said += [Transcript("text, then a call", f"I will add.\n\n{one}")]
    stray = next((marker for marker in dialect.calls[0].markers if marker), "[")
    return [
        *said,
        Transcript("one call", one),
        Transcript("two parallel calls", written(dialect, "short", "two")),
        Transcript("no arguments", written(dialect, "none")),
        Transcript("unicode and escapes in arguments", written(dialect, "text")),
        Transcript("lines and nested values", written(dialect, "types")),
        Transcript("no tools were offered", one, tools=False),
        Transcript("stray markers in prose", f"One writes {stray} before a call, and so on."),
    ]
