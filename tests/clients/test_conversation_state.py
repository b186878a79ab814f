"""Turns that lean on earlier ones, and turns in the background, through the openai SDK over a real socket."""

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.invariants import check
from tests.serving import RunningServer, scripted_registry, serve

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


@pytest.fixture(scope="module", params=["memory", "file"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    store = tmp_path_factory.mktemp("store") / "responses.db" if request.param == "file" else None
    with serve(scripted_registry(SCRIPT), api_keys=KEYS, store_file=store) as running:
        yield running


def sdk(served: RunningServer, key: str = KEYS[0]) -> openai.OpenAI:
    return openai.OpenAI(base_url=served.url, api_key=key, max_retries=0, timeout=20)


@pytest.fixture
def client(served: RunningServer) -> Iterator[openai.OpenAI]:
    with sdk(served) as opened:
        yield opened


@pytest.fixture
def other(served: RunningServer) -> Iterator[openai.OpenAI]:
    """Somebody else's client."""
    with sdk(served, KEYS[1]) as opened:
        yield opened


def ask(client: openai.OpenAI, text: str, **more: Any) -> Any:
    return client.responses.create(model="scripted", input=text, **more)


def settled(client: openai.OpenAI, response_id: str) -> Any:
    for _ in range(500):
        found = client.responses.retrieve(response_id)
        if found.status not in ("queued", "in_progress"):
            return found
        time.sleep(0.01)
    raise AssertionError("it does not end")


# The chain


def test_a_conversation_of_three_turns_by_previous_response_id(client: openai.OpenAI) -> None:
    first = ask(client, "What is the weather in Oslo?", tools=[TOOL], instructions="Be brief.")
    call = first.output[-1]
    told: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "Sunny"}]
    second = ask(client, told, previous_response_id=first.id, tools=[TOOL])
    assert second.output_text == "It is sunny." and second.previous_response_id == first.id
    assert second.instructions is None
    third = ask(client, "Where was that?", previous_response_id=second.id)
    assert third.output_text == "In Oslo."
    both = [ask(client, "Where was that?", previous_response_id=second.id).output_text for _ in range(2)]
    assert both == ["In Oslo."] * 2, "one response may have several that follow it"


def test_the_chain_is_the_same_prompt_as_the_whole_history_sent_again(client: openai.OpenAI) -> None:
    first = ask(client, "What is the weather in Oslo?", tools=[TOOL])
    call = first.output[-1]
    told: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny"}
    chained = ask(client, [told], previous_response_id=first.id, tools=[TOOL])
    history = [{"role": "user", "content": "What is the weather in Oslo?"}]
    history += [item.model_dump(exclude_none=True) for item in first.output]
    resent = ask(client, [*history, told], tools=[TOOL])
    references = [{"type": "item_reference", "id": item.id} for item in first.output]
    referred = ask(client, [history[0], *references, told], tools=[TOOL])
    counts = {one.usage.input_tokens for one in (chained, resent, referred)}
    assert len(counts) == 1, counts


def test_an_input_item_can_be_referred_to(client: openai.OpenAI) -> None:
    first = ask(client, "What is the weather in Oslo?", tools=[TOOL])
    (given,) = client.responses.input_items.list(first.id).data
    again = ask(client, [{"type": "item_reference", "id": given.id}], tools=[TOOL])
    assert again.output[-1].name == "weather"


@pytest.mark.parametrize(
    ("text", "status"), [("Break", "incomplete"), ("Fail", "failed")], ids=["a call cut in two", "a fault"]
)
def test_a_turn_that_broke_off_can_be_followed(client: openai.OpenAI, text: str, status: str) -> None:
    broken = ask(client, text, tools=[TOOL])
    assert broken.status == status
    assert ask(client, "Go on.", previous_response_id=broken.id).output_text == "Yes."


def test_a_call_without_its_output_cannot_be_passed_over(client: openai.OpenAI) -> None:
    first = ask(client, "What is the weather in Oslo?", tools=[TOOL])
    with pytest.raises(openai.BadRequestError, match="No tool output found for function call"):
        ask(client, "Never mind.", previous_response_id=first.id)


