"""The excerpt of a request in the list of turns: the last text of the user, for its owner, and only while it is kept."""

import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.app.inspection.excerpts import MAX_EXCERPT_CHARS, find_excerpt
from antiphon.app.inspection.record_rows import read_stored_excerpt
from tests.app.inspection.inspector import SCRIPT, Inspector
from tests.serving import serve

LATER = [
    {"role": "user", "content": "first"},
    {"role": "user", "content": [{"type": "input_text", "text": "last\n one"}, {"type": "input_image"}]},
    {"type": "function_call_output", "call_id": "c", "output": "secret of a tool"},
    {"role": "assistant", "content": "an answer"},
]
TOOL_RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "of a tool"}]}


@pytest.mark.parametrize(
    ("body", "excerpt"),
    [
        ({"input": "Hi \n there"}, "Hi there"),
        ({"input": LATER}, "last one"),
        ({"messages": LATER[:1]}, "first"),
        ({"messages": [{"role": "user", "content": "asked"}, TOOL_RESULT]}, "asked"),
        ({"messages": [{"role": "user", "content": ["text", None, 1, {"type": "text", "text": 5}]}]}, "text"),
        ({"prompt": "Once"}, "Once"),
        ({"prompt": ["One", "Two"]}, "Two"),
        ({"prompt": [1, 2, 3]}, ""),
        ({"input": "x" * 500}, "x" * (MAX_EXCERPT_CHARS - 1) + "…"),
        ({"input": " \n" * 5000}, ""),
        ({"input": "\x1b[2J\u202e\ud83d\ude00"}, "\x1b[2J\u202e\U0001f600"),
        ({"input": [[], None, {"role": "user"}, {"role": "user", "content": {}}]}, ""),
        ({"model": "m"}, ""),
        ([], ""),
    ],
)
def test_excerpt_is_the_last_text_of_the_user(body: Any, excerpt: str) -> None:
    assert find_excerpt(json.dumps(body).encode()) == excerpt


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 10_000])
def test_damaged_request_and_row_have_none(data: bytes) -> None:
    assert find_excerpt(data) == "" and read_stored_excerpt(data) == ""


def list_excerpts(inspector: Inspector, **query: Any) -> list[str | None]:
    return [each["excerpt"] for each in inspector.get("/turns", **query).json()["data"]]


def test_list_has_excerpts_without_secrets(inspector: Inspector) -> None:
    key = "sk-proj-" + "aB3" * 16
    turn_id = inspector.ask(f"The key is {key}, use it")
    [excerpt] = list_excerpts(inspector, limit=1)
    assert excerpt is not None and excerpt.startswith("The key is ") and key not in excerpt
    assert inspector.get(f"/turns/{turn_id}").json()["excerpt"] == excerpt
    assert list_excerpts(inspector, limit=1, text="the key is") == [excerpt]
    inspector.client.delete(f"/v1/inspect/turns/{turn_id}")
    assert excerpt not in list_excerpts(inspector)


def test_running_turn_has_its_excerpt(inspector: Inspector) -> None:
    body = {"model": "scripted", "input": "Wait for it", "background": True, "store": True}
    turn_id = inspector.client.post("/v1/responses", json=body).json()["id"]
    assert list_excerpts(inspector, limit=1) == ["Wait for it"]
    inspector.client.post(f"/v1/responses/{turn_id}/cancel")


def test_excerpt_is_for_the_owner_and_only_with_a_record(tmp_path: Path) -> None:
    options: dict[str, Any] = {"api_keys": ("first-key", "second-key"), "store_file": tmp_path / "responses.db"}
    with (
        serve(SCRIPT, inspect="store", **options) as server,
        Inspector(server, "first-key") as first,
        Inspector(server, "second-key") as second,
    ):
        first.ask("kept in the store", store=True)
        first.ask("never on the disk")
        second.ask("of another owner", store=True)
        assert list_excerpts(first) == ["never on the disk", "kept in the store"]
        assert list_excerpts(second) == ["of another owner"]
    for path in tmp_path.iterdir():
        assert b"never on the disk" not in path.read_bytes()
    with serve(SCRIPT, inspect="off", **options) as server, Inspector(server, "first-key") as first:
        assert list_excerpts(first) == ["kept in the store"], "the record is still there"
        first.ask("nothing is recorded", store=True)
        assert list_excerpts(first) == [None, "kept in the store"]
