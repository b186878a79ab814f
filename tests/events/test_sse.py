"""Framing: LF only, one event line, one data line, one blank line, all in one piece."""

import json

import pytest

from antiphon.events import sse
from antiphon.events.response import Response
from antiphon.events.stream import Created, TextDelta

HOSTILE = [
    "line\nfeed",
    "carriage\r\nreturn",
    "data: x\n\nevent: y",
    "\u2028\u2029 \u2026",
    "next\x85line",
    "\x00\x1b\x0b\x0c\x1c",
    "é😀",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_can_break_out_of_its_frame(text: str) -> None:
    event = TextDelta(sequence_number=0, item_id=text, output_index=0, content_index=0, delta=text)
    framed = sse.frame_event(event, sse.encode_event(event))
    assert framed.count(b"\n") == 3 and framed.endswith(b"\n\n") and b"\r" not in framed
    name, data = framed[:-2].split(b"\n")
    assert name == b"event: response.output_text.delta"
    assert json.loads(data.removeprefix(b"data: "))["delta"] == text
    assert len(framed.decode().splitlines()) == 3, "whatever a reader takes for the end of a line"
    assert len(sse.frame_data(json.dumps(text, ensure_ascii=False).encode()).decode().splitlines()) == 2


def test_the_event_line_repeats_the_type() -> None:
    event = Created(sequence_number=0, response=Response(id="resp_1", created_at=1, model="m"))
    framed = sse.frame_event(event, sse.encode_event(event))
    assert framed.startswith(b'event: response.created\ndata: {"type":"response.created",')


def test_chat_frames_have_no_event_line() -> None:
    assert sse.frame_data(b"{}") == b"data: {}\n\n"


def test_the_end_and_the_ping_are_frames_of_their_own() -> None:
    assert sse.DONE_FRAME == b"data: [DONE]\n\n"
    assert sse.PING_COMMENT.startswith(b":") and sse.PING_COMMENT.endswith(b"\n\n")


def test_every_required_key_of_a_response_is_always_there() -> None:
    keys = json.loads(sse.encode_event(Created(sequence_number=0, response=Response(id="r", created_at=1, model="m"))))[
        "response"
    ]
    assert len(keys) == 31 and "conversation" not in keys and "user" not in keys