def test_what_is_gone_was_never_stored_or_still_runs_cannot_be_followed(client: openai.OpenAI) -> None:
    unstored = ask(client, "Hello", store=False)
    deleted = ask(client, "Hello")
    client.responses.delete(deleted.id)
    running = ask(client, "Forever", background=True)
    child = ask(client, "Hello", previous_response_id=ask(client, "Hello").id)
    client.responses.delete(child.previous_response_id)
    for past, code in (
        (unstored, "previous_response_not_found"),
        (deleted, "previous_response_not_found"),
        (child, "previous_response_not_found"),
        (running, "previous_response_in_progress"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, "And?", previous_response_id=past.id)
        assert (caught.value.code, caught.value.param) == (code, "previous_response_id")
    client.responses.cancel(running.id)


def test_input_tokens_are_those_that_the_turn_would_read(client: openai.OpenAI) -> None:
    first = ask(client, "What is the weather in Oslo?", tools=[TOOL], instructions="Be brief.")
    told: Any = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "Sunny"}
    more: Any = {"previous_response_id": first.id, "tools": [TOOL], "instructions": "Be long."}
    counted = client.responses.input_tokens.count(model="scripted", input=[told], **more)
    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == ask(client, [told], **more).usage.input_tokens
    with pytest.raises(openai.NotFoundError):
        client.responses.input_tokens.count(model="other", input="x")


# Conversations


def test_a_conversation_remembers_its_turns(client: openai.OpenAI) -> None:
    talk = client.conversations.create(metadata={"about": "weather"})
    assert (talk.object, talk.metadata) == ("conversation", {"about": "weather"}) and talk.created_at > 1_700_000_000
    first = ask(client, "What is the weather in Oslo?", conversation=talk.id, tools=[TOOL])
    assert first.conversation.id == talk.id and first.previous_response_id is None
    told: Any = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "Sunny"}
    second = ask(client, [told], conversation={"id": talk.id}, tools=[TOOL])
    third = ask(client, "Where was that?", conversation=talk.id, stream=True)
    assert [event.type for event in third][-1] == "response.completed"
    items = list(client.conversations.items.list(talk.id, order="asc", limit=2))
    kinds = ["message", "reasoning", "function_call", "function_call_output", "message", "message", "message"]
    assert [item.type for item in items] == kinds
    assert [item.id for item in items[1:3]] == [item.id for item in first.output]
    chained = ask(client, "Where was that?", previous_response_id=second.id)
    again = ask(client, "Where was that?", conversation=fork(client, items[:5]))
    assert again.usage.input_tokens == chained.usage.input_tokens, "the same prompt, however it is pointed to"


def fork(client: openai.OpenAI, items: list[Any]) -> str:
    """A new conversation with these items."""
    return client.conversations.create(items=[item.model_dump(exclude_none=True) for item in items]).id


def test_items_of_a_conversation_are_added_read_and_removed(client: openai.OpenAI) -> None:
    talk = client.conversations.create(items=[{"role": "user", "content": "One"}]).id
    more: Any = [{"role": "user", "content": f"More {n}"} for n in range(20)]
    added = client.conversations.items.create(talk, items=more)
    assert len(added.data) == 20 and not added.has_more and added.first_id == added.data[0].id
    items = list(client.conversations.items.list(talk, order="asc"))
    assert len({item.id for item in items}) == 21
    one = client.conversations.items.retrieve(items[3].id or "", conversation_id=talk)
    assert one.to_dict() == items[3].to_dict()
    assert client.conversations.items.delete(items[3].id or "", conversation_id=talk).id == talk
    with pytest.raises(openai.NotFoundError):
        client.conversations.items.retrieve(items[3].id or "", conversation_id=talk)
    referred = ask(client, [{"type": "item_reference", "id": items[0].id}])
    assert [item.content[0].text for item in client.responses.input_items.list(referred.id).data] == ["One"]


