"""The bytes of a stream, read from a bare socket: framing, headers, and what one write holds."""

import http.client
import json
import socket
from collections.abc import Iterator

import pytest

from tests.clients.sdk_helpers import CASES, Case, Json, chat_body, post, responses_body
from tests.conftest import Serve
from tests.invariants import check
from tests.serving import RunningServer, scripted_registry

ENDING = [pytest.param(case, id=case.name) for case in CASES if not case.refused and not case.cancel]


def raw(served: RunningServer, path: str, body: Json) -> bytes:
    reply = post(served.url + path, json={**body, "stream": True})
    assert reply.status_code == 200
    assert reply.headers["content-type"].partition(";")[0] == "text/event-stream"
    assert reply.headers["cache-control"] == "no-cache"
    assert "content-encoding" not in reply.headers
    return reply.content


@pytest.mark.parametrize("case", ENDING)
def test_a_responses_frame_is_one_event_line_and_one_data_line(house: RunningServer, case: Case) -> None:
    sent = raw(house, "/responses", responses_body(case))
    assert b"\r" not in sent
    *frames, done, nothing = sent.decode("utf-8", "strict").split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    told = []
    for frame in frames:
        event, data = frame.split("\n")
        assert event.startswith("event: ") and data.startswith("data: ")
        told.append(json.loads(data.removeprefix("data: ")))
        assert told[-1]["type"] == event.removeprefix("event: ")
        assert "\\ud83d\\n" not in data
        data.encode("utf-8", "strict")
    check(told)


@pytest.mark.parametrize("case", ENDING)
def test_a_chat_frame_is_one_data_line(house: RunningServer, case: Case) -> None:
    sent = raw(house, "/chat/completions", chat_body(case))
    assert b"\r" not in sent
    *frames, done, nothing = sent.decode("utf-8", "strict").split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    for frame in frames:
        assert frame.startswith("data: {") and "\n" not in frame
        chunk = json.loads(frame.removeprefix("data: "))
        assert chunk.get("object") == "chat.completion.chunk" or set(chunk) == {"error"}


def writes(served: RunningServer, path: str, body: Json) -> Iterator[bytes]:
    """The chunks of the transfer encoding, one for each write of the server."""
    sent = json.dumps({**body, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as wire:
        head = f"POST /v1{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        wire.sendall(f"{head}Content-Length: {len(sent)}\r\nConnection: close\r\n\r\n".encode() + sent)
        reader = wire.makefile("rb")
        http.client.parse_headers(reader)
        while size := int(reader.readline(), 16):
            yield reader.read(size)
            reader.readline()
        reader.close()


@pytest.mark.parametrize(("path", "make"), [("/responses", responses_body), ("/chat/completions", chat_body)])
def test_every_write_ends_with_a_whole_frame(house: RunningServer, path: str, make: object) -> None:
    """Some readers drop a frame whose last line feed comes in a piece of its own."""
    for case in CASES:
        if not case.refused and not case.cancel:
            for piece in writes(house, path, make(case)):  # type: ignore[operator]
                assert piece.endswith(b"\n\n") and not piece.startswith(b"\n"), piece


def test_text_leaves_as_it_is_made_and_not_when_it_is_whole(server: Serve) -> None:
    served = server(scripted_registry([{"name": "slow", "output": ["One. ", {"stall": True}]}]))
    body = {"model": "scripted", "input": "hi"}
    pieces = writes(served, "/responses", body)
    read = b""
    while b"output_text.delta" not in read:
        read += next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    assert b"response.completed" not in read


def test_no_code_point_is_split_over_two_deltas(server: Serve) -> None:
    served = server([{"name": "byte by byte", "output": ["é😀漢"], "tokens_per_chunk": 1}])
    sent = raw(served, "/responses", {"model": "scripted", "input": "hi"})
    told = [json.loads(line[6:]) for line in sent.split(b"\n") if line.startswith(b"data: {")]
    deltas = [event["delta"] for event in told if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == "é😀漢"
    assert "�" not in "".join(deltas)


@pytest.mark.parametrize("path", ["/responses", "/chat/completions"])
def test_a_comment_stands_for_silence_and_for_nothing_else(server: Serve, path: str) -> None:
    speak = ["<think>\nHm.", {"pause": 0.01}, "\n</think>", {"pause": 0.01}, "\n\n", "Yes.", {"fault": "out"}]
    served = server(scripted_registry([{"name": "in steps", "output": speak, "tokens_per_chunk": 1}], delay=0.001))
    body = {"model": "scripted", "input": "hi", "messages": [{"role": "user", "content": "hi"}]}
    body.pop("messages" if path == "/responses" else "input")
    assert b"\n:" not in raw(served, path, body)
