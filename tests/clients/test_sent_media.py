"""Pictures and files from the request to the lists: one blob for each content, of all requests, and its end."""

import base64
import time
from typing import Any

import anthropic
import openai
import pytest

from antiphon.app.turns.media import reading
from tests.app.store.stored_blobs import find_faults
from tests.clients.batch_files import open_client
from tests.clients.sdk_helpers import open_anthropic
from tests.conftest import fresh_server
from tests.serving import RunningServer, on_both_stores, serve

SERVERS = on_both_stores(serve, [{"name": "any", "output": ["Yes."]}], api_keys=("sk-one", "sk-two"))
PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEklEQVR4nGP4z8CAFWEXHbQSACj/P8Fu7N9hAAAAAElFTkSuQmCC"
)
"""A red PNG of 8 × 8 pixels."""
PICTURE_URL = "data:image/png;base64," + base64.b64encode(PICTURE).decode()
INCLUDE: Any = ["message.input_image.image_url"]
IMAGE: Any = {"type": "input_image", "image_url": PICTURE_URL, "detail": "auto"}
MESSAGE: Any = {"role": "user", "content": [{"type": "input_text", "text": "Look"}, IMAGE]}
server = fresh_server


def count(server: RunningServer, table: str = "blobs") -> int:
    reader: Any = server.context.store.debug.reader
    assert not find_faults(reader)
    return int(reader.query_rows(f"SELECT count(*) FROM {table}")[0][0])


def create(client: openai.OpenAI, *messages: Any, **fields: Any) -> Any:
    return client.responses.create(model="scripted", input=list(messages), **fields)


def list_image(client: openai.OpenAI, response_id: str) -> Any:
    """Returns the last part of the last input item."""
    items = client.responses.input_items.list(response_id, include=INCLUDE).data
    return items[0].to_dict(warnings=False)["content"][-1]  # type: ignore[index]


def test_picture_of_50_turns_is_stored_once(server: RunningServer, client: openai.OpenAI) -> None:
    ids = [create(client, MESSAGE).id]
    for _ in range(49):
        ids.append(create(client, MESSAGE, previous_response_id=ids[-1]).id)
    assert (count(server), count(server, "blob_references")) == (1, 50)
    assert list_image(client, ids[-1])["image_url"] == PICTURE_URL
    for response_id in ids:
        client.responses.delete(response_id)
    assert (count(server), count(server, "blob_pieces"), count(server, "blob_references")) == (0, 0, 0)
    with pytest.raises(openai.NotFoundError):
        client.responses.input_items.list(ids[0])


def test_every_kind_of_request_shares_the_blob(server: RunningServer, client: openai.OpenAI) -> None:
    response = create(client, MESSAGE)
    output = [{"type": "input_text", "text": "shot"}, IMAGE]
    calls: Any = [
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": output},
    ]
    called = create(client, *calls)
    part = {"type": "image_url", "image_url": {"url": PICTURE_URL}}
    chat: Any = client.chat.completions.create(
        model="scripted",
        store=True,
        messages=[{"role": "user", "content": [part]}],  # type: ignore[list-item, misc]
    )
    conversation = client.conversations.create(items=[MESSAGE])
    assert count(server) == 1
    listed: Any = client.responses.input_items.list(called.id, include=INCLUDE).data[0].to_dict(warnings=False)
    assert listed["output"][1]["image_url"] == PICTURE_URL
    messages: Any = client.chat.completions.messages.list(chat.id).data[0].to_dict(warnings=False)
    assert messages["content_parts"] == [part]
    turn = client.responses.create(model="scripted", input="And now?", conversation=conversation.id)
    client.conversations.delete(conversation.id)
    client.responses.delete(response.id)
    client.chat.completions.delete(chat.id)
    client.responses.delete(turn.id)
    assert count(server) == 1
    client.responses.delete(called.id)
    assert count(server) == 0


def test_request_that_is_not_stored_writes_nothing(server: RunningServer, client: openai.OpenAI) -> None:
    create(client, MESSAGE, store=False)
    client.chat.completions.create(
        model="scripted",
        messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PICTURE_URL}}]}],
    )
    assert count(server) == 0


def test_keys_share_no_blob(server: RunningServer, client: openai.OpenAI) -> None:
    ours = create(client, MESSAGE)
    with open_client(server, "sk-two") as other:
        theirs = create(other, MESSAGE)
        assert count(server) == 2
        client.responses.delete(ours.id)
        assert list_image(other, theirs.id)["image_url"] == PICTURE_URL


