"""Request bodies that are invalid JSON, too deep, or not an object: each is a 400 that names its field if it has one."""

from collections.abc import Callable
from typing import Any

import pytest

from antiphon.app.errors import ApiError
from antiphon.app.requests.json_body import MAX_BODY_DEPTH, MAX_ECHOED_BYTES, check_echoed_sizes, parse_object
from tests.app.requests.request_builders import summarize_error


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00",
        b"{} x",
        b'{"a":',
        b"\xef\xbb\xbf{}",
        '{"a": 1}'.encode("utf-16"),
        b'{"a": "\xff"}',
        b'{"a": "\\ud800"}',
        b'{"a": "\x00"}',
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 900 + b"1" + b"}" * 900,
        b"9" * 5000,
    ],
)
def test_invalid_json_is_rejected(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_object(body)
    assert summarize_error(caught.value) == (400, "invalid_json", None)


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999"])
def test_non_finite_number_names_its_field(number: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_object(b'{"model": "m", "input": [{"a": [1, %b]}]}' % number)
    assert summarize_error(caught.value) == (400, "invalid_value", "input[0].a[1]")


@pytest.mark.parametrize("body", [b"[]", b"1", b'"x"', b"null", b"true"])
def test_body_that_is_no_object_is_rejected(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_object(body)
    assert summarize_error(caught.value) == (400, "invalid_json", None)


def test_nesting_depth_is_limited() -> None:
    depth = MAX_BODY_DEPTH - 1
    assert parse_object(b'{"a":' + b"[" * depth + b"]" * depth + b"}")
    with pytest.raises(ApiError):
        parse_object(b'{"a":' + b"[" * (depth + 1) + b"]" * (depth + 1) + b"}")


def test_last_of_duplicate_keys_is_used() -> None:
    assert parse_object(b'{"a": 1, "a": 2}') == {"a": 2}


def test_escaped_nul_is_accepted() -> None:
    assert parse_object(b'{"a": "x\\u0000y"}') == {"a": "x\0y"}


@pytest.mark.parametrize("name", ["tools", "tool_choice", "text"])
@pytest.mark.parametrize(
    "make",
    [
        lambda size: "x" * (size - 3),
        lambda size: ["é" * 10, *([1] * ((size - 26) // 2 + 1))],
        lambda size: {"a": {"k" * (size - 11): True}},
    ],
    ids=["one text", "many values", "one key"],
)
def test_fields_that_replies_repeat_have_a_size(name: str, make: Callable[[int], Any]) -> None:
    check_echoed_sizes({name: make(MAX_ECHOED_BYTES - 20), "input": "x" * (MAX_ECHOED_BYTES + 1)})
    with pytest.raises(ApiError) as caught:
        check_echoed_sizes({name: make(MAX_ECHOED_BYTES + 20)})
    assert summarize_error(caught.value) == (400, "invalid_value", name)
