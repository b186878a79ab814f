"""Stored state through the openai SDK: previous responses, conversations, input items, background responses, deletion."""

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.clients.batch_files import open_client
from tests.invariants import check_stream
from tests.serving import RunningServer, on_both_stores, serve

TOOL: Any = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}, "strict": False}
SCRIPT: list[dict[str, Any]] = [
    {"name": "on", "when": ["Go on."], "output": ["Yes."]},
    {"name": "third", "when": ["Where was that"], "output": ["In Oslo."]},
    {"name": "second", "when": ["Sunny"], "output": ["It is sunny."]},
    {
        "name": "first",
        "when": ["weather in Oslo"],
        "output": ["<think>\nAsk.\n</think>\n\n", '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>'],
    },
    {
        "name": "slow",
        "when": ["Slowly"],
        "output": ["One", {"pause": 0.3}, " two", {"pause": 0.3}, " three."],
        "tokens_per_chunk": 1,
    },
    {"name": "endless", "when": ["Forever"], "output": ["On and on", {"stall": True}]},
    {"name": "cut", "when": ["Break"], "output": ['<tool_call>\n{"name": "weather", "argum'], "finish": "length"},
    {"name": "fault", "when": ["Fail"], "output": ["Oh", {"fault": "broken", "code": "server_error"}]},
    {"name": "any", "output": ["Yes."]},
]
KEYS = ("sk-one", "sk-two")
SERVERS = on_both_stores(serve, SCRIPT, api_keys=KEYS)


@pytest.fixture
def other_client(server: RunningServer) -> Iterator[openai.OpenAI]:
    """A client with another API key."""
    with open_client(server, KEYS[1]) as client:
        yield client


def create_response(client: openai.OpenAI, text: str, **fields: Any) -> Any:
    return client.responses.create(model="scripted", input=text, **fields)


def wait_for_end(client: openai.OpenAI, response_id: str) -> Any:
    for _ in range(500):
        response = client.responses.retrieve(response_id)
        if response.status not in ("queued", "in_progress"):
            return response
        time.sleep(0.01)
    raise AssertionError("the response did not end")


# Previous responses


def test_three_turns_by_previous_response_id(client: openai.OpenAI) -> None:
    first = create_response(client, "What is the weather in Oslo?", tools=[TOOL], instructions="Be brief.")
    call = first.output[-1]
    output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "Sunny"}]
    second = create_response(client, output, previous_response_id=first.id, tools=[TOOL])
    assert second.output_text == "It is sunny." and second.previous_response_id == first.id
    assert second.instructions is None
    third = create_response(client, "Where was that?", previous_response_id=second.id)
    assert third.output_text == "In Oslo."
    texts = [create_response(client, "Where was that?", previous_response_id=second.id).output_text for _ in range(2)]
    assert texts == ["In Oslo."] * 2, "several responses may follow one"


def test_previous_response_id_gives_the_same_prompt_as_the_full_history(client: openai.OpenAI) -> None:
    first = create_response(client, "What is the weather in Oslo?", tools=[TOOL])
    call = first.output[-1]
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny"}
    chained = create_response(client, [output], previous_response_id=first.id, tools=[TOOL])
    history = [{"role": "user", "content": "What is the weather in Oslo?"}]
    history += [item.model_dump(exclude_none=True) for item in first.output]
    resent = create_response(client, [*history, output], tools=[TOOL])
    references = [{"type": "item_reference", "id": item.id} for item in first.output]
    referred = create_response(client, [history[0], *references, output], tools=[TOOL])
    counts = {response.usage.input_tokens for response in (chained, resent, referred)}
    assert len(counts) == 1, counts


def test_input_item_can_be_referenced_by_id(client: openai.OpenAI) -> None:
    first = create_response(client, "What is the weather in Oslo?", tools=[TOOL])
    (input_item,) = client.responses.input_items.list(first.id).data
    second = create_response(client, [{"type": "item_reference", "id": input_item.id}], tools=[TOOL])
    assert second.output[-1].name == "weather"


@pytest.mark.parametrize(
    ("text", "status"), [("Break", "incomplete"), ("Fail", "failed")], ids=["call cut off", "engine error"]
)
def test_incomplete_or_failed_response_can_be_continued(client: openai.OpenAI, text: str, status: str) -> None:
    broken = create_response(client, text, tools=[TOOL])
    assert broken.status == status
    assert create_response(client, "Go on.", previous_response_id=broken.id).output_text == "Yes."


