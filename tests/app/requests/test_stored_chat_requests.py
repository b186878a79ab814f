"""What chat requests say about storage: the messages to store, ids, and the queries of lists."""

from typing import Any

import pytest

from antiphon.app.errors import ApiError
from antiphon.app.requests.chat.request import read_chat_request
from antiphon.app.requests.chat.stored import CompletionsQuery, read_completion_id, select_completions
from antiphon.app.requests.query_fields import decode_query
from antiphon.app.requests.turn_spec import TurnSpec
from tests.serving import scripted_registry


def read_spec(**fields: Any) -> TurnSpec:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Hi", "other": 1}], **fields}
    return read_chat_request(body, scripted_registry([{"name": "any", "output": ["Yes."]}])).spec


@pytest.mark.parametrize("store", [None, False])
def test_chat_is_not_stored_by_default(store: bool | None) -> None:
    spec = read_spec(store=store)
    assert spec.stored_chat is None and not spec.base_response.store


def test_stored_chat_keeps_the_messages_without_unknown_keys() -> None:
    spec = read_spec(store=True, metadata={"a": "1"})
    assert spec.stored_chat is not None and spec.base_response.store
    assert spec.stored_chat.messages == ({"role": "user", "content": "Hi"},)
    assert spec.base_response.metadata == {"a": "1"}


@pytest.mark.parametrize(
    "sent", ["", "chatcmpl-", "chatcmpl_1", "resp_1", "chatcmpl-a/b", "chatcmpl-1\n", "chatcmpl-" + "1" * 65]
)
def test_malformed_completion_id_is_none(sent: str) -> None:
    assert read_completion_id(sent) is None and read_completion_id("chatcmpl-1f") == "chatcmpl_1f"


def read_completion_query(query: dict[str, str]) -> CompletionsQuery:
    return select_completions(decode_query(CompletionsQuery, query.items()))


def test_query_of_completions_has_defaults() -> None:
    assert read_completion_query({}) == CompletionsQuery(limit=20)
    query = {
        "limit": "100",
        "order": "desc",
        "after": "chatcmpl-1",
        "model": "m",
        "metadata[a]": "1",
        "metadata[b]c]": "",
    }
    assert read_completion_query(query) == CompletionsQuery(
        limit=100, order="desc", after="chatcmpl_1", model="m", metadata={"a": "1", "b]c": ""}
    )


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "101"}, "limit"),
        ({"limit": "1.5"}, "limit"),
        ({"order": "newest"}, "order"),
        ({"metadata": "a"}, "metadata"),
        ({f"metadata[{number}]": "" for number in range(17)}, "metadata"),
        ({"metadata[a]": "x" * 513}, "metadata.a"),
    ],
)
def test_bad_query_of_completions_names_its_parameter(query: dict[str, str], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_completion_query(query)
    assert (caught.value.status, caught.value.param) == (400, param)