def test_a_conversation_is_changed_and_forgotten(client: openai.OpenAI) -> None:
    talk = client.conversations.create()
    assert client.conversations.update(talk.id, metadata={"a": "b"}).metadata == {"a": "b"}
    assert client.conversations.retrieve(talk.id).to_dict() == {**talk.to_dict(), "metadata": {"a": "b"}}
    made = ask(client, "Hello", conversation=talk.id)
    gone = client.conversations.delete(talk.id)
    assert (gone.id, gone.object, gone.deleted) == (talk.id, "conversation.deleted", True)
    for use in (client.conversations.retrieve, client.conversations.delete, client.conversations.items.list):
        with pytest.raises(openai.NotFoundError):
            use(talk.id)
    with pytest.raises(openai.NotFoundError) as caught:
        ask(client, "Hello", conversation=talk.id)
    assert caught.value.param == "conversation"
    assert client.responses.retrieve(made.id).id == made.id


def test_what_went_wrong_or_was_not_to_be_stored_is_not_added(client: openai.OpenAI) -> None:
    talk = client.conversations.create().id
    assert ask(client, "Fail", conversation=talk).status == "failed"
    assert ask(client, "Hello", conversation=talk, store=False).status == "completed"
    running = ask(client, "Forever", conversation=talk, background=True)
    client.responses.cancel(running.id)
    assert list(client.conversations.items.list(talk)) == []
    assert ask(client, "Break", conversation=talk, tools=[TOOL]).status == "incomplete"
    assert [item.type for item in client.conversations.items.list(talk)] == ["message"], "half a call is no item"