def test_call_without_output_is_rejected(client: openai.OpenAI) -> None:
    first = create_response(client, "What is the weather in Oslo?", tools=[TOOL])
    with pytest.raises(openai.BadRequestError, match="No tool output found for function call"):
        create_response(client, "Never mind.", previous_response_id=first.id)


def test_unstored_deleted_or_running_response_cannot_be_continued(client: openai.OpenAI) -> None:
    unstored = create_response(client, "Hello", store=False)
    deleted = create_response(client, "Hello")
    client.responses.delete(deleted.id)
    running = create_response(client, "Forever", background=True)
    child = create_response(client, "Hello", previous_response_id=create_response(client, "Hello").id)
    client.responses.delete(child.previous_response_id)
    for previous, code in (
        (unstored, "previous_response_not_found"),
        (deleted, "previous_response_not_found"),
        (child, "previous_response_not_found"),
        (running, "previous_response_in_progress"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            create_response(client, "And?", previous_response_id=previous.id)
        assert (caught.value.code, caught.value.param) == (code, "previous_response_id")
    client.responses.cancel(running.id)


def test_counted_input_tokens_equal_those_of_the_turn(client: openai.OpenAI) -> None:
    first = create_response(client, "What is the weather in Oslo?", tools=[TOOL], instructions="Be brief.")
    output: Any = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "Sunny"}
    fields: Any = {"previous_response_id": first.id, "tools": [TOOL], "instructions": "Be long."}
    counted = client.responses.input_tokens.count(model="scripted", input=[output], **fields)
    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == create_response(client, [output], **fields).usage.input_tokens
    with pytest.raises(openai.NotFoundError):
        client.responses.input_tokens.count(model="other", input="x")


# Conversations


def test_conversation_stores_the_items_of_its_turns(client: openai.OpenAI) -> None:
    conversation = client.conversations.create(metadata={"about": "weather"})
    assert conversation.object == "conversation" and conversation.metadata == {"about": "weather"}
    assert conversation.created_at > 1_700_000_000
    first = create_response(client, "What is the weather in Oslo?", conversation=conversation.id, tools=[TOOL])
    assert first.conversation.id == conversation.id and first.previous_response_id is None
    output: Any = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "Sunny"}
    second = create_response(client, [output], conversation={"id": conversation.id}, tools=[TOOL])
    third = create_response(client, "Where was that?", conversation=conversation.id, stream=True)
    assert [event.type for event in third][-1] == "response.completed"
    items = list(client.conversations.items.list(conversation.id, order="asc", limit=2))
    kinds = ["message", "reasoning", "function_call", "function_call_output", "message", "message", "message"]
    assert [item.type for item in items] == kinds
    assert [item.id for item in items[1:3]] == [item.id for item in first.output]
    chained = create_response(client, "Where was that?", previous_response_id=second.id)
    again = create_response(client, "Where was that?", conversation=copy_to_conversation(client, items[:5]))
    assert again.usage.input_tokens == chained.usage.input_tokens, "both refer to the same prompt"


def copy_to_conversation(client: openai.OpenAI, items: list[Any]) -> str:
    """Creates a conversation with these items and returns its id."""
    return client.conversations.create(items=[item.model_dump(exclude_none=True) for item in items]).id


def test_conversation_items_are_added_retrieved_and_deleted(client: openai.OpenAI) -> None:
    conversation_id = client.conversations.create(items=[{"role": "user", "content": "One"}]).id
    new_items: Any = [{"role": "user", "content": f"More {n}"} for n in range(20)]
    added = client.conversations.items.create(conversation_id, items=new_items)
    assert len(added.data) == 20 and not added.has_more and added.first_id == added.data[0].id
    items = list(client.conversations.items.list(conversation_id, order="asc"))
    assert len({item.id for item in items}) == 21
    retrieved = client.conversations.items.retrieve(items[3].id or "", conversation_id=conversation_id)
    assert retrieved.to_dict() == items[3].to_dict()
    assert client.conversations.items.delete(items[3].id or "", conversation_id=conversation_id).id == conversation_id
    with pytest.raises(openai.NotFoundError):
        client.conversations.items.retrieve(items[3].id or "", conversation_id=conversation_id)
    referred = create_response(client, [{"type": "item_reference", "id": items[0].id}])
    assert [item.content[0].text for item in client.responses.input_items.list(referred.id).data] == ["One"]


