"""Conversion of messages to the shapes that chat templates take, and the search for the shape."""

from collections.abc import Callable
from typing import Any

import pytest

from antiphon.harmony.detection.detect import DIALECTS
from antiphon.harmony.detection.template_format import TemplateFormat
from antiphon.harmony.format import PromptInput
from antiphon.harmony.prompt.message_shape import MessageShape, apply_shape
from antiphon.harmony.prompt.templates.jinja import ChatTemplate
from antiphon.harmony.prompt.templates.probe import ShapeSearch
from antiphon.harmony.tokens.vocabulary import ByteVocabulary

SYSTEM = {"role": "system", "content": "Be brief."}
ANSWER = {"role": "assistant", "content": "Yes."}


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def calls(*call_ids: str, content: str = "") -> dict[str, Any]:
    """Returns an assistant message with one call for each id."""
    tool_calls = [
        {"id": call_id, "type": "function", "function": {"name": "add", "arguments": {"a": 1}}} for call_id in call_ids
    ]
    return {"role": "assistant", "content": content, "tool_calls": tool_calls}


def output(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "content": f"output of {call_id}", "tool_call_id": call_id}


def describe(messages: list[dict[str, Any]]) -> list[str]:
    """Returns one line for each message: its calls, its output or its text."""
    return [
        " ".join(call["id"] for call in message.get("tool_calls", ()))
        or message.get("tool_call_id", "")
        or f"{message['role']}: {message['content']}"
        for message in messages
    ]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([SYSTEM, user("Hi")], ["user: Be brief.\n\nHi"]),
        ([SYSTEM, ANSWER, user("Hi")], ["user: Be brief.", "assistant: Yes.", "user: Hi"]),
        ([SYSTEM], ["user: Be brief."]),
        ([user("Hi")], ["user: Hi"]),
        ([], []),
    ],
)
def test_system_text_goes_in_front_of_the_first_user_message(
    messages: list[dict[str, Any]], expected: list[str]
) -> None:
    copies = [dict(message) for message in messages]
    assert describe(apply_shape(copies, MessageShape(system_in_user=True))) == expected


def test_each_call_gets_a_message_that_its_output_follows() -> None:
    messages = [user("Hi"), calls("a", "b", content="See."), output("b"), output("a"), ANSWER, calls("c"), output("x")]
    shaped = apply_shape(messages, MessageShape(single_call=True))
    assert describe(shaped) == ["user: Hi", "a", "a", "b", "b", "assistant: Yes.", "c", "x"]
    assert [message["role"] for message in shaped[1:5]] == ["assistant", "tool", "assistant", "tool"]
    assert [message["content"] for message in shaped[1:4:2]] == ["See.", ""]


def test_output_of_a_repeated_id_follows_the_latest_call() -> None:
    messages = [calls("a"), output("a"), ANSWER, calls("a", "b"), output("a"), output("b")]
    shaped = apply_shape(messages, MessageShape(single_call=True))
    assert [message["role"][0] for message in shaped] == ["a", "t", "a", "a", "t", "a", "t"]


def test_text_and_calls_are_separated() -> None:
    shaped = apply_shape([calls("a", content="See."), calls("b"), ANSWER], MessageShape(separate_calls=True))
    assert describe(shaped) == ["assistant: See.", "a", "b", "assistant: Yes."]
    assert [message["content"] for message in shaped] == ["See.", "", "", "Yes."]


def test_short_ids_are_alphanumeric_distinct_and_stable() -> None:
    ids = ("call_123", "call_124", "fc-1", "abcDEF123", "\ud800")
    first, second = (apply_shape([calls(*ids), *map(output, ids)], MessageShape(short_ids=True)) for _ in range(2))
    short_ids = [call["id"] for call in first[0]["tool_calls"]]
    assert [message["tool_call_id"] for message in first[1:]] == short_ids
    assert len(set(short_ids)) == len(ids) and all(len(text) == 9 and text.isalnum() for text in short_ids)
    assert short_ids[3] == "abcDEF123"
    assert [call["id"] for call in second[0]["tool_calls"]] == short_ids


