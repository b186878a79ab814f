"""Answers of MCP servers over HTTP: each is checked against the request that it belongs to."""

import pytest

from antiphon.app.tools.mcp.answer_check import AnswerCheck, read_request_id

ANSWER = b'{"jsonrpc":"2.0","id":7,"result":{}}'


@pytest.mark.parametrize(
    ("body", "request_id"),
    [
        (b'{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{}}', 3),
        (b'{"jsonrpc":"2.0","id":"a","method":"ping"}', "a"),
        (b'{"jsonrpc":"2.0","method":"notifications/initialized"}', None),
        (ANSWER, None),
        (b'{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"no"}}', None),
        (b"[]", None),
        (b"", None),
    ],
)
def test_request_that_awaits_an_answer(body: bytes, request_id: int | str | None) -> None:
    """Servers ask the client, too: its answer has their id, and does not take the place of the request that waits."""
    assert read_request_id(body) == request_id


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_event_stream_in_pieces(size: int, end: bytes) -> None:
    """Other messages of a stream are not looked at. It is cut anywhere."""
    lines = (
        b": hi",
        b"",
        b"event: message",
        b'data: {"jsonrpc":"2.0","id":9,"method":"ping"}',
        b"",
        b"data: " + ANSWER,
    )
    stream = end.join((*lines, b"", b""))
    for request_id, is_ours in ((7, True), ("7", True), (8, False)):
        check = AnswerCheck(request_id, 1000, is_stream=True)
        pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
        assert all(check.accepts(piece) for piece in pieces) is is_ours
