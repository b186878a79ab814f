"""Where bodies are parsed: small ones on the event loop, others in a thread, which uses the store on the event loop."""

import asyncio
import json
import threading

import pytest

from antiphon.app.errors import ApiError
from antiphon.app.http.body_parsing import INLINE_BYTES, LARGE_BYTES, parse_body, run_parser
from antiphon.app.turns.stored_history import LoopCaller
from antiphon.events.inputs import InputMessage

ITEM = InputMessage(role="user", content="hi", id="msg_1")


@pytest.mark.parametrize(
    ("size", "thread"),
    [
        (INLINE_BYTES, "MainThread"),
        (INLINE_BYTES + 1, "parse_0"),
        (LARGE_BYTES - 1, "parse_0"),
        (LARGE_BYTES, "parse-large_0"),
    ],
)
async def test_size_decides_where_a_body_is_parsed(size: int, thread: str) -> None:
    main = threading.current_thread().name
    name = await run_parser(size, lambda: threading.current_thread().name)
    assert name == (main if thread == "MainThread" else thread)


@pytest.mark.parametrize("size", [10, INLINE_BYTES + 1, LARGE_BYTES])
async def test_body_of_any_size_is_an_object_or_an_error(size: int) -> None:
    body = {"input": "x" * size}
    assert await parse_body(json.dumps(body).encode()) == body
    for wrong in (b'["%b"]' % (b"x" * size), b'{"a": "%b"' % (b"x" * size), b'{"a": "%b\xff"}' % (b"x" * size)):
        with pytest.raises(ApiError) as caught:
            await parse_body(wrong)
        assert caught.value.code == "invalid_json"


async def test_thread_calls_functions_on_the_event_loop() -> None:
    call, main = LoopCaller(), threading.current_thread().name

    def refuse() -> None:
        raise ApiError(404, None, "no such item")

    def parse() -> tuple[str, str]:
        with pytest.raises(ApiError, match="no such item"):
            call(refuse)
        return threading.current_thread().name, call(lambda: threading.current_thread().name)

    thread, called = await asyncio.to_thread(parse)
    assert thread != main and called == main
    assert parse() == (main, main), "also on the event loop itself"


async def test_request_that_reads_history_is_parsed_in_a_thread() -> None:
    name = await run_parser(10, lambda: threading.current_thread().name, reads_history=True)
    assert name.startswith("parse-history_")
