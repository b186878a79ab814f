"""Request options that change the prompt or the stream: truncation, obfuscation, images and files."""

import json
from functools import partial
from typing import Any

import pytest

from antiphon.app.projections.obfuscation import BUCKET_BYTES, add_obfuscation
from antiphon.engine.protocol import EngineInfo
from tests.clients.sdk_helpers import get, post
from tests.invariants import check_stream
from tests.serving import RunningServer, scripted_registry, serve

SCRIPT: list[dict[str, Any]] = [
    {"name": "old", "when": ["older than"], "output": ["I remember it all."]},
    {"name": "any", "output": ["Short.", " And a little longer, word by word."], "tokens_per_chunk": 3},
]
IMAGE_URL = "data:image/png;base64,iVBORw0KGgo="


INFO = EngineInfo(max_model_len=2_000, vocab_size=262_144, device="none", eos_ids=())
SERVER = partial(serve, partial(scripted_registry, SCRIPT, info=INFO))


def post_request(server: RunningServer, path: str = "/responses", **body: Any) -> Any:
    return post(server.url + path, json={"model": "scripted", **body})


def read_events(reply: Any) -> list[dict[str, Any]]:
    return [json.loads(row[6:]) for row in reply.text.splitlines() if row.startswith("data: {")]


# Truncation

LONG_HISTORY = [
    {"role": "user", "content": "older than the hills " * 80},
    {"role": "assistant", "content": "Indeed. " * 60},
    {"role": "developer", "content": "Be brief."},
]
LAST_MESSAGE = {"role": "user", "content": "And now?"}


def test_long_input_is_rejected_unless_truncation_is_auto(server: RunningServer) -> None:
    refused = post_request(server, input=[*LONG_HISTORY, LAST_MESSAGE]).json()["error"]
    assert (refused["code"], refused["param"]) == ("context_length_exceeded", "input")
    truncated = post_request(server, input=[*LONG_HISTORY, LAST_MESSAGE], truncation="auto").json()
    assert truncated["truncation"] == "auto" and truncated["output"][0]["content"][0]["text"].startswith("Short.")
    assert 0 < truncated["usage"]["input_tokens"] <= 1_500, "the prompt leaves space for the output"
    assert post_request(server, input=[LAST_MESSAGE], truncation="disabled").json()["truncation"] == "disabled"


def test_truncation_keeps_an_input_that_fits(server: RunningServer) -> None:
    response = post_request(
        server, input=[{"role": "user", "content": "older than you"}, LAST_MESSAGE], truncation="auto"
    ).json()
    assert response["output"][0]["content"][0]["text"] == "I remember it all."


def test_long_last_message_is_rejected_despite_truncation(server: RunningServer) -> None:
    refused = post_request(server, input="And now? " * 400, truncation="auto")
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "context_length_exceeded"


def test_truncation_does_not_change_stored_items(server: RunningServer) -> None:
    first = post_request(server, input="older than the hills " * 60, truncation="auto").json()
    second = post_request(server, input="And now? " * 60, truncation="auto", previous_response_id=first["id"])
    third = post_request(
        server, input="And then? " * 30, truncation="auto", previous_response_id=second.json()["id"]
    ).json()
    assert third["output"][0]["content"][0]["text"].startswith("Short.")
    assert (
        get(f"{server.url}/responses/{first['id']}/input_items")
        .json()["data"][0]["content"][0]["text"]
        .startswith("older")
    )


# Obfuscation


def test_obfuscated_length_is_a_multiple_of_the_bucket() -> None:
    for length in range(200):
        data = json.dumps({"delta": "x" * length}, separators=(",", ":")).encode()
        padded = add_obfuscation(data)
        assert len(padded) % BUCKET_BYTES == 0 and len(padded) < len(data) + 2 * BUCKET_BYTES
        assert json.loads(padded)["delta"] == "x" * length


def test_obfuscation_gives_all_deltas_one_length_and_keeps_their_text(server: RunningServer) -> None:
    clear_events = read_events(post_request(server, input="Hi", stream=True))
    obfuscated_events = read_events(
        post_request(server, input="Hi", stream=True, stream_options={"include_obfuscation": True})
    )
    check_stream(obfuscated_events)
    deltas = [event for event in obfuscated_events if event["type"].endswith(".delta")]
    assert len(deltas) > 3 and all("obfuscation" in event for event in deltas)
    assert not any("obfuscation" in event for event in obfuscated_events if not event["type"].endswith(".delta"))
    assert [event["delta"] for event in deltas] == [event["delta"] for event in clear_events if "delta" in event]
    sizes = {len(json.dumps(event, separators=(",", ":"), ensure_ascii=False)) for event in deltas}
    assert len(sizes) == 1, "all deltas have the same length"
    assert len({event["obfuscation"] for event in deltas}) > 1


def test_replayed_stream_is_obfuscated_on_request(server: RunningServer) -> None:
    response = post_request(server, input="Hi").json()
    url = f"{server.url}/responses/{response['id']}?stream=true"
    assert "obfuscation" not in get(url).text
    events = read_events(get(f"{url}&include_obfuscation=true"))
    assert sum("obfuscation" in event for event in events) > 3


def test_chat_chunks_are_obfuscated_on_request(server: RunningServer) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    reply = post_request(
        server, "/chat/completions", messages=messages, stream=True, stream_options={"include_obfuscation": True}
    )
    chunks = read_events(reply)
    assert all("obfuscation" in chunk for chunk in chunks)
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks).startswith("Short.")


# Images and files


def test_image_data_does_not_reach_the_prompt(server: RunningServer) -> None:
    short_content = [{"type": "input_text", "text": "older than"}, {"type": "input_image", "image_url": IMAGE_URL}]
    long_content = [short_content[0], {"type": "input_image", "image_url": IMAGE_URL[:-1] + "A" * 20_000 + "="}]
    token_counts = [
        post_request(server, "/responses/input_tokens", input=[{"role": "user", "content": content}]).json()
        for content in (short_content, long_content)
    ]
    assert token_counts[0] == token_counts[1] and token_counts[0]["input_tokens"] < 200


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": IMAGE_URL}]}]}, "input[0].content[0]"),
        ("/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": IMAGE_URL}}]}]}, "messages[0].content[0]"),
    ],
    ids=str,
)  # fmt: skip
def test_unsupported_media_setting_rejects_images(server: RunningServer, path: str, body: Any, param: str) -> None:
    assert post_request(server, path, **body).status_code == 200
    with serve(scripted_registry(SCRIPT), unsupported_media="refuse") as server_without_media:
        refused = post_request(server_without_media, path, **body)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == param
        assert post_request(server_without_media, input="Hi").status_code == 200


def test_context_overflow_of_chat_names_messages(server: RunningServer) -> None:
    messages = [{"role": "user", "content": "And now? " * 400}]
    error = post(f"{server.url}/chat/completions", json={"model": "scripted", "messages": messages}).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
