"""Lines of JSON: Python's `splitlines` finds as many lines as were written."""

import json

import msgspec
import pytest

from antiphon.events.json_lines import encode_json_line, escape_line_separators

TEXT = "a\u2028b\u2029c\x85d \u2026 é\n\r\x0b\x0c\x1c\x1d\x1e"


@pytest.mark.parametrize("value", [TEXT, {TEXT: [TEXT]}, msgspec.Raw(json.dumps(TEXT, ensure_ascii=False).encode())])
def test_line_is_one_line_of_the_same_value(value: object) -> None:
    line = encode_json_line(value)
    assert line.endswith(b"\n") and len(line.decode().splitlines()) == line.count(b"\n") == 1
    assert json.loads(line) == (TEXT if isinstance(value, msgspec.Raw) else value)


def test_other_characters_stay() -> None:
    text = json.dumps("é\u2026\u2027\u202a\x84\x86😀", ensure_ascii=False).encode()
    assert escape_line_separators(text) == text
