"""What is deleted while the body of another request arrives stays deleted, and that request is a 404."""

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from antiphon.app.routes import conversations, stored_chat
from antiphon.app.store.conversation_tables import ConversationTables
from antiphon.app.store.database import Database
from tests.serving import RunningServer, on_both_stores, serve

ITEM = {"type": "message", "role": "user", "content": "hi"}
Read = Callable[..., Awaitable[Any]]
SERVERS = on_both_stores(serve, [{"name": "any", "output": ["Yes."]}])


def delete_after(server: RunningServer, read: Read, delete: Callable[[Database], object]) -> Read:
    """Returns a function that reads a body, during which another client deletes what the request changes."""

    async def read_and_delete(*values: Any) -> Any:
        body = await read(*values)
        await server.context.store.change(delete)
        return body

    return read_and_delete


def create_conversation(server: RunningServer) -> str:
    return str(httpx.post(f"{server.url}/conversations", json={"items": [ITEM]}).json()["id"])


@pytest.mark.parametrize(("suffix", "body"), [("", {"metadata": {"a": "b"}}), ("/items", {"items": [ITEM]})])
def test_deleted_conversation_does_not_come_back(
    server: RunningServer, suffix: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation_id = create_conversation(server)
    url = f"{server.url}/conversations/{conversation_id}"

    def delete(database: Database) -> None:
        database.conversations.delete_conversation("", conversation_id)

    with monkeypatch.context() as patch:
        patch.setattr(conversations, "_read_body", delete_after(server, conversations._read_body, delete))
        reply = httpx.post(f"{url}{suffix}", json=body)
    assert reply.status_code == 404 and conversation_id in reply.json()["error"]["message"]
    assert httpx.get(url).status_code == httpx.delete(url).status_code == 404


def test_deleted_completion_is_not_updated(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}], "store": True}
    sent_id = httpx.post(f"{server.url}/chat/completions", json=body).json()["id"]
    stored_id = sent_id.replace("chatcmpl-", "chatcmpl_")
    url = f"{server.url}/chat/completions/{sent_id}"
    with monkeypatch.context() as patch:
        read = delete_after(server, stored_chat.parse_body, lambda database: database.delete_response(stored_id))
        patch.setattr(stored_chat, "parse_body", read)
        reply = httpx.post(url, json={"metadata": {"a": "b"}})
    assert reply.status_code == 404 and sent_id in reply.json()["error"]["message"]


def test_conversation_without_its_items_is_not_created(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are one transaction."""
    ids: list[str] = []

    def note_and_fail(_: ConversationTables, __: str, conversation_id: str, *___: object) -> bool:
        ids.append(conversation_id)
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("antiphon.app.store.writing.writer.MAX_TRIES", 1)
        patch.setattr(ConversationTables, "add_items", note_and_fail)
        assert httpx.post(f"{server.url}/conversations", json={"items": [ITEM]}).status_code == 503
    assert httpx.get(f"{server.url}/conversations/{ids[0]}").status_code == 404
