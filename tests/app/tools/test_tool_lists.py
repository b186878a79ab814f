"""The cache of lists: what is shared, what is kept, and for how long."""

import asyncio

import pytest

from antiphon.app.tools.mcp.faults import ToolServerError
from antiphon.app.tools.mcp.tool_lists import ListBuilder, ListCache, ListedTool, ToolList
from antiphon.app.tools.mcp.tool_server import ToolLimits

KEY = ("owner", "server")


class Fetches:
    def __init__(self, ttl_s: float = 300) -> None:
        self.count = 0
        self.ttl_s = ttl_s
        self.released = asyncio.Event()
        self.released.set()

    async def __call__(self) -> ToolList:
        self.count += 1
        await self.released.wait()
        return ToolList((ListedTool(name=f"tool{self.count}", input_schema={}),), self.ttl_s)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


async def test_list_is_kept_for_its_time() -> None:
    clock, fetches = Clock(), Fetches(ttl_s=5)
    cache = ListCache(ToolLimits(), clock)
    first = await cache.get(KEY, fetches)
    clock.now_s += 4.9
    assert await cache.get(KEY, fetches) is first
    clock.now_s += 0.2
    assert await cache.get(KEY, fetches) is not first
    assert fetches.count == 2


async def test_list_that_is_stale_at_once_is_not_kept() -> None:
    fetches = Fetches(ttl_s=0)
    cache = ListCache(ToolLimits(), Clock())
    await cache.get(KEY, fetches)
    await cache.get(KEY, fetches)
    assert fetches.count == 2


async def test_requests_at_the_same_time_share_one_fetch() -> None:
    fetches = Fetches()
    fetches.released.clear()
    cache = ListCache(ToolLimits(), Clock())
    waiting = [asyncio.create_task(cache.get(KEY, fetches)) for _ in range(5)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    fetches.released.set()
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(done[0], asyncio.CancelledError), "one that is cancelled does not cancel the others"
    assert len({id(found) for found in done[1:]}) == 1
    assert fetches.count == 1


async def test_owners_share_nothing() -> None:
    fetches = Fetches()
    cache = ListCache(ToolLimits(), Clock())
    await cache.get(("one", "server"), fetches)
    await cache.get(("two", "server"), fetches)
    assert fetches.count == 2


async def test_failure_is_shared_and_not_kept() -> None:
    calls = 0

    async def fail() -> ToolList:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0)
        raise ToolServerError(502, "broken")

    cache = ListCache(ToolLimits(), Clock())
    done = await asyncio.gather(cache.get(KEY, fail), cache.get(KEY, fail), return_exceptions=True)
    assert [type(fault) for fault in done] == [ToolServerError] * 2
    assert calls == 1
    with pytest.raises(ToolServerError):
        await cache.get(KEY, fail)
    assert calls == 2


async def test_oldest_list_is_dropped() -> None:
    fetches = Fetches()
    cache = ListCache(ToolLimits(max_kept_lists=2), Clock())
    for name in ("a", "b", "a", "c"):
        await cache.get((name, ""), fetches)
    assert fetches.count == 3
    await cache.get(("a", ""), fetches)
    assert fetches.count == 3, "a was used later than b"
    await cache.get(("b", ""), fetches)
    assert fetches.count == 4


async def test_close_ends_fetches() -> None:
    fetches = Fetches()
    fetches.released.clear()
    cache = ListCache(ToolLimits(), Clock())
    waiting = asyncio.create_task(cache.get(KEY, fetches))
    await asyncio.sleep(0)
    await cache.close()
    with pytest.raises(ToolServerError, match="This server stops"):
        await waiting


@pytest.mark.parametrize(
    ("ttls_ms", "ttl_s"), [([None], 300), ([0], 0), ([1500], 1.5), ([10**15], 3600), ([9000, 1000], 1), ([1000, 9000], 1)]
)  # fmt: skip
def test_time_of_a_list(ttls_ms: list[int | None], ttl_s: float) -> None:
    builder = ListBuilder(ToolLimits())
    for index, ttl_ms in enumerate(ttls_ms):
        builder.add_page([], str(index), ttl_ms)
    assert builder.build().ttl_s == ttl_s


def test_hint_of_reading_only() -> None:
    builder = ListBuilder(ToolLimits())
    hints = {"a": {"readOnlyHint": True}, "b": {"readOnlyHint": False}, "c": {}, "d": None}
    tools = [{"name": name, "inputSchema": {}, "annotations": hint} for name, hint in hints.items()]
    builder.add_page(tools, None, None)
    assert {tool.name: tool.read_only for tool in builder.build().tools} == {
        "a": True,
        "b": False,
        "c": None,
        "d": None,
    }


async def test_list_that_changed_while_it_was_fetched_is_not_kept() -> None:
    fetches = Fetches()
    cache = ListCache(ToolLimits(), Clock())
    other = ("owner", "other")
    await cache.get(other, fetches)
    for owner in ("one", "two"):
        fetches.released.clear()
        task = asyncio.create_task(cache.get((owner, "server"), fetches))
        await asyncio.sleep(0)
        cache.forget_server("server")
        fetches.released.set()
        await task
    kept = await cache.get(("one", "server"), fetches)
    assert fetches.count == 4
    assert await cache.get(("one", "server"), fetches) is kept and fetches.count == 4
    cache.forget_server("server")
    await cache.get(("one", "server"), fetches)
    await cache.get(other, fetches)
    assert fetches.count == 5, "lists of other servers are kept"
    assert not cache._changes
