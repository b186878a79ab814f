"""A training dialogue: OpenAI chat messages, rendered with the chat template and encoded to token ids."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Template
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

TEMPLATE_FILE = Path(__file__).parent / "template.jinja"

Message = dict[str, Any]
Tool = dict[str, Any]


@dataclass(frozen=True)
class Dialogue:
    """One example: `messages[-1]` is the answer to learn; answers with reasoning before it in the same turn are too."""

    skill: str
    messages: list[Message]
    tools: list[Tool] = field(default_factory=list)
    thinking: bool = True


def user_message(text: str) -> Message:
    """What the user says."""
    return {"role": "user", "content": text}


def answer_message(thought: str, text: str) -> Message:
    """What the assistant thinks, then says."""
    return {"role": "assistant", "reasoning_content": thought, "content": text}


def call_message(thought: str, *wanted: tuple[str, dict[str, Any]]) -> Message:
    """What the assistant thinks, then calls; arguments are spelled as JSON."""
    spelled = [{"name": name, "arguments": json.dumps(args, ensure_ascii=False)} for name, args in wanted]
    made = [{"type": "function", "id": f"call_{n}", "function": function} for n, function in enumerate(spelled)]
    return {**answer_message(thought, ""), "tool_calls": made}


def tool_messages(message: Message, outputs: list[str]) -> list[Message]:
    """The tools' outputs, in the order of the calls."""
    return [
        {"role": "tool", "tool_call_id": made["id"], "content": out}
        for made, out in zip(message["tool_calls"], outputs, strict=True)
    ]


@lru_cache
def load_template() -> Template:
    """The chat template, in the sandbox and with the settings that transformers uses."""
    sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    sandbox.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return sandbox.from_string(TEMPLATE_FILE.read_text(encoding="utf-8"))


def render_prompt(messages: list[Message], tools: list[Tool], thinking: bool = True) -> str:
    """What the model reads before it writes."""
    return load_template().render(messages=messages, tools=tools, add_generation_prompt=True, enable_thinking=thinking)


def render_answer(message: Message) -> str:
    """An answer without its reasoning, as the template would render it."""
    functions = [made["function"] for made in message.get("tool_calls") or []]
    calls = [
        f'<tool_call>\n{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}\n</tool_call>'
        for function in functions
    ]
    return "\n".join(([message["content"]] if message["content"] else []) + calls)


def render_completion(message: Message, thinking: bool = True) -> str:
    """What the model is to write."""
    thought = f"<think>\n{message['reasoning_content']}\n</think>\n\n" if thinking else ""
    return f"{thought}{render_answer(message)}<|im_end|>"


def encode_dialogue(tokenizer: Tokenizer, dialogue: Dialogue) -> tuple[list[int], list[bool]]:
    """Token ids, and for each whether it is learned: the answer, and those with reasoning before it in the turn."""
    *before, said = dialogue.messages
    head = tokenizer.encode(render_prompt(before, dialogue.tools, dialogue.thinking), add_special_tokens=False).ids
    tail = tokenizer.encode(render_completion(said, dialogue.thinking), add_special_tokens=False).ids
    return head + tail, mark_learned(tokenizer, head) + [True] * len(tail)


def mark_learned(tokenizer: Tokenizer, head: list[int]) -> list[bool]:
    """Marks, within a prompt, the answers that begin with a non-empty thought."""
    think, end = tokenizer.token_to_id("<think>"), tokenizer.token_to_id("<|im_end|>")
    marks, inside = [False] * len(head), False
    for n, token in enumerate(head):
        if token == think and end in head[n:] and head[n - 3] == tokenizer.token_to_id("<|im_start|>"):
            inside = True
        marks[n] = inside
        inside = inside and token != end
    return marks