@pytest.mark.parametrize("kind", ["input_image", "input_file"])
def test_file_of_one_api_is_used_in_the_other(server: RunningServer, client: openai.OpenAI, kind: str) -> None:
    name, content = ("a.png", PICTURE) if kind == "input_image" else ("a.txt", b"Some text.")
    with open_anthropic(server, "sk-one") as anthropic_client:
        file = anthropic_client.files.upload(file=(name, content))
        responses = []
        for file_id in (file.id, file.id.replace("_", "-")):
            responses.append(create(client, {"role": "user", "content": [{"type": kind, "file_id": file_id}]}))
            listed = list_image(client, responses[-1].id)
            assert (listed["type"], listed["file_id"], listed.get("image_url"), listed.get("file_data")) == (
                kind, file_id, None, None
            )  # fmt: skip
        source: Any = {"type": "file", "file_id": file.id.replace("_", "-")}
        block: Any = {"type": "image" if kind == "input_image" else "document", "source": source}
        anthropic_client.messages.create(
            model="scripted", max_tokens=9, messages=[{"role": "user", "content": [block]}]
        )
        anthropic_client.files.delete(file.id)
        if kind == "input_image":
            return  # a model that sees no pictures reads no file of one
        for attempt in (
            lambda: create(client, {"role": "user", "content": [{"type": kind, "file_id": file.id}]}),
            lambda: create(client, {"role": "user", "content": [{"type": kind, "file_id": "file-none"}]}),
        ):
            with pytest.raises(openai.BadRequestError, match="was not found"):
                attempt()
        with pytest.raises(anthropic.BadRequestError, match="was not found"):
            anthropic_client.messages.create(
                model="scripted", max_tokens=9, messages=[{"role": "user", "content": [block]}]
            )
    again = create(client, {"role": "user", "content": "And?"}, previous_response_id=responses[-1].id)
    assert again.status == "completed", "a response keeps the content of a deleted file"


def test_file_that_expires_between_two_turns(
    server: RunningServer, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = client.files.create(
        file=("a.txt", b"Some text."), purpose="user_data", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    message = {"role": "user", "content": [{"type": "input_file", "file_id": file.id}]}
    first = create(client, message)
    now = time.time
    monkeypatch.setattr(reading.time, "time", lambda: now() + 3601)
    with pytest.raises(openai.BadRequestError, match="was not found"):
        create(client, message)
    assert create(client, {"role": "user", "content": "And?"}, previous_response_id=first.id).status == "completed"


def test_file_of_another_key_is_not_found(server: RunningServer, client: openai.OpenAI) -> None:
    file = client.files.create(file=("a.txt", b"Some text."), purpose="user_data")
    upload = client.uploads.create(bytes=3, filename="a", mime_type="text/plain", purpose="user_data")
    part = client.uploads.parts.create(upload.id, data=b"abc")
    with open_client(server, "sk-two") as other:
        for used_by, file_id in ((other, file.id), (client, part.id), (client, upload.id)):
            with pytest.raises(openai.BadRequestError, match="was not found") as refused:
                create(used_by, {"role": "user", "content": [{"type": "input_file", "file_id": file_id}]})
            assert refused.value.code == "file_not_found"


def test_file_that_is_too_large_for_a_request_is_refused(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_NAMED_FILE_BYTES", 9)
    file = client.files.create(file=("a.txt", b"Some text."), purpose="user_data")
    with pytest.raises(openai.BadRequestError, match="has 10 bytes; at most 9 are read"):
        create(client, {"role": "user", "content": [{"type": "input_file", "file_id": file.id}]})


def test_compacted_conversation_comes_back_with_its_pictures(server: RunningServer, client: openai.OpenAI) -> None:
    data = "data:text/plain;base64," + base64.b64encode(b"Some text.").decode()
    message: Any = {"role": "user", "content": [IMAGE, {"type": "input_file", "file_data": data, "filename": "a.txt"}]}
    stored = create(client, MESSAGE)
    compacted = client.responses.compact(model="scripted", input=[message], previous_response_id=stored.id)
    first, second = (item.to_dict(warnings=False)["content"] for item in compacted.output[:2])
    assert first[1]["image_url"] == second[0]["image_url"] == PICTURE_URL  # type: ignore[index]
    assert second[1]["file_data"] == data  # type: ignore[index]
    sent: Any = [item.to_dict(warnings=False) for item in compacted.output]
    assert create(client, *sent, {"role": "user", "content": "And?"}).status == "completed"


def test_turn_continues_in_another_server(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The next server of a store reads the pictures of earlier turns."""
    path = tmp_path_factory.mktemp("store") / "responses.db"
    with SERVERS["memory"](store_file=path) as first, open_client(first, "sk-one") as client:
        response = create(client, MESSAGE)
    with SERVERS["memory"](store_file=path) as second, open_client(second, "sk-one") as client:
        assert list_image(client, response.id)["image_url"] == PICTURE_URL
        again = create(client, {"role": "user", "content": "And?"}, previous_response_id=response.id)
        assert again.status == "completed" and count(second) == 1