def test_conversation_is_updated_and_deleted(client: openai.OpenAI) -> None:
    conversation = client.conversations.create()
    assert client.conversations.update(conversation.id, metadata={"a": "b"}).metadata == {"a": "b"}
    assert client.conversations.retrieve(conversation.id).to_dict() == {
        **conversation.to_dict(),
        "metadata": {"a": "b"},
    }
    response = create_response(client, "Hello", conversation=conversation.id)
    deletion = client.conversations.delete(conversation.id)
    assert (deletion.id, deletion.object, deletion.deleted) == (conversation.id, "conversation.deleted", True)
    for call in (client.conversations.retrieve, client.conversations.delete, client.conversations.items.list):
        with pytest.raises(openai.NotFoundError):
            call(conversation.id)
    with pytest.raises(openai.NotFoundError) as caught:
        create_response(client, "Hello", conversation=conversation.id)
    assert caught.value.param == "conversation"
    assert client.responses.retrieve(response.id).id == response.id


def test_failed_cancelled_and_unstored_turns_are_not_added_to_a_conversation(client: openai.OpenAI) -> None:
    conversation_id = client.conversations.create().id
    assert create_response(client, "Fail", conversation=conversation_id).status == "failed"
    assert create_response(client, "Hello", conversation=conversation_id, store=False).status == "completed"
    running = create_response(client, "Forever", conversation=conversation_id, background=True)
    client.responses.cancel(running.id)
    assert list(client.conversations.items.list(conversation_id)) == []
    assert create_response(client, "Break", conversation=conversation_id, tools=[TOOL]).status == "incomplete"
    assert [item.type for item in client.conversations.items.list(conversation_id)] == ["message"], (
        "an incomplete call is not stored"
    )


