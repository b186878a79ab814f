"""Items of hosted tools in the input: how they are read and listed, faults, and items that are sent twice."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from antiphon.app.errors import ApiError
from antiphon.app.projections.item_lists import listed_item
from antiphon.app.requests.json_body import parse_object
from antiphon.app.requests.responses.input_items import read_input, read_item
from antiphon.app.requests.responses.request import read_responses_request
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.app.store.log_items import output_as_input
from antiphon.engine.embedded import MODEL_DIR
from antiphon.events.hosted import CodeInterpreterCall, McpCall, McpHttpError, WebSearchCall
from antiphon.events.hosted_inputs import (
    AnyHostedInput,
    InputApprovalRequest,
    InputApprovalResponse,
    InputCodeCall,
    InputCodeOutput,
    InputFileResult,
    InputFileSearchCall,
    InputMcpCall,
    InputMcpList,
    InputSearchAction,
    InputWebSearchCall,
)
from antiphon.events.inputs import AnyInput
from antiphon.harmony.detection import detect
from tests.app.requests.request_builders import FakeHistory, make_registry, read_responses_spec, summarize_error

HI = {"role": "user", "content": "hi"}
CALL = {"type": "mcp_call", "id": "mcp_1", "server_label": "dice", "name": "roll", "arguments": "{}"}
REQUEST = {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "dice", "name": "roll", "arguments": "{}"}
ANSWER = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}

READ: list[tuple[dict[str, Any], AnyHostedInput]] = [
    (
        {**CALL, "output": "4", "error": None, "approval_request_id": None, "status": "completed", "caller": None},
        InputMcpCall(id="mcp_1", server_label="dice", name="roll", arguments="{}", output="4", status="completed"),
    ),
    ({**CALL, "error": "old form"}, InputMcpCall(id="mcp_1", server_label="dice", name="roll", arguments="{}", error="old form")),
    (
        {**CALL, "error": {"type": "http_error", "code": 503, "message": "x"}},
        InputMcpCall(id="mcp_1", server_label="dice", name="roll", arguments="{}", error={"type": "http_error", "code": 503, "message": "x"}),
    ),
    (
        {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "dice", "tools": [{"name": "roll", "input_schema": {}, "annotations": None}]},
        InputMcpList(id="mcpl_1", server_label="dice", tools=({"name": "roll", "input_schema": {}, "annotations": None},)),
    ),
    (REQUEST, InputApprovalRequest(id="mcpr_1", server_label="dice", name="roll", arguments="{}")),
    ({**ANSWER, "id": None, "reason": None}, InputApprovalResponse(approval_request_id="mcpr_1", approve=True)),
    (
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q", "queries": ["q"], "sources": [{"type": "url", "url": "u"}], "url": None, "extra": 1}},
        InputWebSearchCall(id="ws_1", status="completed", action=InputSearchAction(type="search", query="q", queries=("q",), sources=({"type": "url", "url": "u"},))),
    ),
    ({"type": "web_search_call", "action": {}}, InputWebSearchCall(action=InputSearchAction())),
    (
        {"type": "code_interpreter_call", "id": "ci_1", "code": "1", "container_id": "cntr_1", "outputs": [{"type": "logs", "logs": "1"}, {"type": "image", "url": "u"}], "status": "completed"},
        InputCodeCall(id="ci_1", code="1", container_id="cntr_1", outputs=(InputCodeOutput(type="logs", logs="1"), InputCodeOutput(type="image", url="u")), status="completed"),
    ),
    ({"type": "code_interpreter_call", "code": None, "outputs": None, "container_id": None}, InputCodeCall()),
    (
        {"type": "file_search_call", "id": "fs_1", "queries": ["a"], "results": [{"file_id": "f", "filename": "n", "score": 1, "text": "t", "attributes": {}}], "status": "completed"},
        InputFileSearchCall(id="fs_1", queries=("a",), results=(InputFileResult(file_id="f", filename="n", score=1.0, text="t", attributes={}),), status="completed"),
    ),
    ({"type": "file_search_call", "queries": ["a"], "results": None}, InputFileSearchCall(queries=("a",))),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "expected"), READ)
def test_hosted_item_is_read_stored_and_listed(sent: dict[str, Any], expected: AnyHostedInput) -> None:
    item = read_item(sent, "x")
    assert item == expected
    decoded: AnyInput = msgspec.json.decode(msgspec.json.encode(item), type=AnyInput)
    assert decoded == item
    listed = listed_item(item)
    assert read_item(listed, "x") == item
    assert listed.get("status") == sent.get("status"), "none is added: some of these types have none"


FAULTS: list[tuple[dict[str, Any], str, str]] = [
    ({**CALL, "id": 5}, "invalid_type", "x.id"),
    ({**CALL, "server_label": None}, "missing_required_parameter", "x.server_label"),
    ({**CALL, "name": 1}, "invalid_type", "x.name"),
    ({**CALL, "arguments": {}}, "invalid_type", "x.arguments"),
    ({**CALL, "output": [{"type": "text"}]}, "invalid_type", "x.output"),
    ({**CALL, "error": 5}, "invalid_type", "x.error"),
    ({**CALL, "approval_request_id": True}, "invalid_type", "x.approval_request_id"),
    ({"type": "mcp_list_tools", "server_label": "s", "tools": {}}, "invalid_type", "x.tools"),
    ({"type": "mcp_list_tools", "server_label": "s", "tools": [1]}, "invalid_type", "x.tools[0]"),
    ({**REQUEST, "id": None}, "missing_required_parameter", "x.id"),
    ({**REQUEST, "arguments": []}, "invalid_type", "x.arguments"),
    ({**ANSWER, "approve": "yes"}, "invalid_type", "x.approve"),
    ({**ANSWER, "approve": None}, "missing_required_parameter", "x.approve"),
    ({**ANSWER, "approval_request_id": None}, "missing_required_parameter", "x.approval_request_id"),
    ({**ANSWER, "reason": 1}, "invalid_type", "x.reason"),
    ({"type": "web_search_call", "action": "search"}, "invalid_type", "x.action"),
    ({"type": "web_search_call", "action": {"queries": ["a", 1]}}, "invalid_type", "x.action.queries[1]"),
    ({"type": "web_search_call", "action": {"sources": ["u"]}}, "invalid_type", "x.action.sources[0]"),
    ({"type": "code_interpreter_call", "code": 1}, "invalid_type", "x.code"),
    ({"type": "code_interpreter_call", "outputs": [{"logs": 1}]}, "invalid_type", "x.outputs[0].logs"),
    ({"type": "file_search_call", "queries": "a"}, "invalid_type", "x.queries"),
    ({"type": "file_search_call", "results": [{"score": "1"}]}, "invalid_type", "x.results[0].score"),
]


@pytest.mark.parametrize(("sent", "code", "param"), FAULTS)
def test_fault_of_a_hosted_item_names_its_place(sent: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_item(sent, "x")
    assert summarize_error(caught.value) == (400, code, param)


def test_output_of_hosted_tools_becomes_input_even_if_it_is_incomplete() -> None:
    error = McpHttpError(code=503, message="x")
    output = (
        McpCall(id="mcp_1", server_label="s", name="f", arguments="{", status="incomplete", error=error, output=None),
        WebSearchCall(id="ws_1", status="incomplete"),
        CodeInterpreterCall(id="ci_1", code="1", container_id="c", outputs=[], status="completed"),
    )
    assert list(output_as_input(output)) == [
        InputMcpCall(
            id="mcp_1", server_label="s", name="f", arguments="{", status="incomplete", error=msgspec.to_builtins(error)
        ),
        InputWebSearchCall(id="ws_1", status="incomplete"),
        InputCodeCall(id="ci_1", code="1", container_id="c", outputs=(), status="completed"),
    ]


class ChainHistory(FakeHistory):
    """A history whose chain holds the given items."""

    def __init__(self, *items: AnyInput) -> None:
        super().__init__({})
        self.items_before_input = lambda *_: items


def read_behind(*earlier: dict[str, Any], sent: list[dict[str, Any]]) -> TurnSpec:
    body = {"model": "tiny", "previous_response_id": "resp_1", "input": sent}
    history = ChainHistory(*(read_item(item, "x") for item in earlier))
    return read_responses_request(parse_object(msgspec.json.encode(body)), make_registry(), history).spec


def test_items_that_are_sent_once_are_no_duplicates() -> None:
    assert len(read_input([REQUEST, ANSWER, {**CALL, "id": "mcpr_1", "approval_request_id": "mcpr_1"}], lambda _: None).items) == 3  # fmt: skip
    assert len(read_input([{**ANSWER, "approval_request_id": name} for name in ("a", "b")], lambda _: None).items) == 2
    assert len(read_behind(HI, REQUEST, sent=[ANSWER]).prompt_input.items) == 3
    twice = read_behind(HI, CALL, CALL, sent=[{**HI, "id": "msg_1"}])
    assert len(twice.prompt_input.items) == 4, "what earlier turns accepted stays"


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ([REQUEST, REQUEST], "Duplicate item found with id mcpr_1. Remove duplicate items from your input and try again."),
        ([CALL, HI, CALL], "Duplicate item found with id mcp_1."),
        (
            [REQUEST, {**ANSWER, "id": "mcprs_1"}, {**ANSWER, "id": "mcprs_2", "approve": False}],
            "Duplicate approval response found for request mcpr_1. Remove duplicate items from your input and try again.",
        ),
    ],
)  # fmt: skip
def test_item_that_is_sent_twice_is_refused(sent: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ApiError, match=message) as caught:
        read_input(sent, lambda _: None, "items")
    assert summarize_error(caught.value) == (400, None, "items")


@pytest.mark.parametrize(
    ("earlier", "sent", "message"),
    [
        ([REQUEST], [REQUEST, ANSWER], "Duplicate item found with id mcpr_1. Remove duplicate items from your input and try again."),
        ([REQUEST, ANSWER, CALL], [CALL], "Duplicate item found with id mcp_1."),
        ([REQUEST, ANSWER, CALL], [ANSWER], "Duplicate approval response found for request mcpr_1."),
        ([REQUEST, {**ANSWER, "approve": False}], [HI, ANSWER], "Duplicate approval response found for request mcpr_1."),
    ],
)  # fmt: skip
def test_item_that_the_chain_holds_is_refused(
    earlier: list[dict[str, Any]], sent: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(ApiError, match=message) as caught:
        read_behind(HI, *earlier, sent=sent)
    assert summarize_error(caught.value) == (400, None, "input")


LIST = {
    "type": "mcp_list_tools",
    "id": "mcpl_1",
    "server_label": "dice",
    "error": None,
    "tools": [{"name": "roll", "annotations": None, "input_schema": {}, "description": None}],
}
RUN = {**CALL, "approval_request_id": "mcpr_1", "error": None, "output": "rolled 4", "status": "completed"}
SEARCH = {
    "type": "web_search_call",
    "id": "ws_1",
    "status": "completed",
    "action": {"type": "search", "query": "dice", "queries": None, "sources": None},
}
ANSWERED = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Four.", "annotations": [], "logprobs": []}],
}
AGAIN = {"role": "user", "content": "again"}
TURNS: list[tuple[list[dict[str, Any]], list[str], list[str]]] = [
    ([HI, LIST, REQUEST], ["dice__roll", "did not approve"], ["rolled"]),
    ([HI, LIST, REQUEST, ANSWER], [], ["dice__roll", "did not approve", "not run"]),
    ([HI, LIST, REQUEST, ANSWER, RUN, ANSWERED, AGAIN], ["dice__roll", "rolled 4", "Four.", "again"], ["did not approve"]),
    ([HI, SEARCH, ANSWERED, AGAIN], ["web_search", "dice", "no longer available", "Four.", "again"], []),
]  # fmt: skip
"""Inputs of a client that resends all items, as LangChain does; what the prompt has, in this order, and has not."""


@pytest.mark.parametrize("name", ["embedded", "gpt-oss"])
@pytest.mark.parametrize(("sent", "shown", "hidden"), TURNS)
def test_resent_items_are_rendered(name: str, sent: list[dict[str, Any]], shown: list[str], hidden: list[str]) -> None:
    prompt_input = read_responses_spec(input=sent).prompt_input
    model_format = detect.load_format(MODEL_DIR).format if name == "embedded" else detect.bytes_format(name)
    text = model_format.render_prompt(prompt_input, now=datetime(2026, 11, 26, tzinfo=UTC)).text
    places = [text.find(part) for part in shown]
    assert -1 not in places and places == sorted(places)
    assert [part for part in hidden if part in text] == []
