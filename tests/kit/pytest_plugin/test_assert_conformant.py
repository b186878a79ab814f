"""The checker as an assertion, for each kind of source."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from antiphon.kit.cassette.exchanges import RecordedExchange, RecordedFrame, RecordedReply, RecordedRequest
from antiphon.kit.cassette.toml_text import CASSETTE_HEADER, format_exchange
from antiphon.kit.snapshot.recorded_stream import RecordedStream
from antiphon.kit.testing import assert_conformant, find_faults, format_stream, read_streams
from tests.clients.sdk_helpers import chat_body, make_case_registry, open_sdk, parse_events, post, responses_body
from tests.serving import RunningServer, serve
from tests.snapshots.cases import CASES

(CASE,) = (case for case in CASES if case.name == "reasoning_text_and_two_calls")
SERVER = partial(serve, partial(make_case_registry, [CASE]))


@pytest.fixture
def wire(server: RunningServer) -> bytes:
    return post(f"{server.url}/responses", json=responses_body(CASE) | {"stream": True}).content


@pytest.fixture
def chat_wire(server: RunningServer) -> bytes:
    return post(f"{server.url}/chat/completions", json=chat_body(CASE) | {"stream": True}).content


def change_first(events: list[dict[str, Any]], kind: str, **fields: Any) -> list[dict[str, Any]]:
    position = next(number for number, event in enumerate(events) if event["type"] == kind)
    return [event | fields if number == position else event for number, event in enumerate(events)]


def test_a_failure_names_code_event_and_reason(wire: bytes) -> None:
    broken = change_first(parse_events(wire), "response.output_text.done", text="Bath:")
    with pytest.raises(AssertionError) as caught:
        assert_conformant(broken)
    assert str(caught.value).splitlines() == [
        "the stream breaks 1 rule:",
        *describe_finding(broken),
    ]
    assert_conformant(broken, ignore=("done-differs-from-deltas",))


def describe_finding(events: list[dict[str, Any]]) -> list[str]:
    (finding,) = find_faults(events)
    assert (finding.code, finding.position, finding.expected, finding.actual) == (
        "done-differs-from-deltas",
        11,
        '"Both:"',
        '"Bath:"',
    )
    return [
        f'  error done-differs-from-deltas at event 11: {finding.subject}: expected "Both:", but got "Bath:"',
        '       11  output_text.done                [1.0] msg_1 "Bath:"',
        f"    why: {finding.why}",
    ]


def test_every_source_of_a_conformant_stream_passes(server: RunningServer, wire: bytes, chat_wire: bytes) -> None:
    for source in (wire, wire.decode(), parse_events(wire), chat_wire, parse_events(chat_wire)):
        assert_conformant(source, notes=True)
    body = responses_body(CASE)
    with open_sdk(server) as (client, _):
        fields = {key: body[key] for key in ("model", "input", "tools")}
        assert_conformant(client.responses.create(**fields, stream=True))
        with client.responses.stream(**fields) as stream:
            assert_conformant(list(stream))
        assert_conformant(stream.get_final_response())
        assert_conformant(client.responses.create(**fields))
        chat = chat_body(CASE)
        chat_fields = {key: chat[key] for key in ("model", "messages", "tools")}
        assert_conformant(client.chat.completions.create(**chat_fields, stream=True))
        with client.chat.completions.stream(**chat_fields) as chat_stream:
            assert_conformant(list(chat_stream))


def test_every_source_of_a_broken_stream_fails(wire: bytes, chat_wire: bytes) -> None:
    frames = wire.split(b"\n\n")
    events, chunks = parse_events(wire), parse_events(chat_wire)
    response = events[-1]["response"] | {"usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 3}}
    sources: list[Any] = [
        b"\n\n".join([*frames[:5], *frames[6:]]),
        wire.rpartition(b"event: response.completed")[0],
        wire.replace(b"event: response.created", b"event: response.made"),
        [*events[:5], *events[6:]],
        [*events, *events[:-1]],
        json.dumps([*events[:5], *events[6:]]),
        chat_wire.replace(b"[DONE]", b"{}"),
        chunks[:-2],
        response,
        b"",
        [],
    ]
    for source in sources:
        with pytest.raises(AssertionError, match="the stream breaks"):
            assert_conformant(source)


def test_each_response_of_an_agents_stream_is_checked(wire: bytes) -> None:
    events = parse_events(wire)
    assert_conformant([*events, *events])
    with pytest.raises(AssertionError, match="the stream breaks"):
        assert_conformant([*events, *events[1:]])


def test_the_request_is_a_measure(wire: bytes) -> None:
    request = {"tools": [], "tool_choice": "none"}
    codes = {finding.code for finding in find_faults(wire, request)}
    assert codes and not find_faults(wire)
    assert {finding.code for finding in find_faults(RecordedStream(wire, request))} == codes


def test_notes_are_not_faults_unless_asked_for(wire: bytes) -> None:
    without_marker = wire.replace(b"data: [DONE]\n\n", b"")
    assert_conformant(without_marker)
    with pytest.raises(AssertionError, match="note done-marker-missing"):
        assert_conformant(without_marker, notes=True)


def test_an_unknown_code_is_refused(wire: bytes) -> None:
    with pytest.raises(ValueError, match="there is no code 'sequence-gapp'"):
        assert_conformant(wire, ignore=("sequence-gapp",))


def test_streams_of_a_cassette(wire: bytes, chat_wire: bytes, tmp_path: Path) -> None:
    def exchange(stream: bytes, body: dict[str, Any]) -> str:
        frames = tuple(RecordedFrame(1, frame + b"\n\n") for frame in stream.split(b"\n\n")[:-1])
        request = RecordedRequest(method="POST", path="/v1/responses", body=json.dumps(body).encode())
        return format_exchange(RecordedExchange(request=request, response=RecordedReply(status=200, frames=frames)))

    cassette, single = tmp_path / "turns.toml", tmp_path / "turn.toml"
    cassette.write_text(CASSETTE_HEADER + exchange(wire, responses_body(CASE)) + exchange(chat_wire, chat_body(CASE)))
    single.write_text(CASSETTE_HEADER + exchange(wire, {"tool_choice": "none", "tools": []}))
    streams = read_streams(cassette)
    assert streams == [wire, chat_wire]
    for stream in streams:
        assert_conformant(stream)
    assert streams[0].request == responses_body(CASE)
    assert format_stream(single) == format_stream(wire)
    with pytest.raises(AssertionError):
        assert_conformant(single)
    with pytest.raises(ValueError, match=r"turns.toml has 2 streams: pass one of antiphon.kit.testing.read_streams"):
        assert_conformant(cassette)
