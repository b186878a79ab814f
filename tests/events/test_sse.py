"""SSE framing: LF only, one event line, one data line and one blank line, in one bytes object."""

import json

import pytest

from antiphon.events import sse
from antiphon.events.response import Response
from antiphon.events.stream import Created, TextDelta

HOSTILE_TEXTS = [
    "line\nfeed",
    "carriage\r\nreturn",
    "data: x\n\nevent: y",
    "\u2028\u2029 \u2026",
    "next\x85line",
    "\x00\x1b\x0b\x0c\x1c",
    "é😀",
]


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_hostile_text_stays_inside_its_frame(text: str) -> None:
    event = TextDelta(sequence_number=0, item_id=text, output_index=0, content_index=0, delta=text)
    frame = sse.frame_event(event, sse.encode_event(event))
    assert frame.count(b"\n") == 3 and frame.endswith(b"\n\n") and b"\r" not in frame
    name, data = frame[:-2].split(b"\n")
    assert name == b"event: response.output_text.delta"
    assert json.loads(data.removeprefix(b"data: "))["delta"] == text
    assert len(frame.decode().splitlines()) == 3, "no character in the data counts as a line break"
    assert len(sse.frame_data(json.dumps(text, ensure_ascii=False).encode()).decode().splitlines()) == 2


def test_event_line_repeats_the_type() -> None:
    event = Created(sequence_number=0, response=Response(id="resp_1", created_at=1, model="m"))
    frame = sse.frame_event(event, sse.encode_event(event))
    assert frame.startswith(b'event: response.created\ndata: {"type":"response.created",')


def test_chat_frames_have_no_event_line() -> None:
    assert sse.frame_data(b"{}") == b"data: {}\n\n"


def test_done_and_ping_frames() -> None:
    assert sse.DONE_FRAME == b"data: [DONE]\n\n"
    assert sse.PING_COMMENT.startswith(b":") and sse.PING_COMMENT.endswith(b"\n\n")


def test_response_always_has_all_required_keys() -> None:
    keys = json.loads(sse.encode_event(Created(sequence_number=0, response=Response(id="r", created_at=1, model="m"))))[
        "response"
    ]
    assert len(keys) == 31 and "conversation" not in keys and "user" not in keys
