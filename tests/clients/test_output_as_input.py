"""Whatever this server replied can be sent back to it: the next turn of a conversation is never refused for the last."""

import pytest

from tests.clients.sdk_helpers import AFTER, CASES, Case, Json, chat_body, post, responses_body
from tests.serving import RunningServer

ENDING = [pytest.param(case, id=case.name) for case in CASES if not case.refused and not case.cancel]
MORE = {"role": "user", "content": AFTER}


def outputs(items: list[Json]) -> list[Json]:
    """An answer to every call among the items, half ones too: clients answer what they see."""
    return [
        {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "done"}
        for item in items
        if item["type"] in ("function_call", "custom_tool_call")
    ]


@pytest.mark.parametrize("case", ENDING)
def test_the_output_of_a_response_is_accepted_as_input(house: RunningServer, case: Case) -> None:
    body = responses_body(case)
    first = post(f"{house.url}/responses", json=body).json()
    again = [{"role": "user", "content": "Hello."}, *first["output"], *outputs(first["output"]), MORE]
    second = post(f"{house.url}/responses", json=body | {"input": again})
    assert second.status_code == 200, second.text
    assert second.json()["status"] == "completed"
    streamed = post(f"{house.url}/responses", json=body | {"input": again, "stream": True})
    assert streamed.status_code == 200, streamed.text


@pytest.mark.parametrize("case", ENDING)
def test_items_that_were_done_can_be_referred_to(house: RunningServer, case: Case) -> None:
    body = responses_body(case)
    first = post(f"{house.url}/responses", json=body).json()
    done = [item for item in first["output"] if item["status"] == "completed"]
    references = [{"type": "item_reference", "id": item["id"]} for item in done]
    again = [{"role": "user", "content": "Hello."}, *references, *outputs(done), MORE]
    second = post(f"{house.url}/responses", json=body | {"input": again})
    assert second.status_code == 200, second.text


@pytest.mark.parametrize("case", ENDING)
def test_the_message_of_a_chat_reply_is_accepted_as_history(house: RunningServer, case: Case) -> None:
    body = chat_body(case)
    first = post(f"{house.url}/chat/completions", json=body)
    if first.status_code == 500:
        return
    message = first.json()["choices"][0]["message"]
    answers = [
        {"role": "tool", "tool_call_id": call["id"], "content": "done"} for call in message.get("tool_calls") or []
    ]
    again = [{"role": "user", "content": "Hello."}, message, *answers, MORE]
    second = post(f"{house.url}/chat/completions", json=body | {"messages": again})
    assert second.status_code == 200, second.text
