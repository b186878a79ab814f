"""The text of a cassette: what is written is read back, and what is wrong is told in one line."""

import random
import tomllib

import pytest

from antiphon.kit.cassette.exchanges import RecordedExchange, RecordedFrame, RecordedReply, RecordedRequest
from antiphon.kit.cassette.frames import build_frame, describe_frame
from antiphon.kit.cassette.reading import CassetteError, parse_cassette
from antiphon.kit.cassette.toml_text import CASSETTE_HEADER, format_exchange, format_string
from antiphon.kit.faults import WireFault
from antiphon.kit.faults.frames import FrameSplitter
from tests.counts import FULL_COUNTS

ALPHABET = [
    "'",
    '"',
    "\\",
    "\n",
    "\r",
    "\t",
    "\x00",
    "\x7f",
    "a",
    " ",
    "{",
    "ä",
    "\u2028",
    "\U0001f600",
    "''",
    '""',
    "}",
]
TEXTS = 20_000 if FULL_COUNTS else 2000


@pytest.mark.parametrize("is_block", [False, True])
def test_any_text_is_read_back(is_block: bool) -> None:
    random_texts = random.Random(7)
    for _ in range(TEXTS):
        text = "".join(random_texts.choices(ALPHABET, k=random_texts.randrange(8)))
        assert tomllib.loads(f"x = {format_string(text, is_block=is_block)}")["x"] == text, repr(text)


def test_json_stands_without_escapes() -> None:
    assert format_string('{"a":"b\\n"}') == """'{"a":"b\\n"}'"""
    assert format_string('{"a":"it\'s"}') == """'''{"a":"it's"}'''"""


def test_any_stream_is_read_back() -> None:
    pieces = [b"data: ", b"event: x", b": c", b"\n", b"\n\n", b"\r\n", b"{}", b'{"type":"x"}', b"\xff", b"'", b" "]
    random_pieces = random.Random(8)
    for _ in range(TEXTS):
        data = b"".join(random_pieces.choices(pieces, k=random_pieces.randrange(12)))
        splitter = FrameSplitter()
        half = len(data) // 2
        frames = [*splitter.feed(data[:half]), *splitter.feed(data[half:]), splitter.take_rest()]
        assert b"".join(frames) == data
        assert b"".join(build_frame(describe_frame(frame)) for frame in frames if frame) == data


def test_exchange_is_read_back() -> None:
    exchange = RecordedExchange(
        name="it's",
        fault=WireFault(kind="status", status=429, retry_after=1.5, times=2),
        request=RecordedRequest(method="POST", path="/v1/x?a=1", headers=(("accept", "a"),), body=b'{"a":[1,2]}'),
        response=RecordedReply(
            status=200,
            at_ms=3,
            headers=(("x-two", "1"), ("x-two", '"2"'), ("content-type", "text/event-stream")),
            frames=(RecordedFrame(1, b": hi\n\n"), RecordedFrame(2, b'event: a\ndata: {"type":"b"}\n\n')),
            ended="cut",
        ),
    )
    plain = RecordedExchange(
        request=RecordedRequest(method="GET", path="/"), response=RecordedReply(status=404, body=b"\x00\xff")
    )
    text = CASSETTE_HEADER + format_exchange(exchange) + format_exchange(plain)
    assert parse_cassette(text) == [exchange, plain]


@pytest.mark.parametrize(
    ("body", "key"),
    [
        (b'{"a":1,"b":["\xc3\xa4"]}', "json = "),
        (b'{"a": 1}', "text = "),
        (b'{"a":1.50}', "text = "),
        (b'{"a":"\\u00e4"}', "text = "),
        (b"plain", "text = "),
        (b"\xff", "base64 = "),
    ],
)
def test_body_of_a_reply_is_read_back_byte_for_byte(body: bytes, key: str) -> None:
    exchange = RecordedExchange(
        request=RecordedRequest(method="GET", path="/"), response=RecordedReply(status=200, body=body)
    )
    text = format_exchange(exchange)
    assert key in text
    assert parse_cassette(CASSETTE_HEADER + text)[0].response.body == body


GOOD = """version = 1
[[exchange]]
[exchange.request]
method = "POST"
path = "/v1/responses"
[exchange.response]
status = 200
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version = 1\nx", "no TOML: "),
        ("", "version is None; this program reads version = 1"),
        ("version = 1\nother = 2", "unknown key 'other'"),
        (GOOD.replace("200", '"200"'), "exchange 1 (POST /v1/responses): Expected int, got str - at response.status"),
        (GOOD.replace("200", "99"), "exchange 1 (POST /v1/responses): response.status is 99"),
        (GOOD + "body = 1", "exchange 1 (POST /v1/responses): Object contains unknown field body - at response"),
        (GOOD + "json = '{'", "exchange 1 (POST /v1/responses): response.json: Expecting property name"),
        (GOOD + "base64 = '*'", "exchange 1 (POST /v1/responses): response.base64: "),
        (GOOD + "json = '1'\ntext = '1'", "response has json and text; write one of them"),
        (GOOD + "text = ''\nevents = []", "response has events and a body; write one of them"),
        (GOOD + "events = [{ at_ms = 1 }]", "response.events[0] must have one of data, comment, raw, base64"),
        (GOOD + "events = [{ data = '', raw = '' }]", "response.events[0] must have one of"),
        (GOOD + "events = [{ comment = '', event = '' }]", "response.events[0] has event without data"),
        (GOOD + "events = [{ data = 1 }]", "Expected str | null, got int - at response.events[0].data"),
        (GOOD + "ended = 'never'", "Invalid enum value 'never' - at response.ended"),
        (GOOD + "headers = { 'a b' = '' }", "response.headers.a b is no HTTP header"),
        (GOOD + 'headers = { a = "x\\ny" }', "response.headers.a is no HTTP header"),
        (GOOD + "headers = { Content-Length = '1' }", "response.headers.Content-Length is set by the server; remove it"),
        (GOOD.replace("[exchange.request]", "fault = { kind = 'x' }\n[exchange.request]"), "exchange 1 (POST /v1/responses): fault: "),
        (GOOD.replace("[exchange.request]", "fault = { kind = 'cut' }\n[exchange.request]"), "the fault cut applies to streams only"),
        (GOOD + "[[exchange]]\n[exchange.response]\nstatus = 200", "exchange 2: Object missing required field request"),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_one_line(text: str, message: str) -> None:
    with pytest.raises(CassetteError) as caught:
        parse_cassette(text)
    assert message in str(caught.value) and "\n" not in str(caught.value)
