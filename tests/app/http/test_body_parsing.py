"""Where bodies are parsed: small ones on the event loop, others in a thread, which uses the store on the event loop."""

import asyncio
import json
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from antiphon.app.errors import ApiError
from antiphon.app.http.body_parsing import INLINE_BYTES, LARGE_BYTES, parse_body, run_parser
from antiphon.app.routes.stored_reads import LoopHistory
from antiphon.events.inputs import AnyInput, CompactionInput, InputMessage, InputReasoning

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


class LoopBoundHistory:
    """Notes the thread of each call."""

    def __init__(self) -> None:
        self.threads: list[str] = []

    def find_item(self, item_id: str) -> Any:
        self.threads.append(threading.current_thread().name)
        if item_id != "msg_1":
            raise ApiError(404, None, "no such item")
        return ITEM

    def items_before_input(self, body: Mapping[str, Any]) -> tuple[AnyInput, ...]:
        self.threads.append(threading.current_thread().name)
        return (ITEM,) if body else ()

    def decrypt(self, _: InputReasoning | CompactionInput) -> str | None:
        self.threads.append(threading.current_thread().name)
        return None


async def test_parser_in_a_thread_reads_the_store_on_the_event_loop() -> None:
    inner, main = LoopBoundHistory(), threading.current_thread().name
    history = LoopHistory(inner)

    def parse() -> Any:
        with pytest.raises(ApiError, match="no such item"):
            history.find_item("msg_2")
        history.decrypt(InputReasoning())
        return history.find_item("msg_1"), history.items_before_input({"previous_response_id": "a"})

    assert await asyncio.to_thread(parse) == (ITEM, (ITEM,))
    assert parse() == (ITEM, (ITEM,)), "also on the event loop itself"
    names = [name == main for name in inner.threads[:4]]
    assert names == [True, False, True, True] and set(inner.threads[4:]) == {main}
