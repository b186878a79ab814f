"""Training dialogues: OpenAI chat messages, rendered with the chat template and encoded to token ids."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Template
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Encoding, Tokenizer

TEMPLATE_FILE = Path(__file__).parent / "template.jinja"

ChatMessage = dict[str, Any]
ToolDefinition = dict[str, Any]


@dataclass(frozen=True)
class Dialogue:
    """One training example. The model learns `messages[-1]` and earlier answers with reasoning in the same turn."""

    skill: str
    messages: list[ChatMessage]
    tools: list[ToolDefinition] = field(default_factory=list)
    thinking: bool = True
    fields: dict[str, str] = field(default_factory=dict)
    """Names and types of an answer that must be JSON. A grammar writes the names, which are therefore not learned."""


def user_message(text: str) -> ChatMessage:
    """Returns a user message."""
    return {"role": "user", "content": text}


def answer_message(thought: str, text: str) -> ChatMessage:
    """Returns an assistant message with reasoning and text."""
    return {"role": "assistant", "reasoning_content": thought, "content": text}


def call_message(thought: str, *calls: tuple[str, dict[str, Any]]) -> ChatMessage:
    """Returns an assistant message with reasoning and calls. Arguments are serialized as JSON."""
    functions = [{"name": name, "arguments": json.dumps(args, ensure_ascii=False)} for name, args in calls]
    tool_calls = [{"type": "function", "id": f"call_{n}", "function": function} for n, function in enumerate(functions)]
    return {**answer_message(thought, ""), "tool_calls": tool_calls}


def custom_call_message(thought: str, name: str, text: str) -> ChatMessage:
    """Returns an assistant message with reasoning and a call of a custom tool, whose argument is raw text."""
    tool_call = {"type": "custom", "id": "call_0", "custom": {"name": name, "input": text}}
    return {**answer_message(thought, ""), "tool_calls": [tool_call]}


def tool_messages(message: ChatMessage, outputs: list[str]) -> list[ChatMessage]:
    """Returns the tool messages that answer the calls of `message`, in the order of the calls."""
    return [
        {"role": "tool", "tool_call_id": tool_call["id"], "content": output}
        for tool_call, output in zip(message["tool_calls"], outputs, strict=True)
    ]


@lru_cache
def load_template() -> Template:
    """Returns the chat template, compiled in the sandbox and with the settings that transformers uses."""
    sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    sandbox.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return sandbox.from_string(TEMPLATE_FILE.read_text(encoding="utf-8"))


def render_prompt(messages: list[ChatMessage], tools: list[ToolDefinition], thinking: bool = True) -> str:
    """Returns the prompt text that the model continues."""
    return load_template().render(messages=messages, tools=tools, add_generation_prompt=True, enable_thinking=thinking)


def render_answer(message: ChatMessage) -> str:
    """Renders an answer without its reasoning, as the template does."""
    calls = [f"<tool_call>\n{_render_call(tool_call)}\n</tool_call>" for tool_call in message.get("tool_calls") or []]
    return "\n".join(([message["content"]] if message["content"] else []) + calls)


def _render_call(tool_call: dict[str, Any]) -> str:
    if custom := tool_call.get("custom"):
        return f"<custom={custom['name']}>\n{custom['input']}\n</custom>"
    function = tool_call["function"]
    return f'{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}'


def render_completion(message: ChatMessage, thinking: bool = True) -> str:
    """Returns the text to generate: reasoning, answer and end marker."""
    thought = f"<think>\n{message['reasoning_content']}\n</think>\n\n" if thinking else ""
    return f"{thought}{render_answer(message)}<|im_end|>"


def encode_dialogue(tokenizer: Tokenizer, dialogue: Dialogue) -> tuple[list[int], list[bool]]:
    """Returns the token ids and a loss mask: the last answer, and earlier ones with reasoning in its turn."""
    *context, answer = dialogue.messages
    prompt_ids = tokenizer.encode(
        render_prompt(context, dialogue.tools, dialogue.thinking), add_special_tokens=False
    ).ids
    encoded = tokenizer.encode(render_completion(answer, dialogue.thinking), add_special_tokens=False)
    mask = mark_values(encoded, answer, dialogue.fields) if dialogue.fields else [True] * len(encoded.ids)
    return prompt_ids + encoded.ids, mark_learned(tokenizer, prompt_ids) + mask


def mark_values(encoded: Encoding, answer: ChatMessage, fields: dict[str, str]) -> list[bool]:
    """Returns the loss mask of a completion that is JSON: all but the reasoning and the names of the fields."""
    text: str = answer["content"]
    shift = encoded.offsets[-1][0] - len(text)
    given, place = [(0, shift)], 0
    for name in fields:
        place = text.index(f'"{name}": ', place) + 1
        given.append((shift + place, shift + place + len(name)))
    return [not any(start < last and first < stop for first, last in given) for start, stop in encoded.offsets]


def mark_learned(tokenizer: Tokenizer, prompt_ids: list[int]) -> list[bool]:
    """Returns the loss mask of a prompt: its answers that begin with non-empty reasoning."""
    think, end = tokenizer.token_to_id("<think>"), tokenizer.token_to_id("<|im_end|>")
    mask, in_answer = [False] * len(prompt_ids), False
    for n, token in enumerate(prompt_ids):
        if token == think and end in prompt_ids[n:] and prompt_ids[n - 3] == tokenizer.token_to_id("<|im_start|>"):
            in_answer = True
        mask[n] = in_answer
        in_answer = in_answer and token != end
    return mask