def test_content_and_arguments_are_converted() -> None:
    shape = MessageShape(text_arguments=True, null_content=True, content_parts=True)
    question, call, answer = apply_shape([user("Hi"), calls("a"), ANSWER.copy()], shape)
    assert question["content"] == [{"type": "text", "text": "Hi"}] and call["content"] is None
    assert call["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'
    assert answer["content"] == [{"type": "text", "text": "Yes."}]
    assert apply_shape([output("a")], shape)[0]["content"] == "output of a"


def search(render: Callable[[PromptInput, MessageShape], str | None]) -> MessageShape:
    return ShapeSearch(render, has_tools=False, names_tool_role=False).find_shape()


def test_template_that_refuses_or_drops_everything_gets_text_only() -> None:
    expected = MessageShape(tools_in="words", written_calls=True, user_outputs="all")
    assert search(lambda conversation, shape: None) == expected
    assert search(lambda conversation, shape: "nothing of it") == expected


def test_template_that_takes_everything_keeps_the_default_shape() -> None:
    def render(conversation: PromptInput, shape: MessageShape) -> str:
        return f"{conversation.instructions}{[tool.model_name for tool in conversation.tools]}{conversation.items}"

    assert search(render) == MessageShape()


def build_reasoning_message() -> dict[str, Any]:
    return {**calls("a", content="See."), "reasoning_content": "Hm."}


@pytest.mark.parametrize("name", ["reasoning", "thinking", "thought"])
def test_reasoning_gets_the_name_that_the_template_reads(name: str) -> None:
    [message] = apply_shape([build_reasoning_message()], MessageShape(reasoning_in=name))
    assert message[name] == "Hm." and message["content"] == "See." and "reasoning_content" not in message


def test_reasoning_becomes_a_part_of_the_content() -> None:
    thinking = {"type": "thinking", "thinking": "Hm."}
    for content, expected in (("See.", [thinking, {"type": "text", "text": "See."}]), ("", [thinking])):
        message = {**build_reasoning_message(), "content": content}
        for null in (False, True):
            [shaped] = apply_shape([dict(message)], MessageShape(reasoning_in="part", null_content=null))
            assert shaped["content"] == expected and "reasoning_content" not in shaped


def test_reasoning_of_the_current_turn_becomes_text() -> None:
    messages = [user("Hi"), build_reasoning_message(), user("More"), build_reasoning_message(), output("a")]
    shaped = apply_shape(messages, MessageShape(reasoning_in="text"), ("<think>", "</think>"))
    assert [message["content"] for message in shaped[:4]] == ["Hi", "See.", "More", "<think>Hm.</think>See."]
    assert not any("reasoning_content" in message for message in shaped)


def render_place(template: str, place: str) -> str:
    """Returns the place of reasoning that is found for a template."""
    loop = "{% for m in messages %}" + template.replace("PLACE", place) + "{% endfor %}"
    tokens = ("<think>", "</think>")
    model_format = TemplateFormat(DIALECTS["hermes"], ByteVocabulary((), tokens), ChatTemplate(loop))
    return model_format.renderer.shape.reasoning_in


CALLS = "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments }}{% endfor %}"
NAMED_PLACE = "{% if m.PLACE %}<think>{{ m.PLACE }}</think>{% endif %}{{ m.content }}" + CALLS
PART_PLACE = (
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content or [] %}"
    "{% if p.type == 'PLACE' %}<think>{{ p.thinking }}</think>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}"
) + CALLS
THINKING_ONLY = "{% if thinking and m.PLACE %}<think>{{ m.PLACE }}</think>{% endif %}{{ m.content }}" + CALLS


@pytest.mark.parametrize(
    ("template", "name", "place"),
    [
        (NAMED_PLACE, "reasoning_content", "reasoning_content"),
        (NAMED_PLACE, "reasoning", "reasoning"),
        (NAMED_PLACE, "thinking", "thinking"),
        (NAMED_PLACE, "thought", "thought"),
        (THINKING_ONLY, "reasoning_content", "reasoning_content"),
        (PART_PLACE, "thinking", "part"),
        ("{{ m.content }}" + CALLS, "", "text"),
        ("{{ m.content.split('</think>')[-1] }}" + CALLS, "", "reasoning_content"),
    ],
)
def test_place_of_reasoning_is_found(template: str, name: str, place: str) -> None:
    assert render_place(template, name) == place
