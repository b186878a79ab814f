"""Outputs of earlier turns as input of the next turn, for every case, through both endpoints."""

import pytest

from tests.clients.sdk_helpers import CASES, FOLLOW_UP_TEXT, Case, Json, chat_body, post, responses_body
from tests.serving import RunningServer

UNCANCELLED_CASES = [pytest.param(case, id=case.name) for case in CASES if not case.refused and not case.cancel]
ANSWERED_CASES = [param for param in UNCANCELLED_CASES if not param.values[0].fails]  # type: ignore[attr-defined]
FAILING_CASES = [param for param in UNCANCELLED_CASES if param.values[0].fails]  # type: ignore[attr-defined]
FOLLOW_UP = {"role": "user", "content": FOLLOW_UP_TEXT}


def make_call_outputs(items: list[Json]) -> list[Json]:
    """Returns an output for every call among the items. Clients answer incomplete calls too."""
    return [
        {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "done"}
        for item in items
        if item["type"] in ("function_call", "custom_tool_call")
    ]


@pytest.mark.parametrize("case", UNCANCELLED_CASES)
def test_response_output_is_accepted_as_input(case_server: RunningServer, case: Case) -> None:
    body = responses_body(case)
    first = post(f"{case_server.url}/responses", json=body).json()
    history = [{"role": "user", "content": "Hello."}, *first["output"], *make_call_outputs(first["output"]), FOLLOW_UP]
    second = post(f"{case_server.url}/responses", json=body | {"input": history})
    assert second.status_code == 200, second.text
    assert second.json()["status"] == "completed"
    streamed = post(f"{case_server.url}/responses", json=body | {"input": history, "stream": True})
    assert streamed.status_code == 200, streamed.text


@pytest.mark.parametrize("case", UNCANCELLED_CASES)
def test_completed_items_can_be_referenced_by_id(case_server: RunningServer, case: Case) -> None:
    body = responses_body(case)
    first = post(f"{case_server.url}/responses", json=body).json()
    completed = [item for item in first["output"] if item["status"] == "completed"]
    references = [{"type": "item_reference", "id": item["id"]} for item in completed]
    history = [{"role": "user", "content": "Hello."}, *references, *make_call_outputs(completed), FOLLOW_UP]
    second = post(f"{case_server.url}/responses", json=body | {"input": history})
    assert second.status_code == 200, second.text


@pytest.mark.parametrize("case", FAILING_CASES)
def test_failed_chat_turn_is_an_error_without_a_message(case_server: RunningServer, case: Case) -> None:
    reply = post(f"{case_server.url}/chat/completions", json=chat_body(case))
    assert reply.status_code == 500 and set(reply.json()) == {"error"}


@pytest.mark.parametrize("case", ANSWERED_CASES)
def test_chat_message_is_accepted_as_history(case_server: RunningServer, case: Case) -> None:
    body = chat_body(case)
    first = post(f"{case_server.url}/chat/completions", json=body)
    assert first.status_code == 200, first.text
    message = first.json()["choices"][0]["message"]
    tool_messages = [
        {"role": "tool", "tool_call_id": call["id"], "content": "done"} for call in message.get("tool_calls") or []
    ]
    history = [{"role": "user", "content": "Hello."}, message, *tool_messages, FOLLOW_UP]
    second = post(f"{case_server.url}/chat/completions", json=body | {"messages": history})
    assert second.status_code == 200, second.text
