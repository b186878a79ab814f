"""Settings and fields that the README and `docs/reference/fields.md` describe: each does what its description says."""

import time
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from antiphon.app.errors import ApiError
from antiphon.app.options.settings import Settings
from antiphon.app.store.factory import open_store
from antiphon.app.store.sqlite.database import SqliteDatabase
from antiphon.app.store.sqlite.schema import open_connection
from tests.app.requests.request_builders import read_chat_spec, read_responses, read_responses_spec, summarize_error
from tests.app.store.store_helpers import add_log
from tests.clients.sdk_helpers import get, post
from tests.conftest import StartServer
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer

SCRIPT: list[dict[str, Any]] = [{"name": "any", "output": ["<think>\nHm.\n</think>\n\nOne two three four."]}]
DAY_SECONDS = 86_400


def create(server: RunningServer, **body: Any) -> dict[str, Any]:
    reply = post(f"{server.url}/responses", json={"model": "scripted", "input": "hi", **body})
    assert reply.status_code == 200, reply.text
    result: dict[str, Any] = reply.json()
    return result


# Options of the command


async def list_responses_after_a_sweep(path: Path, names: tuple[str, ...], **settings: Any) -> list[str]:
    """Opens the store with the settings, which sweeps at once. Returns the names of the responses that are left."""
    store = open_store(Settings(store_file=path, **settings))
    await store.close()
    database = SqliteDatabase(open_connection(path))
    left = [name for name in names if database.find_log("me", f"resp_{name}")]
    database.close()
    return left


async def fill_store(path: Path, ages_days: dict[str, float]) -> None:
    store = open_store(Settings(store_file=path))
    for name, days in ages_days.items():
        await add_log(store, name, created=int(time.time() - days * DAY_SECONDS)).wait_published()  # type: ignore[arg-type]
    await store.close()


async def test_responses_are_kept_for_the_retention_days(tmp_path: Path) -> None:
    path = tmp_path / "responses.db"
    await fill_store(path, {"today": 0, "old": 1.9, "older": 2.1, "oldest": 29})
    names = ("today", "old", "older", "oldest")
    assert await list_responses_after_a_sweep(path, names) == [*names], "30 days by default"
    assert await list_responses_after_a_sweep(path, names, store_retention_days=2) == ["today", "old"]
    assert await list_responses_after_a_sweep(path, names, store_retention_days=0.5) == ["today"]


async def test_oldest_responses_beyond_the_store_size_are_deleted(tmp_path: Path) -> None:
    path = tmp_path / "responses.db"
    await fill_store(path, {"old": 3, "middle": 2, "new": 1})
    database = SqliteDatabase(open_connection(path))
    sizes = [row[0] for row in database.query_rows("SELECT size FROM responses ORDER BY created")]
    database.close()
    names = ("old", "middle", "new")
    assert await list_responses_after_a_sweep(path, names, store_max_gib=sum(sizes) / 2**30) == [*names]
    assert await list_responses_after_a_sweep(path, names, store_max_gib=sum(sizes[1:]) / 2**30) == ["middle", "new"]
    assert await list_responses_after_a_sweep(path, names, store_max_gib=0) == []


def test_encryption_key_file_is_created_and_shared_by_servers(start_server: StartServer, tmp_path: Path) -> None:
    key_file = tmp_path / "the.key"
    first, second = (start_server(SCRIPT, encryption_key_file=key_file) for _ in range(2))
    stranger = start_server(SCRIPT, encryption_key_file=tmp_path / "another.key")
    assert key_file.stat().st_mode & 0o777 == 0o600
    output = create(first, include=["reasoning.encrypted_content"], store=False)["output"]
    assert output[0]["encrypted_content"]
    history = {
        "model": "scripted",
        "input": [{"role": "user", "content": "hi"}, *output, {"role": "user", "content": "on"}],
    }
    assert post(f"{second.url}/responses", json=history).status_code == 200
    refused = post(f"{stranger.url}/responses", json=history)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_encrypted_content")


def test_max_output_tokens_is_the_default_of_requests(start_server: StartServer) -> None:
    server = start_server(SCRIPT, default_max_output_tokens=12)
    limited = create(server)
    assert limited["status"] == "incomplete" and limited["incomplete_details"] == {"reason": "max_output_tokens"}
    assert limited["usage"]["output_tokens"] == 12
    assert create(server, max_output_tokens=1000)["status"] == "completed"
    body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
    chat = post(f"{server.url}/chat/completions", json=body).json()
    assert chat["choices"][0]["finish_reason"] == "length" and chat["usage"]["completion_tokens"] == 12
    assert (
        post(f"{server.url}/chat/completions", json=body | {"max_tokens": 1000}).json()["choices"][0]["finish_reason"]
        == "stop"
    )


def test_websocket_is_on_by_default(start_server: StartServer) -> None:
    server = start_server(SCRIPT)
    # A client that reads no further closes only after its time limit, once 16 unread frames have filled its queue.
    with connect(server.url.replace("http", "ws") + "/responses", max_queue=None) as websocket:
        websocket.send('{"type": "response.create", "model": "scripted", "input": "hi"}')
        assert '"response.created"' in str(websocket.recv(timeout=HANG_TIMEOUT_S))


# Fields of requests


@pytest.mark.parametrize(
    ("sent", "echoed"), [({}, "default"), ({"service_tier": "auto"}, "default"), ({"service_tier": "flex"}, "flex")]
)
def test_service_tier_auto_is_answered_with_default(start_server: StartServer, sent: Any, echoed: str) -> None:
    assert create(start_server(SCRIPT), **sent)["service_tier"] == echoed


def test_user_and_safety_identifier_are_echoed(start_server: StartServer) -> None:
    server = start_server(SCRIPT)
    sent = {"user": "u" * 512, "safety_identifier": "s" * 128}
    created = create(server, **sent)
    stored = get(f"{server.url}/responses/{created['id']}").json()
    for response in (created, stored):
        assert {key: response[key] for key in sent} == sent


@pytest.mark.parametrize("reader", [read_responses_spec, read_chat_spec])
@pytest.mark.parametrize(("name", "longest"), [("user", 512), ("safety_identifier", 128)])
def test_length_of_identifiers_is_limited_exactly(reader: Any, name: str, longest: int) -> None:
    reader(**{name: "x" * longest})
    with pytest.raises(ApiError) as caught:
        reader(**{name: "x" * (longest + 1)})
    assert summarize_error(caught.value) == (400, "string_above_max_length", name)


@pytest.mark.parametrize(
    ("path", "body"),
    [("/responses", {"input": "hi"}), ("/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})],
)
def test_logit_bias_has_at_most_1024_entries(start_server: StartServer, path: str, body: dict[str, Any]) -> None:
    server, bias = start_server(SCRIPT), {str(token): 1 for token in range(1025)}
    refused = post(server.url + path, json={"model": "scripted", "logit_bias": bias, **body})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "logit_bias")
    assert refused.json()["error"]["code"] == "object_above_max_properties"
    del bias["0"]
    assert post(server.url + path, json={"model": "scripted", "logit_bias": bias, **body}).status_code == 200


@pytest.mark.parametrize("value", ["auto", "sequential_cutoff"])
def test_reasoning_summary_delivery_is_accepted(value: str) -> None:
    parsed = read_responses(stream=True, stream_options={"reasoning_summary_delivery": value})
    assert parsed.form.stream
    with pytest.raises(ApiError) as caught:
        read_responses_spec(stream=True, stream_options={"reasoning_summary_delivery": "never"})
    assert summarize_error(caught.value)[2] == "stream_options.reasoning_summary_delivery"
