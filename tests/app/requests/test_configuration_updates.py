"""Items that set the reasoning effort and the text format for the rest of a conversation."""

from functools import partial
from typing import Any

import httpx
import pytest

from antiphon.app.errors import ApiError
from antiphon.engine.protocol import EngineInfo
from tests.app.requests.request_builders import read_responses_spec, summarize_error
from tests.clients.websocket_turns import open_websocket, run_turn
from tests.conftest import fresh_server
from tests.serving import RunningServer, scripted_registry, serve

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"word": {"type": "string"}}}
JSON: dict[str, Any] = {"type": "json_schema", "name": "word", "schema": SCHEMA}
PLAIN: dict[str, Any] = {"type": "text"}
SCRIPT: list[dict[str, Any]] = [
    {"name": "summary", "when": ["about to be cut short"], "output": ["A summary."]},
    {"name": "any", "output": ["Yes."]},
]


def effort(value: str | None) -> dict[str, Any]:
    return {"reasoning": {"effort": value}}


def text(value: dict[str, Any] | None) -> dict[str, Any]:
    return {"text": {"format": value}}


def update(*settings: dict[str, Any]) -> dict[str, Any]:
    fields = {key: value for each in settings for key, value in each.items()}
    return {"type": "configuration_update", **fields}


def user(content: str = "Hi") -> dict[str, Any]:
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("items", "sent", "expected"),
    [
        ([update(effort("low"))], {}, ("low", None)),
        ([update(effort("low")), update(effort("high"))], {}, ("high", None)),
        ([update(effort("low")), update(text(JSON))], {}, ("low", SCHEMA)),
        ([update(effort("low"), text(JSON)), update(text(PLAIN))], {}, ("low", None)),
        ([update(effort("low"))], effort("high"), ("low", None)),
        ([update(text(JSON))], text(PLAIN), (None, SCHEMA)),
        ([update(text(PLAIN))], text(JSON), (None, None)),
        ([update(text(JSON))], effort("high"), ("high", SCHEMA)),
        ([update(effort(None), text(JSON)), {**update(effort("low")), "id": "x", "text": None}], {}, ("low", SCHEMA)),
        ([], effort("high"), ("high", None)),
    ],
)
def test_last_update_of_the_input_is_in_force(items: list[Any], sent: Any, expected: tuple[Any, Any]) -> None:
    spec = read_responses_spec(input=[*items, user()], **sent)
    constraint = spec.prompt_input.output_constraint
    assert (spec.prompt_input.effort, constraint and constraint.schema) == expected
    assert spec.base_response.reasoning is not None and spec.base_response.reasoning.effort == expected[0]
    assert spec.base_response.text["format"] == (JSON if expected[1] else PLAIN)
    assert len(spec.constraints) == (1 if expected[1] else 0)


def test_other_settings_of_the_request_stay() -> None:
    sent = {"reasoning": {"effort": "low", "summary": "auto"}, "text": {"verbosity": "low"}}
    response = read_responses_spec(input=[update(effort("high"), text(JSON)), user()], **sent).base_response
    assert response.reasoning is not None and response.reasoning.summary == "auto"
    assert response.text == {"verbosity": "low", "format": JSON}


