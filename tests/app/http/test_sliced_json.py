"""Decoding of large bodies in slices: the values and the errors are those of the decoder in one call."""

import json
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from antiphon.app.errors import ApiError
from antiphon.app.http import sliced_json
from antiphon.app.http.sliced_json import decode_in_slices
from antiphon.app.requests.json_body import parse_object
from tests.counts import FULL_COUNTS

SCALARS: list[Any] = [1, 2.5, True, None, "a,b", 'x"y\\', "[{", "é", "", "\\"]
KEYS = ["a", "b", "{", 'k"', "é"]
DAMAGE = b',[]{}":\\1 '


def make_value(depth: int, dice: random.Random) -> Any:
    kind = dice.random()
    if depth == 0 or kind < 0.3:
        return dice.choice(SCALARS)
    children = [make_value(depth - 1, dice) for _ in range(dice.randrange(5))]
    return children if kind < 0.65 else {f"{dice.choice(KEYS)}{dice.randrange(9)}": child for child in children}


def make_body(dice: random.Random) -> bytes:
    """Returns a JSON object with keys that may occur twice; half of them have one to three wrong characters."""
    value = {"a": make_value(5, dice), "b": [make_value(4, dice) for _ in range(4)]}
    text = json.dumps(value, indent=dice.choice([None, None, 1]), ensure_ascii=dice.random() < 0.5)
    body = bytearray(text.replace('"b', '"a', dice.randrange(2)).encode())
    for _ in range(dice.choice([0, 0, 1, 2, 3])):
        place = dice.randrange(len(body))
        body[place : place + dice.randrange(2)] = bytes([dice.choice(DAMAGE)]) * dice.randrange(2)
    return bytes(body)


def read(decode: Callable[[bytes], Any], body: bytes) -> str:
    """Returns the value as text, which shows the order of keys; "error" if there is none."""
    try:
        value = decode(body)
    except (ApiError, msgspec.DecodeError, UnicodeDecodeError):
        return "error"
    return json.dumps(value) if isinstance(value, dict) else "error"


@pytest.mark.parametrize("seed", range(40 if FULL_COUNTS else 4))
def test_slices_of_any_size_give_what_one_call_gives(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)
    for _ in range(250):
        monkeypatch.setattr(sliced_json, "SLICE_VALUES", dice.choice([1, 2, 3, 5, 10]))
        monkeypatch.setattr(sliced_json, "SCAN_BYTES", dice.choice([2, 3, 7, 1000]))
        body = make_body(dice)
        assert read(decode_in_slices, body) == read(parse_object, body), body


def test_no_call_decodes_many_values(monkeypatch: pytest.MonkeyPatch) -> None:
    slices: list[bytes] = []
    decoder = sliced_json._decoder

    class CountingDecoder:
        def decode(self, body: bytes) -> Any:
            slices.append(body)
            return decoder.decode(body)

    monkeypatch.setattr(sliced_json, "_decoder", CountingDecoder())
    items = [{"role": "user", "content": [{"type": "input_text", "text": "a, b"}]} for _ in range(12_000)]
    body = {"model": "m", "input": items, "metadata": {f"k{number}": "v" for number in range(25_000)}, "stream": True}
    assert decode_in_slices(json.dumps(body).encode()) == body
    assert len(slices) > 3 and max(part.count(b",") for part in slices) < 2.5 * sliced_json.SLICE_VALUES


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        (b'{"input": [' + b"{}," * 1_000_000, "300000 objects and arrays"),
        (b'{"input": [' + b"1," * 1_000_001, "1000000 values"),
        (b'{"metadata": {' + b",".join(b'"k%d":1' % n for n in range(130_000)) + b"}}", "100000 keys"),
    ],
    ids=["objects", "values", "keys"],
)
def test_body_of_too_many_values_is_refused_by_their_number(body: bytes, limit: str) -> None:
    with pytest.raises(ApiError, match=limit) as caught:
        decode_in_slices(body)
    assert (caught.value.status, caught.value.code) == (413, "request_too_large")


def test_error_names_the_byte_of_the_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sliced_json, "SLICE_VALUES", 2)
    body = b'{"a": [1, 2, 3, 4, 5, x, 6]}'
    with pytest.raises(ApiError, match=rf"\(byte {body.index(b'x')}\)"):
        decode_in_slices(body)


@pytest.mark.parametrize("levels", [128, 129])
def test_depth_is_limited_as_in_small_bodies(levels: int) -> None:
    body = b'{"a":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"
    if levels == 128:
        assert decode_in_slices(body) == parse_object(body)
    else:
        with pytest.raises(ApiError, match="128 levels"):
            decode_in_slices(body)
