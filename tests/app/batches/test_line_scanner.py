"""The scanner of input files: every fault with its line number, and the same lines however the file is cut."""

import itertools
import json
import random
from typing import Any

import pytest

from antiphon.app.batches.line_scanner import (
    COMPARED_BYTES,
    MAX_BATCH_LINE_BYTES,
    MAX_LINE_ERRORS,
    LineScanner,
    decode_line_body,
)
from antiphon.app.store.batches.records import BatchLine

ENDPOINT = "/v1/responses"


def make_line(custom_id: Any, /, body: Any = None, **changes: Any) -> bytes:
    line = {"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": {"model": "m"} if body is None else body}
    kept = {key: value for key, value in {**line, **changes}.items() if value is not ...}
    return json.dumps(kept).encode()


def scan(content: bytes, cuts: list[int] | None = None, **limits: Any) -> LineScanner:
    """Returns a scanner that has read the whole content in pieces that begin at `cuts`."""
    scanner = LineScanner(ENDPOINT, **limits)
    places = [0, *(cuts or []), len(content)]
    for start, end in itertools.pairwise(places):
        scanner.feed(content[start:end])
    scanner.finish()
    return scanner


def read_back(content: bytes, line: BatchLine) -> Any:
    return json.loads(content[line.start : line.start + line.length])


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_lines_are_found_where_they_are(line_end: bytes, mark: bytes) -> None:
    lines = [make_line("a"), b"", make_line("b", {"model": "n", "input": "\u00e9\u2028"}), b"  ", make_line("c", {})]
    content = mark + line_end.join(lines)
    for seed in range(30):
        dice = random.Random(seed)
        cuts = sorted(dice.randrange(len(content)) for _ in range(dice.randrange(12)))
        scanner = scan(content, cuts)
        assert not scanner.errors and scanner.total == 3
        assert [(line.number, line.custom_id, line.model) for line in scanner.lines] == [
            (1, "a", "m"), (3, "b", "n"), (5, "c", None)
        ]  # fmt: skip
        assert [read_back(content, line)["custom_id"] for line in scanner.lines] == ["a", "b", "c"]
        assert scanner.models == {"m", "n", None}


FAULTS: dict[str, tuple[bytes, str, str | None]] = {
    "no JSON": (b"nope", "invalid_json_line", None),
    "no object": (b"[1]", "invalid_json_line", None),
    "not UTF-8": (b'{"custom_id":"\xff"}', "invalid_json_line", None),
    "deep": (b"[" * 100_000, "invalid_json_line", None),
    "cut": (make_line("x")[:-1], "invalid_json_line", None),
    "unknown key": (make_line("x", priority=1), "invalid_json_line", None),
    "no custom_id": (make_line("x", custom_id=...), "missing_required_parameter", "custom_id"),
    "empty custom_id": (make_line(""), "missing_required_parameter", "custom_id"),
    "no method": (make_line("x", method=...), "missing_required_parameter", "method"),
    "no url": (make_line("x", url=...), "missing_required_parameter", "url"),
    "no body": (make_line("x", body=...), "missing_required_parameter", "body"),
    "null body": (b'{"custom_id":"x","method":"POST","url":"/v1/responses","body":null}', "missing_required_parameter", "body"),
    "custom_id of another type": (make_line("x", custom_id=7), "invalid_custom_id", "custom_id"),
    "long custom_id": (make_line("x" * 513), "invalid_custom_id", "custom_id"),
    "same custom_id": (make_line("first"), "duplicate_custom_id", "custom_id"),
    "another method": (make_line("x", method="GET"), "invalid_method", "method"),
    "another URL": (make_line("x", url="/v1/embeddings"), "invalid_url", "url"),
    "too long": (make_line("x", {"input": "a" * MAX_BATCH_LINE_BYTES}), "line_too_long", None),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("num_cuts", [0, 5, 40])
def test_fault_has_its_code_and_line(name: str, num_cuts: int) -> None:
    faulty, code, param = FAULTS[name]
    content = b"\n".join([make_line("first"), b"", faulty, make_line("last")])
    dice = random.Random(name)
    scanner = scan(content, sorted(dice.randrange(len(content)) for _ in range(num_cuts)))
    assert [(error.code, error.param, error.line) for error in scanner.errors] == [(code, param, 3)]
    assert [line.custom_id for line in scanner.lines] == ["first", "last"]
    assert [read_back(content, line)["custom_id"] for line in scanner.lines] == ["first", "last"]


def test_only_the_first_faults_are_reported() -> None:
    scanner = scan(b"x\n" * 1000)
    assert [error.line for error in scanner.finish()] == list(range(1, MAX_LINE_ERRORS + 1))


@pytest.mark.parametrize("content", [b"", b"\n\r\n  \n", b"\xef\xbb\xbf"])
def test_file_without_requests_is_a_fault(content: bytes) -> None:
    assert [(error.code, error.line) for error in scan(content).errors] == [("empty_file", None)]


def test_number_of_lines_is_limited() -> None:
    content = b"\n".join(make_line(str(number)) for number in range(4))
    assert not scan(content, max_lines=4).errors
    assert [(error.code, error.line) for error in scan(content, max_lines=3).errors] == [("too_many_tasks", None)]


def test_lines_with_the_same_begin_follow_each_other() -> None:
    """Ranks put them behind the first line of their kind; others keep their order."""
    prompts = ["p" * COMPARED_BYTES, "q" * COMPARED_BYTES]
    bodies = [{"instructions": prompts[number % 2], "input": str(number)} for number in range(6)]
    content = b"\n".join([*(make_line(str(number), body) for number, body in enumerate(bodies)), make_line("end")])
    lines = sorted(scan(content).lines, key=lambda line: line.rank)
    assert [line.custom_id for line in lines] == ["0", "2", "4", "1", "3", "5", "end"]


def test_body_is_passed_on_as_it_was_sent() -> None:
    line = b'{"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": {"a" : 1.0, "a":2e1}}'
    assert decode_line_body(line) == b'{"a" : 1.0, "a":2e1}'
