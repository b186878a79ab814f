"""Every method of `client.responses` and `client.conversations`, and its errors, in the SDKs for Python and Node.

In Node also those of stored chat completions; `test_stored_completions.py` has them in Python.
"""

from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.resources.conversations import Conversations
from openai.resources.conversations.items import Items
from openai.resources.responses import InputItems, InputTokens, Responses
from pydantic import BaseModel

from tests.clients.node_install import run_node_script
from tests.serving import RunningServer, serve

KEY = "sk-one"
UNKNOWN_ID = "resp_0000000000000000"
SCRIPT: list[dict[str, Any]] = [
    {"name": "json", "when": ["A city"], "output": ['{"city": "Oslo"}']},
    {"name": "endless", "when": ["Forever"], "output": ["On and on", {"stall": True}]},
    {"name": "summary", "when": ["about to be cut short"], "output": ["They said hello."]},
    {"name": "any", "output": ["Hello."]},
]


class City(BaseModel):
    city: str


SERVER = partial(serve, SCRIPT, api_keys=(KEY,), file_store=True)


def list_methods(resource: type) -> set[str]:
    return {name for name in dir(resource) if not name.startswith(("_", "with_"))}


def test_sdk_has_no_untested_method() -> None:
    """The tests below use every method that the SDK has."""
    assert list_methods(Responses) == set("create parse stream retrieve delete cancel compact connect input_items input_tokens".split())  # fmt: skip
    assert list_methods(InputItems) == {"list"} and list_methods(InputTokens) == {"count"}
    assert list_methods(Conversations) == {"create", "retrieve", "update", "delete", "items"}
    assert list_methods(Items) == {"create", "retrieve", "list", "delete"}


def test_every_method_of_responses_works(client: openai.OpenAI) -> None:
    resource = client.responses
    response = resource.create(model="scripted", input="Hi")
    assert response.output_text == "Hello." and resource.retrieve(response.id) == response
    assert resource.parse(model="scripted", input="A city", text_format=City).output_parsed == City(city="Oslo")
    with resource.stream(model="scripted", input="Hi") as stream:
        assert stream.get_final_response().output_text == "Hello."
    with resource.stream(response_id=response.id) as stream:
        assert stream.get_final_response().output_text == "Hello."
    event_types = [event.type for event in resource.retrieve(response.id, stream=True, starting_after=3)]
    assert event_types[-1] == "response.completed"
    assert [item.type for item in resource.input_items.list(response.id, order="asc", limit=5)] == ["message"]
    assert resource.input_tokens.count(model="scripted", input="Hi").input_tokens == response.usage.input_tokens  # type: ignore[union-attr]
    assert resource.compact(model="scripted", input="Hi").object == "response.compaction"
    running = resource.create(model="scripted", input="Forever", background=True)
    assert resource.cancel(running.id).status == "cancelled" == resource.retrieve(running.id).status
    resource.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        resource.retrieve(response.id)


def test_every_method_of_responses_raises_documented_errors(client: openai.OpenAI) -> None:
    resource = client.responses
    for attempt in (
        lambda: resource.retrieve(UNKNOWN_ID),
        lambda: resource.delete(UNKNOWN_ID),
        lambda: resource.cancel(UNKNOWN_ID),
        lambda: list(resource.retrieve(UNKNOWN_ID, stream=True)),
        lambda: resource.input_items.list(UNKNOWN_ID),
        lambda: resource.create(model="nobody", input="x"),
        lambda: resource.compact(model="nobody", input="x"),
        lambda: resource.input_tokens.count(model="nobody", input="x"),
    ):
        with pytest.raises(openai.NotFoundError):
            attempt()  # type: ignore[no-untyped-call]
    response = resource.create(model="scripted", input="Hi")
    for attempt in (
        lambda: resource.create(model="scripted", input="x", temperature=9),
        lambda: resource.create(model="scripted", previous_response_id=UNKNOWN_ID),
        lambda: resource.compact(model="scripted", previous_response_id=UNKNOWN_ID),
        lambda: resource.input_tokens.count(model="scripted", input=[]),
        lambda: resource.cancel(response.id),
        lambda: resource.retrieve(response.id, stream=True, starting_after=-7),
        lambda: resource.input_items.list(response.id, limit=1000),
        lambda: resource.parse(model="scripted", input="x", text_format=City, temperature=9),
    ):
        with pytest.raises(openai.BadRequestError):
            attempt()  # type: ignore[no-untyped-call]
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="sk-wrong").responses.retrieve(response.id)


def test_every_method_of_conversations_works(client: openai.OpenAI) -> None:
    resource = client.conversations
    conversation = resource.create(metadata={"a": "b"}, items=[{"role": "user", "content": "Hi"}])
    assert resource.retrieve(conversation.id) == conversation
    assert resource.update(conversation.id, metadata={"c": "d"}).metadata == {"c": "d"}
    added = resource.items.create(conversation.id, items=[{"role": "user", "content": "More"}])
    listed = list(resource.items.list(conversation.id, order="asc"))
    assert len(listed) == 2 and listed[1].id == added.data[0].id
    assert resource.items.retrieve(str(added.data[0].id), conversation_id=conversation.id) == added.data[0]
    response = client.responses.create(model="scripted", input="Go on", conversation=conversation.id)
    assert response.conversation.id == conversation.id  # type: ignore[union-attr]
    assert len(list(resource.items.list(conversation.id))) == 4
    assert resource.items.delete(str(added.data[0].id), conversation_id=conversation.id).id == conversation.id
    assert resource.delete(conversation.id).deleted
    for attempt in (
        lambda: resource.retrieve(conversation.id),
        lambda: resource.update(conversation.id, metadata={}),
        lambda: resource.delete(conversation.id),
        lambda: resource.items.list(conversation.id),
        lambda: resource.items.create(conversation.id, items=[{"role": "user", "content": "x"}]),
        lambda: resource.items.retrieve("msg_1", conversation_id=conversation.id),
        lambda: resource.items.delete("msg_1", conversation_id=conversation.id),
    ):
        with pytest.raises(openai.NotFoundError):
            attempt()  # type: ignore[no-untyped-call]
    with pytest.raises(openai.BadRequestError):
        resource.create(metadata={"x": "y" * 600})


@pytest.fixture(scope="module")
def node_results(node: Path, server: RunningServer) -> dict[str, Any]:
    return run_node_script(node, "methods.mjs", server.url, KEY)


def test_every_method_works_in_node(node_results: dict[str, Any]) -> None:
    assert node_results["methods"] == {
        "responses": ["cancel", "compact", "create", "delete", "parse", "retrieve", "stream"],
        "inputItems": ["list"],
        "inputTokens": ["count"],
        "conversations": ["create", "delete", "retrieve", "update"],
        "items": ["create", "delete", "list", "retrieve"],
        "completions": ["create", "delete", "list", "parse", "retrieve", "runTools", "stream", "update"],
        "messages": ["list"],
    }, "the script uses every method"
    failed = {name: result for name, result in node_results["worked"].items() if result is not True}
    assert not failed and len(node_results["worked"]) > 15


def test_every_method_raises_documented_errors_in_node(node_results: dict[str, Any]) -> None:
    mismatches = {
        name: result for name, result in node_results["raised"].items() if result["kind"] != name.partition(" ")[0]
    }
    assert not mismatches and len(node_results["raised"]) > 15
