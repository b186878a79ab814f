"""The client counts text wherever the reads cut it, and drives a real server."""

import asyncio

import pytest

from tests.bench.load_client import Api, Stream, body, load, sample
from tests.serving import scripted_registry, serve

RESPONSES = (
    b'event: response.created\ndata: {"type":"response.created","response":{}}\n\n'
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"a"}\n\n'
    b'data: {"type": "response.reasoning_text.delta", "delta": "event: x"}\r\n\r\n'
    b'event: response.output_text.done\ndata: {"type":"response.output_text.done","text":"a"}\n\n'
    b'data: {"type":"response.completed","response":{"usage":{"input_tokens":7,"input_tokens_details":'
    b'{"cached_tokens":5},"output_tokens":3}}}\n\n'
)
CHAT = (
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    b'data: {"choices":[{"delta":{"reasoning_content": "b"}}]}\n\n'
    b'data: {"choices":[{"delta":{"content":null},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\ndata: [DONE]\n\n'
)


@pytest.mark.parametrize(("api", "reply"), [("responses", RESPONSES), ("chat", CHAT)])
@pytest.mark.parametrize("step", [1, 7, 64, 10_000])
def test_text_is_counted_wherever_it_is_cut(api: Api, reply: bytes, step: int) -> None:
    stream = Stream(api, 0.0, status=200)
    for place in range(0, len(reply), step):
        stream.feed(reply[place : place + step], place)
    assert sum(count for _, count in stream.arrivals) == 2
    assert (stream.given, stream.tokens, stream.error) == (7, 3, None)
    assert stream.cached == (5 if api == "responses" else 0)


def test_without_a_usage_the_pieces_are_counted() -> None:
    stream = Stream("chat", 0.0, status=200)
    stream.feed(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n' * 4, 1.0)
    assert stream.tokens == 4


@pytest.mark.parametrize(
    ("status", "reply", "says"),
    [
        (503, b'{"error":{"message":"loading"}}', "HTTP 503"),
        (200, b'data: {"type":"error","code":"server_error"}\n\n', "server_error"),
        (200, b'data: {"type": "response.failed"}\n\n', "response.failed"),
        (200, b'data: {"error":{"message":"x"}}\n\n', '"error"'),
        (200, b"data: [DONE]\n\n", "no text"),
    ],
)
def test_a_stream_that_failed_is_not_counted(status: int, reply: bytes, says: str) -> None:
    stream = Stream("responses", 0.0, status=status, ended=1.0)
    stream.feed(reply, 0.5)
    assert says in str(stream.error)
    seen = sample([stream])
    assert (seen.tokens, seen.rate, len(seen.errors)) == (0, 0.0, 1)


def test_a_sample_of_two_streams() -> None:
    one, two = (Stream("responses", begun, status=200, ended=ended) for begun, ended in ((0.0, 4.0), (1.0, 5.0)))
    one.arrivals, two.arrivals = [(1.0, 1), (2.0, 1), (4.0, 1)], [(3.0, 2), (5.0, 1)]
    seen = sample([one, two])
    assert (seen.tokens, seen.wall, seen.rate) == (6, 5.0, 1.2)
    assert (seen.first, seen.gap, seen.gap99) == (1.5, 1.5, 2.0)


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_two_streams_of_the_scripted_server(api: Api) -> None:
    with serve(
        scripted_registry([{"name": "x", "output": ["one ", "two ", "three"], "tokens_per_chunk": 1}])
    ) as served:
        bodies = [body(api, "scripted", f"Hi {place}", 64) for place in range(2)]
        seen = asyncio.run(load(served.port, api, bodies, limit=20))
    assert seen.errors == ()
    assert (seen.streams, seen.tokens) == (
        2,
        2 * len("one two three") + 2,
    )  # a byte is a token; each ends with one more
    assert 0 < seen.first < seen.wall
