"""Asynchronous calls in the prompt: pending ones have an output of their own, late outputs are messages."""

from typing import Any

import pytest

from antiphon.app.requests.responses.input_items import read_item
from antiphon.app.turns.prompts.kept_items import KeptItems
from antiphon.events.inputs import AnyInput, InputMessage
from antiphon.harmony.prompt.async_calls import AnyOutput, show_pending_calls
from antiphon.harmony.prompt.messages import content_text
from antiphon.harmony.tools import ToolTable
from tests.app.requests.request_builders import read_responses_spec
from tests.harmony.parser_helpers import NOW, load_token_format

NO_TOOLS = ToolTable(())
KINDS = ["function_call", "custom_tool_call"]


def read_items(script: str, kind: str = "function_call") -> list[AnyInput]:
    """Returns items of a word each: `u` and `s` a text of a user and of the model, `r` reasoning, `+a` an output.

    `a` is an asynchronous call, and `A` one that is not.
    """
    return [read_item(write_item(word, kind), "x") for word in script.split()]


def write_item(word: str, kind: str) -> dict[str, Any]:
    if word == "r":
        return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]}
    if word in ("u", "s"):
        return {"role": "user" if word == "u" else "assistant", "content": word}
    if word.startswith("+"):
        return {"type": f"{kind}_output", "call_id": word[1:], "output": f"output {word[1:]}"}
    return {"type": kind, "call_id": word, "name": f"f_{word}", "arguments": "{}", "input": "", "async": word.islower()}


def describe_items(items: tuple[AnyInput, ...]) -> str:
    """Returns shown items as `read_items` writes them; `?a` is the text of a pending call, `!a` a late output."""
    return " ".join(map(describe_item, items))


def describe_item(item: AnyInput) -> str:
    if isinstance(item, InputMessage):
        text = content_text(item.content)
        return f"!{text[-1]}" if text.startswith("The result of f_") else text
    if isinstance(item, AnyOutput):
        return f"{'?' if content_text(item.output) == 'The result will follow.' else '+'}{item.call_id}"
    return getattr(item, "call_id", "r")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("u A +A s", "u A +A s"),
        ("u a +a s", "u a +a s"),
        ("u a", "u a ?a"),
        ("u a u", "u a ?a u"),
        ("u a u s u", "u a ?a u s u"),
        ("u a u +a", "u a u +a"),
        ("u a u s +a", "u a ?a u s !a"),
        ("u a u s u +a s", "u a ?a u s u !a s"),
        ("u r a r B +B u", "u r a r B ?a +B u"),
        ("u a s u s +a", "u a s ?a u s !a"),
        ("u a b +b s +a s", "u a b ?a +b s !a s"),
        ("u a u b u +b +a", "u a ?a u b u +b !a"),
    ],
)
def test_pending_calls_and_late_outputs(kind: str, sent: str, shown: str) -> None:
    assert describe_items(show_pending_calls(read_items(sent, kind), NO_TOOLS)) == shown


def test_prompt_of_a_pending_call_is_a_prefix_of_the_next_one() -> None:
    history = read_items("u a u s u s +a s")
    for length in range(3, len(history)):
        if isinstance(history[length], InputMessage) and length != 6:
            shown, longer = (show_pending_calls(history[:end], NO_TOOLS) for end in (length, length + 1))
            assert longer[: len(shown)] == shown


def test_late_output_names_its_call_and_keeps_its_parts() -> None:
    items = read_items("u a u s")
    parts = [{"type": "input_text", "text": "rain"}]
    items.append(read_item({"type": "function_call_output", "call_id": "a", "output": parts}, "x"))
    last = show_pending_calls(items, NO_TOOLS)[-1]
    assert isinstance(last, InputMessage)
    assert content_text(last.content) == "The result of f_a {}:\nrain"


def test_model_reads_them() -> None:
    tools = [{"type": "function", "name": "f_a", "parameters": {"type": "object"}, "async": True}]
    script = ("u", "a", "u", "s", "+a")
    spec = read_responses_spec(tools=tools, input=[write_item(word, "function_call") for word in script])
    rendered = load_token_format("hermes").render_prompt(spec.prompt_input, now=NOW)
    assert rendered.text.count("<tool_response>\nThe result will follow.\n</tool_response>") == 1
    assert "The result of f_a {}:\noutput a" in rendered.text


def test_compaction_keeps_calls_that_wait() -> None:
    items = read_items("u a u s b u +b s u")
    kept = KeptItems(items, 0, len).select()
    assert [item.call_id for item in kept if not isinstance(item, InputMessage)] == ["a"]