def test_a_turn_has_one_past(client: openai.OpenAI) -> None:
    talk, past = client.conversations.create().id, ask(client, "Hello").id
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "Hello", conversation=talk, previous_response_id=past)
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
def test_a_wrong_conversation_is_named(client: openai.OpenAI, body: Any, code: str, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/conversations", body=body, cast_to=object)
    assert (caught.value.code, caught.value.param) == (code, param)


# What was put in


def test_input_items_are_listed_and_paged(client: openai.OpenAI) -> None:
    given: Any = [{"role": "user", "content": f"Number {n}"} for n in range(45)]
    given[3] = {"id": "msg_mine", "type": "message", "role": "user", "content": "Mine"}
    made = ask(client, given)
    rising = [item.id for item in client.responses.input_items.list(made.id, order="asc", limit=7)]
    falling = [item.id for item in client.responses.input_items.list(made.id)]
    assert rising == falling[::-1] and len(set(rising)) == 45 and rising[3] == "msg_mine"
    first = client.responses.input_items.list(made.id, order="asc", limit=1).data[0].model_dump(exclude_none=True)
    assert first == {
        "id": rising[0],
        "type": "message",
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": "Number 0"}],
    }
    page = client.responses.input_items.list(made.id, after=rising[1])
    assert [item.id for item in page.data] == [rising[0]] and not page.has_more


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
def test_a_wrong_page_is_named(served: RunningServer, client: openai.OpenAI, query: str, code: str, param: str) -> None:
    made = ask(client, "Hello")
    url = f"{served.url}/responses/{made.id}/input_items?{query}"
    error = httpx.get(url, headers={"authorization": f"Bearer {KEYS[0]}"}).json()["error"]
    assert (error["code"], error["param"]) == (code, param)


# In the background


def test_a_background_turn_is_there_at_once_and_goes_on_by_itself(client: openai.OpenAI) -> None:
    began = time.monotonic()
    made = ask(client, "Slowly", background=True)
    assert (made.status, made.background, made.output) == ("queued", True, []) and time.monotonic() - began < 0.5
    done = settled(client, made.id)
    assert done.status == "completed" and done.output_text == "One two three."


def test_a_background_stream_goes_on_without_its_reader_and_is_read_on_from_any_number(
    served: RunningServer, client: openai.OpenAI
) -> None:
    seen = []
    with client.responses.create(model="scripted", input="Slowly", background=True, stream=True) as stream:
        for event in stream:
            seen.append(event)
            if event.type == "response.output_text.delta":
                break
    made = seen[0].response.id  # type: ignore[union-attr]
    rest = list(client.responses.retrieve(made, stream=True, starting_after=seen[-1].sequence_number))
    whole = [event.to_dict() for event in (*seen, *rest)]
    check(json.loads(json.dumps(whole)))
    assert [event["type"] for event in whole[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert whole == [event.to_dict() for event in client.responses.retrieve(made, stream=True)]


def test_a_background_turn_is_cancelled_on_demand_only(served: RunningServer, client: openai.OpenAI) -> None:
    made = ask(client, "Forever", background=True)
    ended = client.responses.cancel(made.id)
    assert ended.status == "cancelled" and client.responses.retrieve(made.id).status == "cancelled"
    assert client.responses.cancel(made.id).to_dict() == ended.to_dict(), "once more is no fault"
    foreground = ask(client, "Hello")
    with pytest.raises(openai.BadRequestError, match="Cannot cancel a synchronous response"):
        client.responses.cancel(foreground.id)


def test_a_fault_in_the_background_is_a_failed_response(client: openai.OpenAI) -> None:
    made = settled(client, ask(client, "Fail", background=True).id)
    assert made.status == "failed" and made.error.code == "server_error" and made.output_text == "Oh"


# Deleting, and other people


def test_what_was_deleted_is_gone_and_a_running_turn_with_it(served: RunningServer, client: openai.OpenAI) -> None:
    for made in (ask(client, "Hello"), ask(client, "Forever", background=True)):
        reply = httpx.delete(f"{served.url}/responses/{made.id}", headers={"authorization": f"Bearer {KEYS[0]}"})
        assert reply.status_code == 200
        assert reply.json() == {"id": made.id, "object": "response", "deleted": True}
        for use in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
            with pytest.raises(openai.NotFoundError):
                use(made.id)
    for _ in range(100):
        if served.context.turn_manager.num_running == 0:
            break
        time.sleep(0.02)
    assert served.context.turn_manager.num_running == served.engine.stats().running == 0


def test_another_key_sees_none_of_it(client: openai.OpenAI, other: openai.OpenAI) -> None:
    made = ask(client, "Forever", background=True)
    (item,) = client.responses.input_items.list(made.id).data
    for use in (
        other.responses.retrieve,
        other.responses.cancel,
        other.responses.delete,
        other.responses.input_items.list,
        lambda name: list(other.responses.retrieve(name, stream=True)),
    ):
        with pytest.raises(openai.NotFoundError):
            use(made.id)
    with pytest.raises(openai.BadRequestError) as caught:
        ask(other, "And?", previous_response_id=made.id)
    assert caught.value.code == "previous_response_not_found"
    with pytest.raises(openai.NotFoundError):
        ask(other, [{"type": "item_reference", "id": item.id}])  # type: ignore[arg-type]
    talk = client.conversations.create(items=[{"role": "user", "content": "Secret"}])
    (secret,) = client.conversations.items.list(talk.id).data
    for use in (other.conversations.retrieve, other.conversations.delete, other.conversations.items.list):
        with pytest.raises(openai.NotFoundError):
            use(talk.id)
    for attempt in (
        lambda: other.conversations.update(talk.id, metadata={}),
        lambda: other.conversations.items.create(talk.id, items=[{"role": "user", "content": "Mine"}]),
        lambda: other.conversations.items.retrieve(secret.id or "", conversation_id=talk.id),
        lambda: other.conversations.items.delete(secret.id or "", conversation_id=talk.id),
        lambda: ask(other, "And?", conversation=talk.id),
        lambda: ask(other, [{"type": "item_reference", "id": secret.id}]),  # type: ignore[arg-type]
    ):
        with pytest.raises(openai.NotFoundError):
            attempt()
    assert client.responses.cancel(made.id).status == "cancelled"
