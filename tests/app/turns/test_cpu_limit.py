"""The CPU limit of a turn: work is cancelled for the CPU time it uses, not for the time it waits."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from antiphon.app.turns.cpu_limit import run_with_cpu_limit
from antiphon.app.turns.token_history import TokenHistory
from antiphon.app.turns.turn import TurnTimeouts
from tests.serving import serve


def use_cpu(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def test_results_and_exceptions_are_passed_through() -> None:
    assert await run_with_cpu_limit(5, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await run_with_cpu_limit(5, lambda: 1 // 0)


async def test_waiting_work_is_not_limited() -> None:
    assert await run_with_cpu_limit(0.02, lambda: time.sleep(0.3) or 7) == 7  # type: ignore[func-returns-value]


async def test_work_without_a_thread_yet_is_not_limited() -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    earlier = asyncio.ensure_future(asyncio.to_thread(time.sleep, 0.3))
    await asyncio.sleep(0)
    assert await run_with_cpu_limit(0.02, lambda: 7) == 7
    assert earlier.done()


async def test_work_above_the_cpu_limit_times_out() -> None:
    is_over = threading.Event()

    def use_cpu_until_over() -> None:
        while not is_over.is_set():
            pass

    try:
        with pytest.raises(TimeoutError):
            await run_with_cpu_limit(0.1, use_cpu_until_over)
    finally:
        is_over.set()


def test_prompt_above_the_cpu_limit_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    render = TokenHistory.render

    def render_slowly(*args: object) -> object:
        use_cpu(0.5)
        return render(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(TokenHistory, "render", render_slowly)
    with serve([{"name": "x", "output": ["x"]}], timeouts=TurnTimeouts(render_cpu_limit_s=0.05)) as server:
        reply = httpx.post(f"{server.url}/responses", json={"model": "scripted", "input": "Hi"})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == ("prompt_too_complex", "input")
