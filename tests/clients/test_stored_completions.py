"""Stored chat completions through the openai SDK: create, list, retrieve, update, delete, messages; owners and restarts."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.resources.chat.completions import Completions, Messages

from tests.app.server_helpers import wait_until
from tests.clients.batch_files import open_client
from tests.conftest import StartServer
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, on_both_stores, scripted_registry, serve

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
SCRIPT: list[dict[str, Any]] = [
    {"name": "call", "when": ["weather in Oslo"], "output": ["<think>\nAsk.\n</think>\n\n", CALL]},
    {"name": "fault", "when": ["Fail"], "output": ["Oh", {"fault": "broken", "code": "server_error"}]},
    {"name": "endless", "when": ["Forever"], "output": ["On and on", {"stall": True}]},
    {"name": "stop", "when": ["Say it"], "output": ["Yes, it is", " so. END of it."], "tokens_per_chunk": 3},
    {"name": "any", "output": ["Yes."]},
]
KEYS = ("sk-one", "sk-two")
FUNCTION: Any = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
USER: Any = {"role": "user", "content": "Hi"}
UNKNOWN_ID = "chatcmpl-0000000000000000"
SERVERS = on_both_stores(serve, partial(scripted_registry, SCRIPT, names=("scripted", "alias")), api_keys=KEYS)


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    """A client with an API key that owns no completion yet when a test starts."""
    with open_client(server, KEYS[0]) as client:
        for completion in client.chat.completions.list(limit=100):
            client.chat.completions.delete(completion.id)
        yield client


@pytest.fixture
def other_client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with open_client(server, KEYS[1]) as client:
        yield client


def create(client: openai.OpenAI, text: str = "Hi", **fields: Any) -> Any:
    """Creates a completion that is stored, unless `fields` say otherwise."""
    message = {"role": "user", "content": text}
    return client.chat.completions.create(**{"model": "scripted", "messages": [message], "store": True, **fields})


def error_of(reply: httpx.Response) -> tuple[int, str | None, str]:
    error = reply.json()["error"]
    return reply.status_code, error["param"], error["message"]


def test_every_method_of_stored_completions_works(client: openai.OpenAI) -> None:
    methods = {name for name in dir(Completions) if not name.startswith(("_", "with_"))}
    assert methods == {"create", "parse", "stream", "retrieve", "update", "list", "delete", "messages"}
    assert {name for name in dir(Messages) if not name.startswith(("_", "with_"))} == {"list"}
    resource = client.chat.completions
    made = create(client, metadata={"a": "1"})
    found = resource.retrieve(made.id)
    assert found.object == "chat.completion"
    assert found.metadata == {"a": "1"}
    assert (found.id, found.created, found.model) == (made.id, made.created, made.model)
    assert (found.choices, found.usage) == (made.choices, made.usage)
    assert [completion.id for completion in resource.list()] == [made.id]
    updated = resource.update(made.id, metadata={"b": "2"})
    assert updated.metadata == {"b": "2"} and updated.choices == made.choices
    assert resource.retrieve(made.id) == updated == resource.list().data[0]
    assert resource.update(made.id, metadata=None).metadata == {}
    (message,) = resource.messages.list(made.id).data
    assert (message.role, message.content, message.content_parts) == ("user", "Hi", None)
    deleted = resource.delete(made.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (made.id, "chat.completion.deleted", True)
    assert resource.list().data == []
    for attempt in (
        lambda: resource.retrieve(made.id),
        lambda: resource.update(made.id, metadata={}),
        lambda: resource.messages.list(made.id),
        lambda: resource.delete(made.id),
    ):
        with pytest.raises(openai.NotFoundError, match=f"Chat completion with id '{made.id}' not found"):
            attempt()


@pytest.mark.parametrize("store", [None, False, openai.omit])
def test_completion_is_stored_only_on_request(store: Any, client: openai.OpenAI) -> None:
    made = create(client, store=store)
    assert client.chat.completions.list().data == []
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.retrieve(made.id)


@pytest.mark.parametrize("n", [1, 3])
def test_streamed_completion_is_stored_like_a_complete_one(n: int, client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="scripted",
        messages=[{"role": "user", "content": "What is the weather in Oslo?"}],
        tools=[{"type": "function", "function": FUNCTION}],
        store=True,
        n=n,
        stream_options={"include_usage": True},
    ) as stream:
        streamed = stream.get_final_completion()
    found = client.chat.completions.retrieve(streamed.id)
    assert found.usage == streamed.usage and len(found.choices) == n
    for index, (stored, sent) in enumerate(zip(found.choices, streamed.choices, strict=True)):
        assert (stored.index, stored.finish_reason) == (index, "tool_calls") == (sent.index, sent.finish_reason)
        calls: list[Any] = stored.message.tool_calls or []
        assert [call.function.arguments for call in calls] == ['{"city": "Oslo"}']
        assert [call.id for call in calls] == [call.id for call in sent.message.tool_calls or ()]
        assert stored.message.reasoning_content == "Ask."  # type: ignore[attr-defined]
    call_ids = {call.id for choice in found.choices for call in choice.message.tool_calls or ()}
    assert len(call_ids) == n, "each choice is its own"


def test_all_choices_are_kept_and_deleted_together(client: openai.OpenAI) -> None:
    made = create(client, n=3, logprobs=True)
    found = client.chat.completions.retrieve(made.id)
    assert found.choices == made.choices and [choice.index for choice in found.choices] == [0, 1, 2]
    assert found.choices[0].logprobs is not None and found.usage == made.usage
    assert len(client.chat.completions.list().data) == 1, "the choices are one completion"
    client.chat.completions.delete(made.id)
    assert client.chat.completions.list().data == []


def test_deprecated_function_call_is_read_back_in_its_form(client: openai.OpenAI) -> None:
    made = create(client, "What is the weather in Oslo?", functions=[FUNCTION])
    found = client.chat.completions.retrieve(made.id)
    assert found.choices == made.choices and found.choices[0].message.function_call is not None


@pytest.mark.parametrize(
    "fields",
    [
        {"stop": "END"},
        {"stop": "END", "include_stop_str_in_output": True},
        {"stop_token_ids": [ord("s")]},
        {"return_token_ids": True},
        {"prompt_logprobs": 2},
        {"logprobs": True, "top_logprobs": 2, "return_tokens_as_token_ids": True},
        {"best_of": 3, "n": 2},
        {"echo": True, "messages": [USER, {"role": "assistant", "content": "No. "}], "continue_final_message": True},
    ],
)
def test_fields_of_other_servers_are_read_back_as_they_were_sent(
    fields: dict[str, Any], tmp_path: Path, start_server: StartServer
) -> None:
    path = tmp_path / "responses.db"
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Say it"}], "store": True, **fields}
    with serve(SCRIPT, store_file=path) as first:
        made = httpx.post(f"{first.url}/chat/completions", json=body, timeout=HANG_TIMEOUT_S).json()
        assert made.items() <= httpx.get(f"{first.url}/chat/completions/{made['id']}").json().items()
    found = httpx.get(f"{start_server(SCRIPT, store_file=path).url}/chat/completions/{made['id']}").json()
    assert {key: found[key] for key in made} == made


# Lists


def test_list_is_filtered_by_model_and_metadata(client: openai.OpenAI) -> None:
    one = create(client, metadata={"a": "1", "b": "2"}).id
    two = create(client, metadata={"a": "1", 'quoted"key': "x"}, model="alias").id
    three = create(client).id

    def listed(**filters: Any) -> list[str]:
        return [completion.id for completion in client.chat.completions.list(**filters)]

    assert listed() == [one, two, three] == listed(order="asc") == listed(order="desc")[::-1]
    assert listed(model="alias") == [two] and listed(model="other") == []
    assert listed(metadata={"a": "1"}) == [one, two] and listed(metadata={"a": "1", "b": "2"}) == [one]
    assert listed(metadata={"a": "2"}) == listed(metadata={"c": "1"}) == []
    assert listed(metadata={'quoted"key': "x"}, model="alias") == [two]
    client.chat.completions.update(three, metadata={"a": "1"})
    assert listed(metadata={"a": "1"}, order="desc") == [three, two, one], "updated metadata is searched"


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_join_to_the_whole_list(order: Any, client: openai.OpenAI) -> None:
    made = [create(client).id for _ in range(5)]
    expected = made if order == "asc" else made[::-1]
    page = client.chat.completions.list(limit=2, order=order)
    assert [completion.id for completion in page.data] == expected[:2] and page.has_more
    assert [completion.id for completion in page] == expected, "the SDK follows all pages"
    last = client.chat.completions.list(limit=2, order=order, after=expected[2])
    assert [completion.id for completion in last.data] == expected[3:] and last.has_more is False


def test_failed_and_running_completions_are_not_listed(client: openai.OpenAI, server: RunningServer) -> None:
    with pytest.raises(openai.InternalServerError):
        create(client, "Fail")
    made = [create(client).id for _ in range(3)]
    with create(client, "Forever", stream=True) as stream:
        chunk = next(iter(stream))
        assert [completion.id for completion in client.chat.completions.list(limit=2)] == made
        for attempt in (client.chat.completions.retrieve, client.chat.completions.delete):
            with pytest.raises(openai.NotFoundError):
                attempt(chunk.id)
    wait_until(20, lambda: len(client.chat.completions.list().data) > len(made))
    left = client.chat.completions.retrieve(chunk.id).choices[0]
    assert (left.message.content, left.finish_reason) == ("On and on", "length"), "its client has left"


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=two", "limit"),
        ("order=up", "order"),
        (f"after={UNKNOWN_ID}", "after"),
        ("after=resp_1", "after"),
    ],
)
def test_bad_parameter_of_a_list_is_named(query: str, param: str, client: openai.OpenAI, server: RunningServer) -> None:
    made = create(client).id
    headers = {"authorization": f"Bearer {KEYS[0]}"}
    for path in ("", f"/{made}/messages"):
        reply = httpx.get(f"{server.url}/chat/completions{path}?{query}", headers=headers)
        assert error_of(reply)[:2] == (400, param), path


def test_bad_update_is_refused(client: openai.OpenAI, server: RunningServer) -> None:
    made = create(client, metadata={"a": "1"})
    url, headers = f"{server.url}/chat/completions/{made.id}", {"authorization": f"Bearer {KEYS[0]}"}
    for body, param in (
        ({}, "metadata"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": "a"}, "metadata"),
        ({"metadata": {}, "model": "other"}, "model"),
    ):
        assert error_of(httpx.post(url, json=body, headers=headers))[:2] == (400, param), body
    assert client.chat.completions.retrieve(made.id).metadata == {"a": "1"}


# Messages


def test_messages_come_back_as_they_were_sent(client: openai.OpenAI) -> None:
    parts = [
        {"type": "text", "text": "Look"},
        {"type": "image_url", "image_url": {"url": "https://me:secret@example.com/a.png", "detail": "low"}},
        {"type": "file", "file": {"filename": "a.txt", "file_data": "data:text/plain;base64,YWxwaGE="}},
    ]
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    sent: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": parts, "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "Sunny", "tool_call_id": "call_1"},
        {"role": "user", "content": "And?", "password": "secret"},
    ]
    made = create(client, messages=sent)
    page = client.chat.completions.messages.list(made.id)
    system, user, assistant, tool, last = page.data
    assert [message.id for message in page.data] == [f"{made.id}-{index}" for index in range(5)]
    assert [message.role for message in page.data] == [message["role"] for message in sent]
    assert (system.content, system.content_parts, tool.content) == ("Be brief.", None, "Sunny")
    assert tool.tool_call_id == "call_1" and user.name == "ann"  # type: ignore[attr-defined]
    assert user.content is None and [part.type for part in user.content_parts or ()] == ["text", "image_url", "file"]
    assert user.content_parts[1].image_url.model_dump() == {"url": "https://example.com/a.png", "detail": "low"}  # type: ignore[index, union-attr]  # fmt: skip
    assert assistant.content is None and [item.model_dump() for item in assistant.tool_calls or ()] == [call]
    raw = client.chat.completions.messages.with_raw_response.list(made.id).text
    assert last.content == "And?" and "data:text/plain;base64,YWxwaGE=" in raw and "secret" not in raw


def test_messages_are_paged(client: openai.OpenAI) -> None:
    made = create(client, messages=[{"role": "user", "content": str(number)} for number in range(5)])
    list_messages = client.chat.completions.messages.list
    assert [message.content for message in list_messages(made.id, limit=2)] == ["0", "1", "2", "3", "4"]
    page = list_messages(made.id, limit=2, order="desc", after=f"{made.id}-3")
    assert [message.content for message in page.data] == ["2", "1"] and page.has_more


# Owners, kinds and restarts


def test_completion_belongs_to_its_api_key(client: openai.OpenAI, other_client: openai.OpenAI) -> None:
    made = create(client)
    other = other_client.chat.completions
    assert all(completion.id != made.id for completion in other.list())
    for attempt in (
        lambda: other.retrieve(made.id),
        lambda: other.update(made.id, metadata={"a": "1"}),
        lambda: other.delete(made.id),
        lambda: other.messages.list(made.id),
    ):
        with pytest.raises(openai.NotFoundError):
            attempt()
    with pytest.raises(openai.BadRequestError, match="after"):
        other.list(after=made.id)
    assert client.chat.completions.retrieve(made.id).metadata == {}


def test_completions_and_responses_are_apart(client: openai.OpenAI) -> None:
    response = client.responses.create(model="scripted", input="Hi")
    made = create(client)
    suffix, chat_suffix = response.id.partition("_")[2], made.id.partition("-")[2]
    for completion_id in (response.id, f"chatcmpl-{suffix}", f"resp_{chat_suffix}", f"chatcmpl_{chat_suffix}"):
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.retrieve(completion_id)
    for response_id in (made.id, f"resp_{chat_suffix}", f"chatcmpl_{chat_suffix}"):
        for attempt in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
            with pytest.raises(openai.NotFoundError):
                attempt(response_id)
        with pytest.raises(openai.BadRequestError):
            client.responses.create(model="scripted", input="Hi", previous_response_id=response_id)
    assert [completion.id for completion in client.chat.completions.list()] == [made.id]


def test_stored_completions_survive_a_restart(tmp_path: Path, start_server: StartServer) -> None:
    path = tmp_path / "responses.db"
    with serve(SCRIPT, store_file=path) as first, open_client(first) as client:
        made = create(client, n=2, metadata={"a": "1"})
        gone = create(client)
        client.chat.completions.update(made.id, metadata={"a": "2"})
        client.chat.completions.delete(gone.id)
        before = client.chat.completions.retrieve(made.id)
    with open_client(start_server(SCRIPT, store_file=path)) as client:
        assert client.chat.completions.list(metadata={"a": "2"}).data == [before]
        assert client.chat.completions.retrieve(made.id) == before
        assert [message.content for message in client.chat.completions.messages.list(made.id)] == ["Hi"]
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.retrieve(gone.id)
