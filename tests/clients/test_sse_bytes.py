"""Bytes of a stream on the wire: SSE framing, headers, and the boundaries of writes."""

import http.client
import json
import socket
from collections.abc import Iterator

import pytest

from tests.clients.sdk_helpers import CASES, Case, Json, chat_body, post, responses_body
from tests.conftest import StartServer
from tests.invariants import check_stream
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, scripted_registry

UNCANCELLED_CASES = [pytest.param(case, id=case.name) for case in CASES if not case.refused and not case.cancel]


def read_stream_bytes(server: RunningServer, path: str, body: Json) -> bytes:
    reply = post(server.url + path, json={**body, "stream": True})
    assert reply.status_code == 200
    assert reply.headers["content-type"].partition(";")[0] == "text/event-stream"
    assert reply.headers["cache-control"] == "no-cache"
    assert "content-encoding" not in reply.headers
    return reply.content


@pytest.mark.parametrize("case", UNCANCELLED_CASES)
def test_responses_frame_is_one_event_line_and_one_data_line(case_server: RunningServer, case: Case) -> None:
    sent = read_stream_bytes(case_server, "/responses", responses_body(case))
    assert b"\r" not in sent
    *frames, done, rest_of_body = sent.decode("utf-8", "strict").split("\n\n")
    assert (done, rest_of_body) == ("data: [DONE]", "")
    events = []
    for frame in frames:
        event, data = frame.split("\n")
        assert event.startswith("event: ") and data.startswith("data: ")
        events.append(json.loads(data.removeprefix("data: ")))
        assert events[-1]["type"] == event.removeprefix("event: ")
        assert "\\ud83d\\n" not in data
        data.encode("utf-8", "strict")
    check_stream(events)


@pytest.mark.parametrize("case", UNCANCELLED_CASES)
def test_chat_frame_is_one_data_line(case_server: RunningServer, case: Case) -> None:
    sent = read_stream_bytes(case_server, "/chat/completions", chat_body(case))
    assert b"\r" not in sent
    *frames, done, rest_of_body = sent.decode("utf-8", "strict").split("\n\n")
    assert (done, rest_of_body) == ("data: [DONE]", "")
    for frame in frames:
        assert frame.startswith("data: {") and "\n" not in frame
        chunk = json.loads(frame.removeprefix("data: "))
        assert chunk.get("object") == "chat.completion.chunk" or set(chunk) == {"error"}


def read_writes(server: RunningServer, path: str, body: Json) -> Iterator[bytes]:
    """Yields the chunks of the chunked transfer encoding. The server sends one for each write."""
    body_bytes = json.dumps({**body, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=HANG_TIMEOUT_S) as connection:
        headers = f"POST /v1{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        connection.sendall(
            f"{headers}Content-Length: {len(body_bytes)}\r\nConnection: close\r\n\r\n".encode() + body_bytes
        )
        reader = connection.makefile("rb")
        http.client.parse_headers(reader)
        while size := int(reader.readline(), 16):
            yield reader.read(size)
            reader.readline()
        reader.close()


@pytest.mark.parametrize(("path", "make_body"), [("/responses", responses_body), ("/chat/completions", chat_body)])
def test_every_write_ends_with_a_complete_frame(case_server: RunningServer, path: str, make_body: object) -> None:
    """Some clients drop a frame whose last line feed arrives in a later packet."""
    for case in CASES:
        if not case.refused and not case.cancel:
            for write in read_writes(case_server, path, make_body(case)):  # type: ignore[operator]
                assert write.endswith(b"\n\n") and not write.startswith(b"\n"), write


def test_text_is_sent_before_the_response_completes(start_server: StartServer) -> None:
    server = start_server(scripted_registry([{"name": "slow", "output": ["One. ", {"stall": True}]}]))
    body = {"model": "scripted", "input": "hi"}
    writes = read_writes(server, "/responses", body)
    received = b""
    while b"output_text.delta" not in received:
        received += next(writes)
    writes.close()  # type: ignore[attr-defined]
    assert b"response.completed" not in received


def test_code_points_are_never_split_between_deltas(start_server: StartServer) -> None:
    server = start_server([{"name": "byte by byte", "output": ["é😀漢"], "tokens_per_chunk": 1}])
    sent = read_stream_bytes(server, "/responses", {"model": "scripted", "input": "hi"})
    events = [json.loads(line[6:]) for line in sent.split(b"\n") if line.startswith(b"data: {")]
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == "é😀漢"
    assert "�" not in "".join(deltas)


@pytest.mark.parametrize("path", ["/responses", "/chat/completions"])
def test_busy_stream_has_no_keepalive_comments(start_server: StartServer, path: str) -> None:
    output = ["<think>\nHm.", {"pause": 0.01}, "\n</think>", {"pause": 0.01}, "\n\n", "Yes.", {"fault": "out"}]
    server = start_server(
        scripted_registry([{"name": "in steps", "output": output, "tokens_per_chunk": 1}], delay=0.001)
    )
    body = {"model": "scripted", "input": "hi", "messages": [{"role": "user", "content": "hi"}]}
    body.pop("messages" if path == "/responses" else "input")
    assert b"\n:" not in read_stream_bytes(server, path, body)
