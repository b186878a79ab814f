"""Tests of the load client: text counted at any read boundary, and a load on the scripted server."""

import asyncio

import pytest

from bench.load_client import Api, Stream, request_body, run_load, summarize
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
def test_text_is_counted_at_any_read_boundary(api: Api, reply: bytes, step: int) -> None:
    stream = Stream(api, 0.0, status=200)
    for start in range(0, len(reply), step):
        stream.feed(reply[start : start + step], start)
    assert sum(count for _, count in stream.arrivals) == 2
    assert (stream.prompt_tokens, stream.output_tokens, stream.error) == (7, 3, None)
    assert stream.cached_tokens == (5 if api == "responses" else 0)


def test_output_tokens_without_usage_are_pieces_of_text() -> None:
    stream = Stream("chat", 0.0, status=200)
    stream.feed(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n' * 4, 1.0)
    assert stream.output_tokens == 4


@pytest.mark.parametrize(
    ("status", "reply", "message"),
    [
        (503, b'{"error":{"message":"loading"}}', "HTTP 503"),
        (200, b'data: {"type":"error","code":"server_error"}\n\n', "server_error"),
        (200, b'data: {"type": "response.failed"}\n\n', "response.failed"),
        (200, b'data: {"error":{"message":"x"}}\n\n', '"error"'),
        (200, b"data: [DONE]\n\n", "no text"),
    ],
)
def test_failed_stream_is_reported_but_not_counted(status: int, reply: bytes, message: str) -> None:
    stream = Stream("responses", 0.0, status=status, ended_at=1.0)
    stream.feed(reply, 0.5)
    assert message in str(stream.error)
    sample = summarize([stream])
    assert (sample.output_tokens, sample.throughput, len(sample.errors)) == (0, 0.0, 1)


def test_sample_summarizes_two_streams() -> None:
    a, b = (Stream("responses", start, status=200, ended_at=end) for start, end in ((0.0, 4.0), (1.0, 5.0)))
    a.arrivals, b.arrivals = [(1.0, 1), (2.0, 1), (4.0, 1)], [(3.0, 2), (5.0, 1)]
    sample = summarize([a, b])
    assert (sample.output_tokens, sample.duration_s, sample.throughput) == (6, 5.0, 1.2)
    assert (sample.ttft_s, sample.itl_s, sample.itl_p99_s) == (1.5, 1.5, 2.0)


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_load_on_scripted_server_counts_every_token(api: Api) -> None:
    with serve(
        scripted_registry([{"name": "x", "output": ["one ", "two ", "three"], "tokens_per_chunk": 1}])
    ) as server:
        bodies = [request_body(api, "scripted", f"Hi {number}", 64) for number in range(2)]
        sample = asyncio.run(run_load(server.port, api, bodies, timeout_s=20))
    assert sample.errors == ()
    # Each byte is a token, and each reply ends with an end token.
    assert (sample.streams, sample.output_tokens) == (2, 2 * len("one two three") + 2)
    assert 0 < sample.ttft_s < sample.duration_s
