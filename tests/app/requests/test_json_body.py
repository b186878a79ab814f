"""Bytes that are no JSON, or worse: each answers 400 and names what it can."""

import pytest

from antiphon.app.errors import ApiError
from antiphon.app.requests.json_body import MAX_DEPTH, parse_object
from tests.app.requests.request_builders import blame


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
def test_what_is_no_json_is_400_invalid_json(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_object(body)
    assert blame(caught.value) == (400, "invalid_json", None)


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999"])
def test_a_number_that_is_none_names_its_field(number: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_object(b'{"model": "m", "input": [{"a": [1, %b]}]}' % number)
    assert blame(caught.value) == (400, "invalid_value", "input[0].a[1]")


@pytest.mark.parametrize("body", [b"[]", b"1", b'"x"', b"null", b"true"])
def test_only_an_object_is_a_request(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_object(body)
    assert blame(caught.value) == (400, "invalid_type", "body")


def test_the_deepest_body_that_passes() -> None:
    inside = MAX_DEPTH - 1
    assert parse_object(b'{"a":' + b"[" * inside + b"]" * inside + b"}")
    with pytest.raises(ApiError):
        parse_object(b'{"a":' + b"[" * (inside + 1) + b"]" * (inside + 1) + b"}")


def test_of_a_key_that_occurs_twice_the_last_counts() -> None:
    assert parse_object(b'{"a": 1, "a": 2}') == {"a": 2}


def test_an_escaped_nul_is_text() -> None:
    assert parse_object(b'{"a": "x\\u0000y"}') == {"a": "x\0y"}