def test_conversation_and_previous_response_id_exclude_each_other(client: openai.OpenAI) -> None:
    conversation_id, response_id = client.conversations.create().id, create_response(client, "Hello").id
    with pytest.raises(openai.BadRequestError) as caught:
        create_response(client, "Hello", conversation=conversation_id, previous_response_id=response_id)
    assert caught.value.code == "mutually_exclusive_parameters"


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"items": "x"}, "invalid_type", "items"),
        ({"items": [{"role": "user", "content": "x"}] * 21}, "array_above_max_length", "items"),
        ({"items": [{"role": "boss", "content": "x"}]}, "invalid_value", "items[0].role"),
        ({"metadata": {"a": 1}}, "invalid_type", "metadata.a"),
        ({"wisdom": 1}, "unknown_parameter", "wisdom"),
    ],
)
def test_invalid_conversation_error_names_its_field(client: openai.OpenAI, body: Any, code: str, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/conversations", body=body, cast_to=object)
    assert (caught.value.code, caught.value.param) == (code, param)


# Input items


def test_input_items_are_listed_and_paged(client: openai.OpenAI) -> None:
    items: Any = [{"role": "user", "content": f"Number {n}"} for n in range(45)]
    items[3] = {"id": "msg_mine", "type": "message", "role": "user", "content": "Mine"}
    response = create_response(client, items)
    ascending = [item.id for item in client.responses.input_items.list(response.id, order="asc", limit=7)]
    descending = [item.id for item in client.responses.input_items.list(response.id)]
    assert ascending == descending[::-1] and len(set(ascending)) == 45 and ascending[3] == "msg_mine"
    first = client.responses.input_items.list(response.id, order="asc", limit=1).data[0].model_dump(exclude_none=True)
    assert first == {
        "id": ascending[0],
        "type": "message",
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": "Number 0"}],
    }
    page = client.responses.input_items.list(response.id, after=ascending[1])
    assert [item.id for item in page.data] == [ascending[0]] and not page.has_more


@pytest.mark.parametrize(
    ("query", "code", "param"),
    [
        ("limit=0", "integer_below_min_value", "limit"),
        ("limit=101", "integer_above_max_value", "limit"),
        ("limit=many", "invalid_type", "limit"),
        ("order=up", "invalid_value", "order"),
        ("after=msg_no", "invalid_value", "after"),
    ],
)
def test_invalid_page_error_names_its_parameter(
    server: RunningServer, client: openai.OpenAI, query: str, code: str, param: str
) -> None:
    response = create_response(client, "Hello")
    url = f"{server.url}/responses/{response.id}/input_items?{query}"
    error = httpx.get(url, headers={"authorization": f"Bearer {KEYS[0]}"}).json()["error"]
    assert (error["code"], error["param"]) == (code, param)


# Background responses


def test_background_response_is_returned_queued_and_completes_later(client: openai.OpenAI) -> None:
    response = create_response(client, "Slowly", background=True)
    assert (response.status, response.background, response.output) == ("queued", True, [])
    done = wait_for_end(client, response.id)
    assert done.status == "completed" and done.output_text == "One two three."


def test_background_stream_resumes_after_its_reader_disconnected(server: RunningServer, client: openai.OpenAI) -> None:
    first_events = []
    with client.responses.create(model="scripted", input="Slowly", background=True, stream=True) as stream:
        for event in stream:
            first_events.append(event)
            if event.type == "response.output_text.delta":
                break
    response_id = first_events[0].response.id  # type: ignore[union-attr]
    later_events = list(
        client.responses.retrieve(response_id, stream=True, starting_after=first_events[-1].sequence_number)
    )
    events = [event.to_dict() for event in (*first_events, *later_events)]
    check_stream(json.loads(json.dumps(events)))
    assert [event["type"] for event in events[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert events == [event.to_dict() for event in client.responses.retrieve(response_id, stream=True)]


def test_background_response_can_be_cancelled_and_a_foreground_one_cannot(
    server: RunningServer, client: openai.OpenAI
) -> None:
    response = create_response(client, "Forever", background=True)
    cancelled = client.responses.cancel(response.id)
    assert cancelled.status == "cancelled" and client.responses.retrieve(response.id).status == "cancelled"
    assert client.responses.cancel(response.id).to_dict() == cancelled.to_dict(), "cancelling again is no error"
    foreground = create_response(client, "Hello")
    with pytest.raises(openai.BadRequestError, match="Cannot cancel a synchronous response"):
        client.responses.cancel(foreground.id)


def test_engine_error_in_background_fails_the_response(client: openai.OpenAI) -> None:
    response = wait_for_end(client, create_response(client, "Fail", background=True).id)
    assert response.status == "failed" and response.error.code == "server_error" and response.output_text == "Oh"


# Deletion and access by other API keys


def test_deletion_removes_the_response_and_stops_its_turn(server: RunningServer, client: openai.OpenAI) -> None:
    for response in (create_response(client, "Hello"), create_response(client, "Forever", background=True)):
        reply = httpx.delete(f"{server.url}/responses/{response.id}", headers={"authorization": f"Bearer {KEYS[0]}"})
        assert reply.status_code == 200
        assert reply.json() == {"id": response.id, "object": "response", "deleted": True}
        for call in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
            with pytest.raises(openai.NotFoundError):
                call(response.id)
    for _ in range(100):
        if server.context.turn_manager.num_running == 0:
            break
        time.sleep(0.02)
    assert server.context.turn_manager.num_running == server.engine.stats().running == 0


def test_another_api_key_has_no_access_to_responses_or_conversations(
    client: openai.OpenAI, other_client: openai.OpenAI
) -> None:
    response = create_response(client, "Forever", background=True)
    (item,) = client.responses.input_items.list(response.id).data
    for call in (
        other_client.responses.retrieve,
        other_client.responses.cancel,
        other_client.responses.delete,
        other_client.responses.input_items.list,
        lambda name: list(other_client.responses.retrieve(name, stream=True)),
    ):
        with pytest.raises(openai.NotFoundError):
            call(response.id)
    with pytest.raises(openai.BadRequestError) as caught:
        create_response(other_client, "And?", previous_response_id=response.id)
    assert caught.value.code == "previous_response_not_found"
    with pytest.raises(openai.NotFoundError):
        create_response(other_client, [{"type": "item_reference", "id": item.id}])  # type: ignore[arg-type]
    conversation = client.conversations.create(items=[{"role": "user", "content": "Secret"}])
    (secret,) = client.conversations.items.list(conversation.id).data
    for call in (
        other_client.conversations.retrieve,
        other_client.conversations.delete,
        other_client.conversations.items.list,
    ):
        with pytest.raises(openai.NotFoundError):
            call(conversation.id)
    for attempt in (
        lambda: other_client.conversations.update(conversation.id, metadata={}),
        lambda: other_client.conversations.items.create(conversation.id, items=[{"role": "user", "content": "Mine"}]),
        lambda: other_client.conversations.items.retrieve(secret.id or "", conversation_id=conversation.id),
        lambda: other_client.conversations.items.delete(secret.id or "", conversation_id=conversation.id),
        lambda: create_response(other_client, "And?", conversation=conversation.id),
        lambda: create_response(other_client, [{"type": "item_reference", "id": secret.id}]),  # type: ignore[arg-type]
    ):
        with pytest.raises(openai.NotFoundError):
            attempt()
    assert client.responses.cancel(response.id).status == "cancelled"