@pytest.mark.parametrize(
    ("item", "code", "param"),
    [
        ({}, "missing_required_parameter", "reasoning"),
        ({"reasoning": {}}, "missing_required_parameter", "reasoning.effort"),
        ({"reasoning": {"effort": None}, "text": {}}, "missing_required_parameter", "reasoning.effort"),
        ({"text": {"format": None}}, "missing_required_parameter", "reasoning"),
        ({"reasoning": {"effort": "huge"}}, "invalid_value", "reasoning.effort"),
        ({"reasoning": "high"}, "invalid_type", "reasoning"),
        ({"text": {"format": {"type": "xml"}}}, "invalid_value", "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "missing_required_parameter", "text.format.name"),
    ],
)
def test_invalid_update_is_named(item: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_responses_spec(input=[user(), {"type": "configuration_update", **item}])
    assert summarize_error(caught.value) == (400, code, f"input[1].{param}")


SERVER = partial(
    serve, lambda: scripted_registry(SCRIPT, info=EngineInfo(max_model_len=20_000, vocab_size=262_144)), file_store=True
)
server = fresh_server


def create(server: RunningServer, *items: Any, **fields: Any) -> Any:
    reply = httpx.post(f"{server.url}/responses", json={"model": "scripted", "input": [*items, user()], **fields})
    assert reply.status_code == 200, reply.text
    return reply.json()


def in_force(response: Any) -> tuple[Any, Any]:
    return response["reasoning"]["effort"], response["text"]["format"]["type"]


def test_update_holds_for_the_responses_that_follow(server: RunningServer) -> None:
    first = create(server, update(effort("low"), text(JSON)))
    second = create(server, previous_response_id=first["id"])
    third = create(server, previous_response_id=second["id"], **effort("high"), **text(PLAIN))
    fourth = create(server, previous_response_id=third["id"])
    fifth = create(server, update(text(PLAIN)), previous_response_id=fourth["id"])
    sixth = create(server, previous_response_id=fifth["id"])
    low = ("low", "json_schema")
    assert [in_force(each) for each in (first, second, third, fourth)] == [low, low, ("high", "text"), low]
    assert [in_force(each) for each in (fifth, sixth)] == [("low", "text")] * 2
    (item,) = [
        item
        for item in httpx.get(f"{server.url}/responses/{first['id']}/input_items").json()["data"]
        if item["type"] == "configuration_update"
    ]
    assert item == {"id": item["id"], **update(effort("low"), text(JSON))}
    referred = create(server, {"type": "item_reference", "id": item["id"]})
    assert in_force(referred) == low


def test_update_is_not_rendered(server: RunningServer) -> None:
    plain, updated = create(server), create(server, update(effort("low")))
    assert plain["usage"] == updated["usage"]


def test_update_holds_in_a_conversation(server: RunningServer) -> None:
    items = [update(effort("low")), user("Hello")]
    conversation = httpx.post(f"{server.url}/conversations", json={"items": items}).json()["id"]
    assert in_force(create(server, conversation=conversation)) == ("low", "text")
    assert in_force(create(server, update(effort("high")), conversation=conversation)) == ("high", "text")
    assert in_force(create(server, conversation=conversation)) == ("high", "text")
    listed = httpx.get(f"{server.url}/conversations/{conversation}/items").json()["data"]
    assert [item["reasoning"] for item in listed if item["type"] == "configuration_update"] == [
        {"effort": "high"},
        {"effort": "low"},
    ]


def test_update_holds_in_a_lane_that_stores_nothing(server: RunningServer) -> None:
    with open_websocket(server) as websocket:
        first = run_turn(websocket, [update(effort("low")), user()], store=False, stream_id="a")[-1]["response"]
        fields = {"previous_response_id": first["id"], "store": False}
        second = run_turn(websocket, [user()], **fields, stream_id="b")[-1]["response"]
        third = run_turn(websocket, [user()], **{**fields, "previous_response_id": second["id"]}, stream_id="b")
    assert {in_force(each) for each in (first, second, third[-1]["response"])} == {("low", "text")}


@pytest.mark.parametrize("store", [True, False])
def test_update_outlasts_a_compaction(server: RunningServer, store: bool) -> None:
    long = user("Nothing but words. " * 400)
    said = {"role": "assistant", "content": "I see."}
    manage = {"context_management": [{"type": "compaction", "compact_threshold": 1000}]}
    first = create(server, update(effort("low")), long, said, **manage, store=store)
    compaction = first["output"][0]
    assert compaction["type"] == "compaction"
    assert in_force(create(server, compaction)) == ("low", "text"), "the client drops all that is before it"
    assert in_force(create(server, compaction, **effort("high"))) == ("high", "text")
    if store:
        assert in_force(create(server, previous_response_id=first["id"])) == ("low", "text")
