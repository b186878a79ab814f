"""From a dialogue to token ids: renders with the chat template, encodes, and says which tokens are to be learned."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

from jinja2 import Template
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from antiphon.engine.embedded.messages import Dialogue, Message, Tool

TEMPLATE = Path(__file__).parent / "template.jinja"


@lru_cache
def template() -> Template:
    """The chat template, in the sandbox and with the settings that transformers uses."""
    sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    sandbox.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return sandbox.from_string(TEMPLATE.read_text(encoding="utf-8"))


def prompt(messages: list[Message], tools: list[Tool], thinking: bool = True) -> str:
    """What the model reads before it writes."""
    return template().render(messages=messages, tools=tools, add_generation_prompt=True, enable_thinking=thinking)


def spell(message: Message) -> str:
    """An answer without its reasoning, as the template would render it."""
    functions = [made["function"] for made in message.get("tool_calls") or []]
    calls = [
        f'<tool_call>\n{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}\n</tool_call>'
        for function in functions
    ]
    return "\n".join(([message["content"]] if message["content"] else []) + calls)


def completion(message: Message, thinking: bool = True) -> str:
    """What the model is to write."""
    thought = f"<think>\n{message['reasoning_content']}\n</think>\n\n" if thinking else ""
    return f"{thought}{spell(message)}<|im_end|>"


def example(tokenizer: Tokenizer, dialogue: Dialogue) -> tuple[list[int], list[bool]]:
    """Token ids, and for each whether it is learned: the answer, and those with reasoning before it in the turn."""
    *before, said = dialogue.messages
    head = tokenizer.encode(prompt(before, dialogue.tools, dialogue.thinking), add_special_tokens=False).ids
    tail = tokenizer.encode(completion(said, dialogue.thinking), add_special_tokens=False).ids
    return head + tail, learned(tokenizer, head) + [True] * len(tail)


def learned(tokenizer: Tokenizer, head: list[int]) -> list[bool]:
    """Marks, within a prompt, the answers that begin with a non-empty thought."""
    think, end = tokenizer.token_to_id("<think>"), tokenizer.token_to_id("<|im_end|>")
    marks, inside = [False] * len(head), False
    for n, token in enumerate(head):
        if token == think and end in head[n:] and head[n - 3] == tokenizer.token_to_id("<|im_start|>"):
            inside = True
        marks[n] = inside
        inside = inside and token != end
    return marks
