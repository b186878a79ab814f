"""Fields that change how a turn is read or told: truncation, padding, images, as a client meets them."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from antiphon.engine.protocol import EngineInfo
from tests.clients.sdk_helpers import get, post
from tests.invariants import check
from tests.serving import RunningServer, scripted_registry, serve

SCRIPT: list[dict[str, Any]] = [
    {"name": "old", "when": ["older than"], "output": ["I remember it all."]},
    {"name": "any", "output": ["Short.", " And a little longer, word by word."], "tokens_per_chunk": 3},
]
PICTURE = "data:image/png;base64,iVBORw0KGgo="


@pytest.fixture(scope="module")
def served() -> Iterator[RunningServer]:
    info = EngineInfo(max_model_len=2_000, vocab_size=262_144, device="none", eos_ids=())
    with serve(scripted_registry(SCRIPT, info=info)) as running:
        yield running


def ask(served: RunningServer, path: str = "/responses", **body: Any) -> Any:
    return post(served.url + path, json={"model": "scripted", **body})


def events(reply: Any) -> list[dict[str, Any]]:
    return [json.loads(row[6:]) for row in reply.text.splitlines() if row.startswith("data: {")]


# Truncation

OLD = [
    {"role": "user", "content": "older than the hills " * 80},
    {"role": "assistant", "content": "Indeed. " * 60},
    {"role": "developer", "content": "Be brief."},
]
NOW = {"role": "user", "content": "And now?"}


def test_what_is_too_long_is_refused_and_shortened_where_asked_for(served: RunningServer) -> None:
    refused = ask(served, input=[*OLD, NOW]).json()["error"]
    assert (refused["code"], refused["param"]) == ("context_length_exceeded", "input")
    kept = ask(served, input=[*OLD, NOW], truncation="auto").json()
    assert kept["truncation"] == "auto" and kept["output"][0]["content"][0]["text"].startswith("Short.")
    assert 0 < kept["usage"]["input_tokens"] <= 1_500, "there is room for an answer"
    assert ask(served, input=[NOW], truncation="disabled").json()["truncation"] == "disabled"


def test_what_fits_is_left_as_it_is(served: RunningServer) -> None:
    fitting = ask(served, input=[{"role": "user", "content": "older than you"}, NOW], truncation="auto").json()
    assert fitting["output"][0]["content"][0]["text"] == "I remember it all."


def test_what_cannot_be_shortened_enough_is_refused(served: RunningServer) -> None:
    refused = ask(served, input="And now? " * 400, truncation="auto")
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "context_length_exceeded"


def test_a_chain_is_shortened_and_remains_whole_in_the_store(served: RunningServer) -> None:
    first = ask(served, input="older than the hills " * 60, truncation="auto").json()
    second = ask(served, input="And now? " * 60, truncation="auto", previous_response_id=first["id"])
    third = ask(served, input="And then? " * 30, truncation="auto", previous_response_id=second.json()["id"]).json()
    assert third["output"][0]["content"][0]["text"].startswith("Short.")
    assert (
        get(f"{served.url}/responses/{first['id']}/input_items")
        .json()["data"][0]["content"][0]["text"]
        .startswith("older")
    )


# Padding


def test_every_piece_is_padded_and_says_the_same(served: RunningServer) -> None:
    plain = events(ask(served, input="Hi", stream=True))
    hidden = events(ask(served, input="Hi", stream=True, stream_options={"include_obfuscation": True}))
    check(hidden)
    pieces = [event for event in hidden if event["type"].endswith(".delta")]
    assert len(pieces) > 3 and all("obfuscation" in event for event in pieces)
    assert not any("obfuscation" in event for event in hidden if not event["type"].endswith(".delta"))
    assert [event["delta"] for event in pieces] == [event["delta"] for event in plain if "delta" in event]
    sizes = {len(json.dumps(event, separators=(",", ":"), ensure_ascii=False)) for event in pieces}
    assert len(sizes) == 1, "short and long pieces look alike"
    assert len({event["obfuscation"] for event in pieces}) > 1


def test_a_stream_that_is_read_again_is_padded_where_asked_for(served: RunningServer) -> None:
    made = ask(served, input="Hi").json()
    address = f"{served.url}/responses/{made['id']}?stream=true"
    assert "obfuscation" not in get(address).text
    again = events(get(f"{address}&include_obfuscation=true"))
    assert sum("obfuscation" in event for event in again) > 3


def test_chunks_of_a_chat_are_padded_too(served: RunningServer) -> None:
    said = [{"role": "user", "content": "Hi"}]
    reply = ask(served, "/chat/completions", messages=said, stream=True, stream_options={"include_obfuscation": True})
    chunks = events(reply)
    assert all("obfuscation" in chunk for chunk in chunks)
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks).startswith("Short.")


# Images and files


def test_an_image_is_named_in_the_prompt_and_nothing_of_it_is_read(served: RunningServer) -> None:
    parts = [{"type": "input_text", "text": "older than"}, {"type": "input_image", "image_url": PICTURE}]
    long = [parts[0], {"type": "input_image", "image_url": PICTURE[:-1] + "A" * 20_000 + "="}]
    counts = [
        ask(served, "/responses/input_tokens", input=[{"role": "user", "content": p}]).json() for p in (parts, long)
    ]
    assert counts[0] == counts[1] and counts[0]["input_tokens"] < 200


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": PICTURE}]}]}, "input[0].content[0]"),
        ("/responses", {"input": [{"role": "user", "content": [{"type": "input_file", "file_data": "x", "filename": "a"}]}]}, "input[0].content[0]"),
        ("/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PICTURE}}]}]}, "messages[0].content[0]"),
    ],
    ids=str,
)  # fmt: skip
def test_one_switch_has_them_refused(served: RunningServer, path: str, body: Any, param: str) -> None:
    assert ask(served, path, **body).status_code == 200
    with serve(scripted_registry(SCRIPT), unsupported_media="refuse") as strict:
        refused = ask(strict, path, **body)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == param
        assert ask(strict, input="Hi").status_code == 200
