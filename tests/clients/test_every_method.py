"""Every method of `client.responses` and `client.conversations`, in Python and in Node, errors included."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.resources.conversations import Conversations
from openai.resources.conversations.items import Items
from openai.resources.responses import InputItems, InputTokens, Responses
from pydantic import BaseModel

from tests.clients.test_node_sdk import FOLDER, node
from tests.serving import RunningServer, scripted_registry, serve

__all__ = ["node"]

KEY = "sk-one"
NOBODY = "resp_0000000000000000"
SCRIPT: list[dict[str, Any]] = [
    {"name": "json", "when": ["A city"], "output": ['{"city": "Oslo"}']},
    {"name": "endless", "when": ["Forever"], "output": ["On and on", {"stall": True}]},
    {"name": "summary", "when": ["about to be cut short"], "output": ["They said hello."]},
    {"name": "any", "output": ["Hello."]},
]


class City(BaseModel):
    city: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with serve(
        scripted_registry(SCRIPT), api_keys=(KEY,), store_file=tmp_path_factory.mktemp("store") / "r.db"
    ) as running:
        yield running


@pytest.fixture
def client(served: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served.url, api_key=KEY, max_retries=0, timeout=20) as opened:
        yield opened


def methods(resource: type) -> set[str]:
    return {name for name in dir(resource) if not name.startswith(("_", "with_"))}


def test_no_method_is_new() -> None:
    """What is used below is all there is."""
    assert methods(Responses) == set("create parse stream retrieve delete cancel compact connect input_items input_tokens".split())  # fmt: skip
    assert methods(InputItems) == {"list"} and methods(InputTokens) == {"count"}
    assert methods(Conversations) == {"create", "retrieve", "update", "delete", "items"}
    assert methods(Items) == {"create", "retrieve", "list", "delete"}


def test_every_method_of_responses(client: openai.OpenAI) -> None:
    use = client.responses
    made = use.create(model="scripted", input="Hi")
    assert made.output_text == "Hello." and use.retrieve(made.id) == made
    assert use.parse(model="scripted", input="A city", text_format=City).output_parsed == City(city="Oslo")
    with use.stream(model="scripted", input="Hi") as stream:
        assert stream.get_final_response().output_text == "Hello."
    with use.stream(response_id=made.id) as stream:
        assert stream.get_final_response().output_text == "Hello."
    assert [event.type for event in use.retrieve(made.id, stream=True, starting_after=3)][-1] == "response.completed"
    assert [item.type for item in use.input_items.list(made.id, order="asc", limit=5)] == ["message"]
    assert use.input_tokens.count(model="scripted", input="Hi").input_tokens == made.usage.input_tokens  # type: ignore[union-attr]
    assert use.compact(model="scripted", input="Hi").object == "response.compaction"
    running = use.create(model="scripted", input="Forever", background=True)
    assert use.cancel(running.id).status == "cancelled" == use.retrieve(running.id).status
    use.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        use.retrieve(made.id)


def test_every_error_of_responses(client: openai.OpenAI) -> None:
    use = client.responses
    for attempt in (
        lambda: use.retrieve(NOBODY),
        lambda: use.delete(NOBODY),
        lambda: use.cancel(NOBODY),
        lambda: list(use.retrieve(NOBODY, stream=True)),
        lambda: use.input_items.list(NOBODY),
        lambda: use.create(model="nobody", input="x"),
        lambda: use.compact(model="nobody", input="x"),
        lambda: use.input_tokens.count(model="nobody", input="x"),
    ):
        with pytest.raises(openai.NotFoundError):
            attempt()  # type: ignore[no-untyped-call]
    made = use.create(model="scripted", input="Hi")
    for attempt in (
        lambda: use.create(model="scripted", input="x", temperature=9),
        lambda: use.create(model="scripted", previous_response_id=NOBODY),
        lambda: use.compact(model="scripted", previous_response_id=NOBODY),
        lambda: use.input_tokens.count(model="scripted", input=[]),
        lambda: use.cancel(made.id),
        lambda: use.retrieve(made.id, stream=True, starting_after=-7),
        lambda: use.input_items.list(made.id, limit=1000),
        lambda: use.parse(model="scripted", input="x", text_format=City, temperature=9),
    ):
        with pytest.raises(openai.BadRequestError):
            attempt()  # type: ignore[no-untyped-call]
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="sk-wrong").responses.retrieve(made.id)


def test_every_method_of_conversations(client: openai.OpenAI) -> None:
    use = client.conversations
    made = use.create(metadata={"a": "b"}, items=[{"role": "user", "content": "Hi"}])
    assert use.retrieve(made.id) == made
    assert use.update(made.id, metadata={"c": "d"}).metadata == {"c": "d"}
    added = use.items.create(made.id, items=[{"role": "user", "content": "More"}])
    listed = list(use.items.list(made.id, order="asc"))
    assert len(listed) == 2 and listed[1].id == added.data[0].id
    assert use.items.retrieve(str(added.data[0].id), conversation_id=made.id) == added.data[0]
    assert client.responses.create(model="scripted", input="Go on", conversation=made.id).conversation.id == made.id  # type: ignore[union-attr]
    assert len(list(use.items.list(made.id))) == 4
    assert use.items.delete(str(added.data[0].id), conversation_id=made.id).id == made.id
    assert use.delete(made.id).deleted
    for attempt in (
        lambda: use.retrieve(made.id),
        lambda: use.update(made.id, metadata={}),
        lambda: use.delete(made.id),
        lambda: use.items.list(made.id),
        lambda: use.items.create(made.id, items=[{"role": "user", "content": "x"}]),
        lambda: use.items.retrieve("msg_1", conversation_id=made.id),
        lambda: use.items.delete("msg_1", conversation_id=made.id),
    ):
        with pytest.raises(openai.NotFoundError):
            attempt()  # type: ignore[no-untyped-call]
    with pytest.raises(openai.BadRequestError):
        use.create(metadata={"x": "y" * 600})


@pytest.fixture(scope="module")
def heard(node: Path, served: RunningServer) -> dict[str, Any]:
    script = shutil.copy(Path(__file__).with_name("methods.mjs"), FOLDER)
    done = subprocess.run([node, script, served.url, KEY], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_method_in_node(heard: dict[str, Any]) -> None:
    assert heard["methods"] == {
        "responses": ["cancel", "compact", "create", "delete", "parse", "retrieve", "stream"],
        "inputItems": ["list"],
        "inputTokens": ["count"],
        "conversations": ["create", "delete", "retrieve", "update"],
        "items": ["create", "delete", "list", "retrieve"],
    }, "what the script uses is all there is"
    failed = {name: said for name, said in heard["worked"].items() if said is not True}
    assert not failed and len(heard["worked"]) > 15


def test_every_error_in_node(heard: dict[str, Any]) -> None:
    wrong = {name: said for name, said in heard["raised"].items() if said["kind"] != name.partition(" ")[0]}
    assert not wrong and len(heard["raised"]) > 15
