"""Work is given up for what it uses, not for what it waits."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from antiphon.app.turns.cpu_limit import run_with_cpu_limit
from antiphon.app.turns.token_history import TokenHistory
from antiphon.app.turns.turn import TurnTimeouts
from tests.serving import serve


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def test_what_it_returns_and_raises_comes_through() -> None:
    assert await run_with_cpu_limit(5, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await run_with_cpu_limit(5, lambda: 1 // 0)


async def test_work_that_only_waits_is_waited_for() -> None:
    assert await run_with_cpu_limit(0.02, lambda: time.sleep(0.3) or 7) == 7  # type: ignore[func-returns-value]


async def test_so_is_work_that_has_no_thread_yet() -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    before = asyncio.ensure_future(asyncio.to_thread(time.sleep, 0.3))
    await asyncio.sleep(0)
    assert await run_with_cpu_limit(0.02, lambda: 7) == 7
    assert before.done()


async def test_work_that_uses_too_much_is_given_up() -> None:
    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        await run_with_cpu_limit(0.1, lambda: burn(2))
    assert time.monotonic() - begun < 1.9


def test_a_prompt_that_takes_too_long_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    read = TokenHistory.render

    def slow(*given: object) -> object:
        burn(0.5)
        return read(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(TokenHistory, "render", slow)
    with serve([{"name": "x", "output": ["x"]}], timeouts=TurnTimeouts(render_cpu_limit_s=0.05)) as served:
        reply = httpx.post(f"{served.url}/responses", json={"model": "scripted", "input": "Hi"})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == ("prompt_too_complex", "input")
