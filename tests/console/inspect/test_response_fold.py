"""The response as of an event, folded from recorded streams and from damaged ones."""

from pathlib import Path
from typing import Any

import pytest

from antiphon.console.inspect.response_fold import ResponseFold
from antiphon.kit.snapshot.sources import read_events
from tests.syntax import ROOT

RECORDED = sorted((ROOT / "tests/kit/checker/recorded").glob("*.sse"))
TEXT_KEYS = ("text", "refusal", "arguments", "input", "code")


def fold(events: list[dict[str, Any]]) -> Any:
    folded = ResponseFold()
    for event in events:
        folded.add_event(event)
    return folded.build_response().get("output", [])


def drop_secrets(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Encrypted reasoning differs each time a server sends it."""
    return [{key: value for key, value in item.items() if key != "encrypted_content"} for item in output]


def list_texts(value: Any) -> list[str]:
    """Returns the texts that deltas build, in their order."""
    if isinstance(value, list):
        return [text for inside in value for text in list_texts(inside)]
    if not isinstance(value, dict):
        return []
    own = [value[key] for key in TEXT_KEYS if isinstance(value.get(key), str)]
    return own + [text for key in ("content", "summary") for text in list_texts(value.get(key))]


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_events_before_the_last_give_its_output(path: Path) -> None:
    *events, last = read_events(path)
    assert drop_secrets(fold(events)) == drop_secrets(last["response"]["output"])


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_deltas_alone_give_the_texts(path: Path) -> None:
    *events, last = read_events(path)
    begun = [event for event in events if not str(event["type"]).endswith(".done")]
    assert [text for text in list_texts(fold(begun)) if text] == [
        text for text in list_texts(last["response"]["output"]) if text
    ]


def test_built_response_continues_to_grow() -> None:
    place = {"output_index": 0, "content_index": 0}
    folded = ResponseFold()
    folded.add_event({"type": "response.created", "response": {"output": []}})
    folded.add_event({"type": "response.output_item.added", "output_index": 0, "item": {"content": []}})
    folded.add_event({"type": "response.content_part.added", **place, "part": {"text": ""}})
    for number in range(3):
        delta = {"type": "response.output_text.delta", **place, "delta": str(number)}
        assert folded.add_event(delta) == "output[0].content[0].text"
        assert list_texts(folded.build_response()["output"]) == ["012"[: number + 1]]


@pytest.mark.parametrize("position", [-1, 3, 1 << 70, True, "0", None, 0.0])
@pytest.mark.parametrize("kind", ["output_item.added", "content_part.added", "output_text.delta", "output_text.done"])
def test_positions_without_a_place_change_nothing(kind: str, position: object) -> None:
    folded = ResponseFold()
    folded.add_event({"type": "response.created", "response": {"output": [{"content": []}]}})
    event = {"output_index": position, "content_index": position, "delta": "x", "text": "x", "item": {}, "part": {}}
    assert folded.add_event({"type": f"response.{kind}", **event}) == ""
    assert folded.build_response() == {"output": [{"content": []}]}


@pytest.mark.parametrize("output", [None, {}, "x", [None], [7], [{"content": "x"}], [{"content": [7]}]])
def test_response_of_another_shape_is_left_alone(output: object) -> None:
    folded = ResponseFold()
    folded.add_event({"type": "response.created", "response": {"output": output}})
    event = {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "x"}
    assert folded.add_event(event) == "" and folded.build_response() == {"output": output}
