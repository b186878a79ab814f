"""The CPU limit of a turn: work is cancelled for the CPU time it uses, not for the time it waits."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from antiphon.app.http.body_parsing import LARGE_BYTES
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.app.sandbox.cpu_limit import run_with_cpu_limit
from antiphon.app.turn_types.turn_prompt import TurnPrompt
from antiphon.app.turns.prompts.prompt_renderer import PromptRenderer
from antiphon.app.turns.prompts.prompt_token_cache import PromptTokenCache
from antiphon.app.turns.timeouts import TurnTimeouts
from tests.clients.sdk_helpers import wait_until
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
    render = PromptTokenCache.render

    def render_slowly(*args: object) -> object:
        use_cpu(0.5)
        return render(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(PromptTokenCache, "render", render_slowly)
    with serve([{"name": "x", "output": ["x"]}], timeouts=TurnTimeouts(render_cpu_limit_s=0.05)) as server:
        reply = httpx.post(f"{server.url}/responses", json={"model": "scripted", "input": "Hi"})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == ("prompt_too_complex", "input")


def test_small_prompt_does_not_wait_for_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dozen large prompts whose rendering does not end: they have threads of their own."""
    may_render = threading.Event()
    render = PromptRenderer._render_prompt

    def render_slowly(self: PromptRenderer, model: Any, spec: TurnSpec, *values: Any) -> TurnPrompt:
        if len(str(spec.prompt_input.items[0])) > LARGE_BYTES:
            may_render.wait(120)
        return render(self, model, spec, *values)

    monkeypatch.setattr(PromptRenderer, "_render_prompt", render_slowly)
    with serve([{"name": "any", "output": ["Yes."]}]) as server, ThreadPoolExecutor(12) as executor:

        def ask(text: str) -> int:
            return httpx.post(
                f"{server.url}/responses", json={"model": "scripted", "input": text}, timeout=120
            ).status_code

        try:
            large = [executor.submit(ask, "x" * LARGE_BYTES) for _ in range(12)]
            assert wait_until(60, lambda: server.context.capacity.open_turns(server.engine) == 12)
            assert ask("Hi") == 200
            assert not any(each.done() for each in large)
        finally:
            may_render.set()
        assert {each.result() for each in large} == {400}, "longer than the context"
