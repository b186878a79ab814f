"""The choice of a recorded exchange, without a server: what makes two requests the same, and what does not."""

import json
from typing import Any

import pytest

from antiphon.kit.cassette.exchanges import RecordedExchange, RecordedReply, RecordedRequest
from antiphon.kit.cassette.matching import ExchangeMatcher, MatchMode, NoMatchError, find_differences

PATH = "/v1/responses"


def make_request(body: Any, path: str = PATH, method: str = "POST") -> RecordedRequest:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return RecordedRequest(method=method, path=path, body=data)


def make_matcher(*bodies: Any, mode: MatchMode = "body") -> ExchangeMatcher:
    reply = RecordedReply(status=200)
    return ExchangeMatcher([RecordedExchange(request=make_request(body), response=reply) for body in bodies], mode)


def item(**keys: Any) -> dict[str, Any]:
    return {"model": "m", "input": [keys]}


REFERENCE = {"type": "item_reference", "id": "msg_1"}
MESSAGE = {"type": "message", "role": "user", "content": "Hi", "id": "msg_1"}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{}"}
SAME = {
    "order_of_keys": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "number": ({"a": 1}, {"a": 1.0}),
    "user": ({"user": "a"}, {"user": "b"}),
    "cache_key": ({"prompt_cache_key": "a"}, {}),
    "id_of_a_message": (item(**MESSAGE), item(**MESSAGE | {"id": "msg_2"})),
    "id_of_a_call": (item(**CALL), item(**CALL | {"id": "fc_2"})),
    "wall_time": (item(output="Wall time: 1.5 seconds"), item(output="Wall time: 20 seconds")),
    "folder": (item(content="<cwd>/a</cwd>"), item(content="<cwd>/b</cwd>")),
}
DIFFERENT = {
    "item_reference": (item(**REFERENCE), item(**REFERENCE | {"id": "msg_2"})),
    "call_id": (item(**CALL), item(**CALL | {"call_id": "call_2"})),
    "fraction": ({"a": 1}, {"a": 1.5}),
    "true_is_no_number": ({"a": 1}, {"a": True}),
    "id_outside_the_input": ({"metadata": {"id": "1"}}, {"metadata": {"id": "2"}}),
    "user_of_an_item": (item(user="a"), item(user="b")),
    "order_of_items": ({"input": ["a", "b"]}, {"input": ["b", "a"]}),
    "one_item_more": ({"input": ["a"]}, {"input": ["a", "b"]}),
    "other_tags": (item(content="<cwd>/a</cwd>"), item(content="<path>/a</path>")),
    "text_that_is_no_json": (b"one", b"two"),
}


@pytest.mark.parametrize("pair", SAME.values(), ids=SAME)
def test_what_varies_from_run_to_run_does_not_count(pair: tuple[Any, Any]) -> None:
    assert make_matcher({"a": "other"}, pair[0]).find_exchange(make_request(pair[1]))[0] == 2
    if json.dumps(pair[0], sort_keys=True) != json.dumps(pair[1], sort_keys=True) and pair[0] != pair[1]:
        with pytest.raises(NoMatchError):
            make_matcher(pair[0], mode="exact").find_exchange(make_request(pair[1]))


@pytest.mark.parametrize("mode", ["body", "exact"])
@pytest.mark.parametrize("pair", DIFFERENT.values(), ids=DIFFERENT)
def test_what_changes_the_reply_counts(pair: tuple[Any, Any], mode: MatchMode) -> None:
    with pytest.raises(NoMatchError, match="which differs at"):
        make_matcher(pair[0], mode=mode).find_exchange(make_request(pair[1]))
    assert make_matcher(*pair, mode=mode).find_exchange(make_request(pair[1]))[0] == 2


def test_equal_requests_get_their_replies_in_order_then_the_last() -> None:
    matcher = make_matcher("a", "b", "a")
    assert [matcher.find_exchange(make_request("a"))[0] for _ in range(4)] == [1, 3, 3, 3]
    assert matcher.find_exchange(make_request("b"))[0] == 2


def test_in_recorded_order_each_exchange_is_played_once() -> None:
    matcher = make_matcher("a", "b", mode="order")
    assert [matcher.find_exchange(make_request("any"))[0] for _ in range(2)] == [1, 2]
    with pytest.raises(NoMatchError, match="all 2 recorded exchanges of POST /v1/responses have been played"):
        matcher.find_exchange(make_request("a"))


@pytest.mark.parametrize(
    ("method", "path", "is_found"),
    [
        ("POST", PATH, True),
        ("POST", f"{PATH}/", True),
        ("GET", PATH, False),
        ("POST", "/v1/conversations", False),
        ("POST", f"{PATH}?a=1", False),
    ],
)
def test_method_and_path_count(method: str, path: str, is_found: bool) -> None:
    matcher = make_matcher("a", mode="order")
    if is_found:
        assert matcher.find_exchange(make_request("a", path, method))[0] == 1
    else:
        with pytest.raises(NoMatchError, match=r"was recorded; recorded: POST /v1/responses"):
            matcher.find_exchange(make_request("a", path, method))


@pytest.mark.parametrize(("asked", "is_found"), [("a=1&b=", True), ("b=&a=1", True), ("a=1", False), ("a=2&b=", False)])
def test_order_of_the_query_does_not_count(asked: str, is_found: bool) -> None:
    exchange = RecordedExchange(request=make_request(b"", f"{PATH}?a=1&b="), response=RecordedReply(status=200))
    matcher = ExchangeMatcher([exchange])
    if is_found:
        assert matcher.find_exchange(make_request(b"", f"{PATH}?{asked}"))[0] == 1
    else:
        with pytest.raises(NoMatchError):
            matcher.find_exchange(make_request(b"", f"{PATH}?{asked}"))


@pytest.mark.parametrize(
    ("recorded", "asked", "expected"),
    [
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, [("a.b[1]", "2", "3")]),
        ({"a": [1]}, {"a": [1, 2]}, [("a[1]", "nothing", "2")]),
        ({"a": [1, 2]}, {"a": [1]}, [("a[1]", "2", "nothing")]),
        ({"a": 1}, {"b": 1}, [("a", "1", "nothing"), ("b", "nothing", "1")]),
        ({"a": [1]}, {"a": {"0": 1}}, [("a", "[1]", '{"0":1}')]),
        ({"a": 1}, {"a": 1.0}, []),
        ("x", ["x"], [("", '"x"', '["x"]')]),
    ],
)
def test_differences_name_their_place(recorded: Any, asked: Any, expected: list[tuple[str, str, str]]) -> None:
    assert list(find_differences(recorded, asked)) == expected


def test_long_texts_are_shown_around_their_difference() -> None:
    ((_, recorded, asked),) = find_differences("a" * 200 + "b", "a" * 200 + "c")
    assert recorded == '"…' + "a" * 30 + 'b"' and asked == '"…' + "a" * 30 + 'c"'


def test_nearest_exchange_is_named() -> None:
    matcher = make_matcher({"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 2, "c": 1}, {"a": 3, "b": 3, "c": 3})
    with pytest.raises(NoMatchError, match="the nearest is exchange 2, which differs at c: recorded 1, but got 5"):
        matcher.find_exchange(make_request({"a": 2, "b": 2, "c": 5}))
