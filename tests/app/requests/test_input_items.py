"""Input items: references, stored reasoning, calls with their outputs, the trigger, and the parts of each role."""

from typing import Any

import msgspec
import pytest
from msgspec import structs

from antiphon.app.errors import ApiError
from antiphon.app.requests.responses.conversation import check_calls
from antiphon.app.requests.responses.input_items import is_trigger, read_input, read_item
from antiphon.events.inputs import HostedInput, InputMessage, InputReasoning
from antiphon.events.items import Message, OutputText, Reasoning, ReasoningText, SummaryText
from tests.app.requests.request_builders import read_responses_spec, summarize_error

STORED: dict[str, msgspec.Struct] = {
    "rs_1": Reasoning(id="rs_1", status="completed", content=(ReasoningText(text="stored"),), encrypted_content="sealed:x"),
    "msg_1": Message(id="msg_1", status="completed", content=(OutputText(text="Hi."),)),
    "ws_1": HostedInput(id="ws_1", kind="computer_call", payload={"query": "x"}),
}  # fmt: skip
HI = {"role": "user", "content": "hi"}


def find_named_item(item_id: str) -> msgspec.Struct | None:
    assert item_id, "nothing is looked up without an id"
    return STORED.get(item_id)


def read_one(entry: Any) -> Any:
    (item,) = read_input([entry], STORED.get).items
    return item


REASONING: list[tuple[dict[str, Any], str | None]] = [
    ({"id": "rs_1"}, "stored"),
    ({"id": "rs_1", "content": [], "summary": []}, "stored"),
    ({"id": "rs_1", "content": [{"type": "reasoning_text", "text": "own"}]}, "own"),
    ({"id": "rs_1", "summary": [{"type": "summary_text", "text": "own"}]}, None),
    ({"id": "rs_1", "encrypted_content": "forged"}, None),
    ({"id": "rs_1", "encrypted_content": ""}, "stored"),
    ({"id": "rs_2"}, None),
    ({"id": "msg_1"}, None),
    ({"id": ""}, None),
    ({}, None),
]


@pytest.mark.parametrize(("sent", "text"), REASONING)
def test_only_reasoning_without_any_content_is_restored(sent: dict[str, Any], text: str | None) -> None:
    (item,) = read_input([{"type": "reasoning", "summary": [], **sent}], find_named_item).items
    assert isinstance(item, InputReasoning)
    assert "".join(part.text for part in item.content or ()) == (text or "")
    assert item.summary in ((), []) or item.summary == (SummaryText(text="own"),)
    assert item.encrypted_content == ("sealed:x" if text == "stored" else sent.get("encrypted_content"))


@pytest.mark.parametrize("content", [{}, {"content": [{"type": "reasoning_text", "text": "open"}]}])
def test_forged_content_of_a_stored_item_is_refused(content: dict[str, Any]) -> None:
    sent = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "forged", **content}
    with pytest.raises(ApiError) as caught:
        read_responses_spec(STORED, input=[HI, sent])
    assert summarize_error(caught.value) == (400, "invalid_encrypted_content", "input[1].encrypted_content")
    assert "rs_1" in caught.value.message


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        ({"type": "item_reference", "id": "msg_1"}, InputMessage),
        ({"id": "rs_1"}, InputReasoning),
        ({"id": "ws_1", "type": None}, HostedInput),
    ],
)
def test_reference_is_replaced_by_its_item(sent: dict[str, Any], kind: type) -> None:
    assert isinstance(read_one(sent), kind)


@pytest.mark.parametrize("item_id", ["msg_9", ""])
def test_dangling_reference_is_not_found(item_id: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_one({"type": "item_reference", "id": item_id})
    assert summarize_error(caught.value) == (404, None, "input")
    assert f"'{item_id}'" in caught.value.message


@pytest.mark.parametrize(
    ("entry", "expected"),
    [({"type": "compaction_trigger"}, True), ({"type": "message"}, False), ({}, False), ("compaction_trigger", False), (None, False)],
)  # fmt: skip
def test_trigger(entry: Any, *, expected: bool) -> None:
    assert is_trigger(entry) is expected


def test_trigger_ends_the_input() -> None:
    request_input = read_input([HI, {"type": "compaction_trigger"}], STORED.get)
    assert request_input.compact and len(request_input.items) == 1
    assert not read_input([HI], STORED.get).compact


PART_ERRORS: list[tuple[dict[str, Any], str | None, str]] = [
    ({"type": kind, "call_id": "c", "output": [{"type": "input_audio", "input_audio": {}}]}, "unsupported_parameter", "x.output[0]")
    for kind in ("function_call_output", "custom_tool_call_output")
] + [
    ({"role": "user", "content": [{"type": "input_audio"}]}, "unsupported_parameter", "x.content[0]"),
    ({"role": "assistant", "content": [{"type": "input_audio"}]}, "invalid_value", "x.content[0].type"),
    ({"role": "system", "content": [{"type": "output_text", "text": "x"}]}, "invalid_value", "x.content[0].type"),
    ({"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}, "invalid_value", "x.content[0].type"),
    ({"type": "web_search_call", "id": 5}, "invalid_type", "x.id"),
    ({"type": "no_such_call"}, "invalid_value", "x.type"),
    ({"id": "a", "status": "completed"}, "missing_required_parameter", "x.type"),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "code", "param"), PART_ERRORS)
def test_fault_of_an_item_names_its_place(sent: dict[str, Any], code: str | None, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_item(sent, "x")
    assert summarize_error(caught.value) == (400, code, param)


def call(kind: str, call_id: str, *, is_output: bool = False) -> Any:
    fields = {"output": "x"} if is_output else {"name": "f", "arguments": "{}", "input": "x"}
    return read_item({"type": f"{kind}_output" if is_output else kind, "call_id": call_id, **fields}, "x")


FUNCTION, CUSTOM = "function_call", "custom_tool_call"


@pytest.mark.parametrize("kind", [FUNCTION, CUSTOM])
def test_each_call_needs_an_output_of_its_kind(kind: str) -> None:
    other = CUSTOM if kind == FUNCTION else FUNCTION
    output = call(kind, "a", is_output=True)
    check_calls([call(kind, "a"), output])
    check_calls([call(kind, "a"), call(other, "a"), call(other, "a", is_output=True), output])
    for items, message in [
        ([call(kind, "a")], "No tool output found"),
        ([output], "No tool call found"),
        ([call(kind, "b"), output], "No tool call found"),
        ([call(other, "a"), output], "No tool call found"),
        ([call(kind, "a"), output, call(kind, "a")], "No tool output found"),
    ]:
        with pytest.raises(ApiError, match=message) as caught:
            check_calls(items)
        assert summarize_error(caught.value) == (400, None, "input")


@pytest.mark.parametrize("kind", [FUNCTION, CUSTOM])
def test_asynchronous_calls_may_be_without_an_output(kind: str) -> None:
    asynchronous = structs.replace(call(kind, "a"), is_async=True)
    check_calls([asynchronous])
    check_calls([asynchronous, call(kind, "b"), call(kind, "b", is_output=True), call(kind, "a", is_output=True)])
    with pytest.raises(ApiError, match="No tool output found"):
        check_calls([asynchronous, call(kind, "b")])
