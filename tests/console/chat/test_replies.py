"""Readers of replies, whatever a server sends."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from antiphon.console.chat.conversation import APIS
from antiphon.console.chat.pieces import ChatSettings, PendingCall, ReplyPiece
from antiphon.console.client import ReplyFailedError
from tests.kit.hostile_server import list_chat_chunks, list_messages_events, list_responses_events

EVENTS: dict[str, Callable[[str], list[dict[str, Any]]]] = {
    "responses": list_responses_events,
    "chat": list_chat_chunks,
    "messages": list_messages_events,
}
WRONG_VALUES: tuple[Any, ...] = (None, 7, -1, True, 1.5, "", "x", "\ud83d", [], [None], ["x"], [{}], {}, {"x": [{}]})
TOOL = {"type": "function", "name": "tool", "parameters": {"type": "object"}}


def read_reply(api: str, events: list[Any]) -> tuple[Any, list[ReplyPiece]]:
    reader = APIS[api]().open_reply()
    pieces = [piece for event in events for piece in reader.read_event(event)]
    return reader, [*pieces, *reader.finish()]


def replace_each_value(value: Any) -> Iterator[Any]:
    """Yields copies of a JSON value, each with one value of a wrong kind in it, or without one."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in list(inside):
        for changed in (*WRONG_VALUES, *replace_each_value(each)):
            copy = value.copy()
            copy[key] = changed
            yield copy
        copy = value.copy()
        del copy[key]
        yield copy


@pytest.mark.parametrize("api", APIS)
def test_pieces_are_in_order(api: str) -> None:
    reader, pieces = read_reply(api, EVENTS[api]("m"))
    shown = [(piece.kind, piece.text.partition("(")[0]) for piece in pieces if piece.kind != "break"]
    assert shown == [("reasoning", "thought"), ("text", "answer"), ("call", "tool")]
    assert reader.answer.getvalue() == "answer" and not reader.ending


@pytest.mark.parametrize("api", APIS)
def test_value_of_a_wrong_kind_fails_at_most(api: str) -> None:
    """No exception but the one that the conversation shows, and every reply that ends can be sent back."""
    outcomes = set()
    for events in replace_each_value(EVENTS[api]("m")):
        conversation = APIS[api]()
        try:
            reader, _ = read_reply(api, [event if isinstance(event, dict) else {} for event in events])
        except ReplyFailedError:
            outcomes.add("failed")
            continue
        outcomes.add("ended")
        conversation.items += reader.list_items()
        conversation.add_outputs([(call, "out") for call in reader.calls])
        assert json.dumps(conversation.build_body(ChatSettings(model="m")))
    assert outcomes == {"failed", "ended"}


@pytest.mark.parametrize("api", APIS)
def test_reply_without_its_end_fails(api: str) -> None:
    with pytest.raises(ReplyFailedError, match="before the end of the reply"):
        read_reply(api, EVENTS[api]("m")[:-1])


@pytest.mark.parametrize("api", APIS)
def test_texts_in_very_many_deltas(api: str) -> None:
    events = EVENTS[api]("m")
    is_delta = [
        "added" not in str(event.get("type"))
        and "done" not in str(event.get("type"))
        and '"answer"' in json.dumps(event)
        for event in events
    ]
    position = is_delta.index(True)
    many = [*events[:position], *[events[position]] * 100_000, *events[position + 1 :]]
    reader, _ = read_reply(api, many)
    assert reader.answer.getvalue() == "answer" * 100_000


@pytest.mark.parametrize(
    ("api", "events", "message"),
    [
        ("responses", [{"type": "error", "message": "m1"}], "m1"),
        ("responses", [{"type": "error", "error": {"message": "m2"}}], "m2"),
        ("responses", [{"type": "response.failed", "response": {"error": {"message": "m3"}}}], "m3"),
        ("responses", [{"type": "response.failed", "response": {"error": {"x": "\ud83d"}}}], "\ud83d"),
        ("chat", [{"error": {"message": "m4"}}], "m4"),
        ("chat", [{"error": "m5"}], "m5"),
        ("messages", [{"type": "error", "error": {"message": "m6"}}], "m6"),
    ],
)  # fmt: skip
def test_error_has_the_message_of_the_server(api: str, events: list[Any], message: str) -> None:
    with pytest.raises(ReplyFailedError) as caught:
        read_reply(api, events)
    assert message in str(caught.value)


def test_calls_and_outputs_have_the_form_of_their_api() -> None:
    call = PendingCall(call_id="c", name="tool", arguments="{}")
    custom = PendingCall(call_id="d", name="raw", arguments="text", is_custom=True)
    sent = {}
    for name, api in APIS.items():
        conversation = api()
        conversation.items += read_reply(name, EVENTS[name]("m"))[0].list_items()
        conversation.add_outputs([(call, "one"), (custom, "two")])
        body = conversation.build_body(
            ChatSettings(model="m", instructions="i", effort="low", tools=[TOOL], max_output_tokens=9)
        )
        sent[name] = body | {"items": conversation.items}
    responses, chat, messages = sent["responses"], sent["chat"], sent["messages"]
    assert [item["type"] for item in responses["input"]] == [
        *("reasoning", "message", "function_call", "function_call_output", "custom_tool_call_output"),
    ]
    assert (responses["instructions"], responses["reasoning"], responses["max_output_tokens"]) == (
        *("i", {"effort": "low"}, 9),
    )
    assert (responses["store"], responses["tools"]) == (False, [TOOL])
    assert chat["messages"][0] == {"role": "system", "content": "i"}
    assert chat["messages"][1]["reasoning_content"] == "thought" and chat["messages"][1]["content"] == "answer"
    assert chat["messages"][1]["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": {"name": "tool", "arguments": "{}"}}
    ]
    assert [entry["content"] for entry in chat["messages"][2:]] == ["one", "two"]
    assert chat["tools"] == [{"type": "function", "function": {"name": "tool", "parameters": {"type": "object"}}}]
    assert (chat["reasoning_effort"], chat["max_completion_tokens"]) == ("low", 9)
    assert [block["type"] for block in messages["items"][0]["content"]] == ["thinking", "text", "tool_use"]
    assert messages["items"][0]["content"][0]["thinking"] == "thought"
    assert messages["items"][0]["content"][2]["input"] == {"a": "b"}
    assert [block["content"] for block in messages["items"][1]["content"]] == ["one", "two"]
    assert (messages["system"], messages["output_config"], messages["max_tokens"]) == ("i", {"effort": "low"}, 9)
    assert messages["tools"] == [{"name": "tool", "input_schema": {"type": "object"}}]
