"""Integers of requests: every integer field of every endpoint names itself in a 400 for a value out of its bounds."""

from functools import partial
from typing import Any

import httpx
import pytest

from antiphon.app.errors import ApiError
from antiphon.app.requests.chat.body import ChatBody
from antiphon.app.requests.completions.body import TextCompletionBody
from antiphon.app.requests.fields import RequestField, list_fields
from antiphon.app.requests.fields.checks import build_check
from antiphon.app.requests.responses.body import ResponsesBody
from tests.serving import RunningServer, serve

SERVER = partial(serve, [{"name": f"hello {n}", "output": ["Hello."]} for n in range(8)])
OUT_OF_RANGE = (2**31, 2**63, 2**64, 10**30, -(2**31) - 1, -(2**63) - 1, -(10**30))
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
PATHS = {
    "/responses": ({"input": "Hi"}, list_fields(ResponsesBody)),
    "/chat/completions": (CHAT, list_fields(ChatBody)),
    "/completions": ({"prompt": "Hi"}, list_fields(TextCompletionBody)),
}


def is_integer_field(field: RequestField) -> bool:
    """Tells whether a field takes integers and nothing else."""
    try:
        build_check(field.annotation)("text", field.name)
    except ApiError as error:
        return "expected an integer" in error.message
    return False


INTEGER_FIELDS = [
    (path, field.name) for path, (_, fields) in PATHS.items() for field in fields if is_integer_field(field)
]


def test_all_integer_fields_are_found() -> None:
    assert {name for _, name in INTEGER_FIELDS} == {
        *("max_output_tokens", "max_tool_calls", "top_logprobs", "top_k", "seed"),
        *("max_tokens", "max_completion_tokens", "n"),
        *("best_of", "logprobs", "min_tokens", "priority", "prompt_logprobs", "truncate_prompt_tokens"),
    }


@pytest.mark.parametrize("value", OUT_OF_RANGE)
@pytest.mark.parametrize(("path", "name"), INTEGER_FIELDS)
def test_integer_out_of_range_is_rejected_by_name(server: RunningServer, path: str, name: str, value: int) -> None:
    body = {"model": "scripted", **PATHS[path][0], name: value}
    reply = httpx.post(server.url + path, json=body)
    if name == "seed" and -(2**63) <= value < 2**63:
        assert reply.status_code == 200
    else:
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, name)


@pytest.mark.parametrize("digits", [5_000, 100_000])
@pytest.mark.parametrize(("path", "name"), [*INTEGER_FIELDS, ("/responses", "temperature"), ("/responses", "metadata")])
def test_integer_with_thousands_of_digits_is_rejected(server: RunningServer, path: str, name: str, digits: int) -> None:
    fields = ", ".join(f"{key!r}: {value!r}" for key, value in PATHS[path][0].items()).replace("'", '"')
    body = f'{{"model": "scripted", {fields}, "{name}": {"9" * digits}}}'
    reply = httpx.post(server.url + path, content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    assert len(reply.text) < 1_000


@pytest.mark.parametrize("token", [str(2**31), str(2**64), "-1", "1" * 5_000])
@pytest.mark.parametrize("path", PATHS)
def test_token_id_of_logit_bias_out_of_range_is_rejected(server: RunningServer, path: str, token: str) -> None:
    body: dict[str, Any] = {"model": "scripted", **PATHS[path][0], "logit_bias": {token: 1}}
    reply = httpx.post(server.url + path, json=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].startswith("logit_bias.")


@pytest.mark.parametrize("value", [str(2**64), "9" * 5_000, "-" + "9" * 30])
def test_starting_after_out_of_range_is_rejected(server: RunningServer, value: str) -> None:
    made = httpx.post(f"{server.url}/responses", json={"model": "scripted", "input": "Hi"}).json()
    query = {"stream": "true", "starting_after": value}
    reply = httpx.get(f"{server.url}/responses/{made['id']}", params=query)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "starting_after")
