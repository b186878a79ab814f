"""The parts of a dialogue: OpenAI chat messages, and the example that holds them. Knows no words and no skill."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
Tool = dict[str, Any]


@dataclass(frozen=True)
class Dialogue:
    """One example: `messages[-1]` is the answer to learn; answers with reasoning before it in the same turn are too."""

    skill: str
    messages: list[Message]
    tools: list[Tool] = field(default_factory=list)
    thinking: bool = True


def user(text: str) -> Message:
    """What the user says."""
    return {"role": "user", "content": text}


def answer(thought: str, text: str) -> Message:
    """What the assistant thinks, then says."""
    return {"role": "assistant", "reasoning_content": thought, "content": text}


def call(thought: str, *wanted: tuple[str, dict[str, Any]]) -> Message:
    """What the assistant thinks, then calls; arguments are spelled as JSON."""
    spelled = [{"name": name, "arguments": json.dumps(args, ensure_ascii=False)} for name, args in wanted]
    made = [{"type": "function", "id": f"call_{n}", "function": function} for n, function in enumerate(spelled)]
    return {**answer(thought, ""), "tool_calls": made}


def results(message: Message, outputs: list[str]) -> list[Message]:
    """The tools' outputs, in the order of the calls."""
    return [
        {"role": "tool", "tool_call_id": made["id"], "content": out}
        for made, out in zip(message["tool_calls"], outputs, strict=True)
    ]
