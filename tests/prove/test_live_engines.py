"""The engine contract, grammars, clients and flags, over real servers of vLLM and llama.cpp with random weights."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator

import pytest
from openai import OpenAI

from antiphon.engine.errors import LoadError
from antiphon.engine.protocol import Chunk
from tests.codex.codex_process import API_KEY, CodexCli
from tests.engine.engine_contract import CHECKS, EngineCase, join
from tests.invariants import check_stream
from tests.prove.live_engines import (
    KINDS,
    PROMPT,
    VLLM_FLAGS,
    build_engine,
    run_server,
    serve_over,
    started_engine,
    wait_idle,
)

NUM_CALLS = 200


@pytest.fixture(scope="module")
def vllm() -> Iterator[str]:
    with run_server("vllm", *VLLM_FLAGS) as url:
        yield url


@pytest.fixture(scope="module")
def llama() -> Iterator[str]:
    with run_server("llama.cpp") as url:
        yield url


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue("vllm" if request.param == "vllm" else "llama")
    return found


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_engine_keeps_the_contract(url: str, check: Callable[[EngineCase], Awaitable[None]]) -> None:
    async with started_engine(url) as engine:
        await check(EngineCase(engine, PROMPT, counts_cached=engine.info.capabilities.counts_cached_tokens))


async def test_vllm_generate_interface_keeps_the_contract() -> None:
    with run_server("vllm", *VLLM_FLAGS, "--enable-scale-out") as url:
        for check in CHECKS:
            async with started_engine(url, surface="generate") as engine:
                await check(EngineCase(engine, PROMPT))


async def test_cancelled_job_frees_the_slot_within_a_second(vllm: str) -> None:
    async with started_engine(vllm) as engine:
        case, chunks = EngineCase(engine, PROMPT), list[Chunk]()
        job = case.make_job(max_tokens=3000)
        task = asyncio.create_task(engine.generate(job, chunks.append))
        await case.wait_until(lambda: len(join(chunks)) > 2)
        await engine.cancel(job.id)
        await task
        await case.run(max_tokens=1)  # vLLM updates its metrics when it runs a step
        await wait_idle(vllm, 1.0)


def test_required_strict_tool_call_is_always_valid(url: str) -> None:
    """Random weights call a strict tool; every call that completes is valid."""
    parameters = {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Lima"]}, "days": {"type": "integer", "minimum": 1, "maximum": 99}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "name": "get_weather", "strict": True, "parameters": parameters}
    with serve_over(url) as server:
        client = OpenAI(base_url=server.url, api_key=API_KEY)
        for number in range(NUM_CALLS):
            stream = client.responses.create(
                model="tiny",
                input=f"weather {number}",
                tools=[tool],  # type: ignore[list-item]
                tool_choice="required",
                parallel_tool_calls=False,
                max_output_tokens=2000,
                reasoning={"effort": "none"},
                stream=True,
                store=False,
            )
            response = check_stream([event.to_dict() for event in stream])
            assert response["status"] == "completed", response
            calls = [item for item in response["output"] if item["type"] == "function_call"]
            assert len(calls) == 1
            arguments = json.loads(calls[0]["arguments"])
            assert arguments["city"] in ("Oslo", "Lima") and 1 <= arguments["days"] <= 99


def test_openai_stream_helper_and_codex(url: str, codex: CodexCli) -> None:
    """Random weights never end an answer, which Codex reports as an incomplete response."""
    with serve_over(url, default_max_output_tokens=64) as server:
        client = OpenAI(base_url=server.url, api_key=API_KEY)
        with client.responses.stream(model="tiny", input="Hello!", max_output_tokens=50) as stream:
            events = list(stream)
        assert events[-1].type in ("response.incomplete", "response.completed")
        run = codex.exec(server, "Hello!")
        assert run.exit_code == 0 or "Incomplete response" in str(run.events), run.events


WRONG_FLAGS: dict[str, tuple[str, ...]] = {
    "backend auto": (),
    "reasoning parser without enable_in_reasoning": (
        *("--reasoning-parser", "qwen3"),
        *("--structured-outputs-config", '{"backend":"guidance"}'),
    ),
    "tokens only": ("--tokens-only",),
}


@pytest.mark.parametrize("name", WRONG_FLAGS)
async def test_vllm_with_wrong_flags_is_found_out(name: str) -> None:
    """vLLM with `auto` follows the first grammar, ours, and then all of them; cached tokens are not counted."""
    with run_server("vllm", *WRONG_FLAGS[name]) as url:
        if name == "backend auto":
            async with started_engine(url) as engine:
                profile = engine.replicas[0].profile
                assert profile is not None and profile.capabilities.grammar
                assert not profile.capabilities.counts_cached_tokens
                assert any("--enable-prompt-tokens-details" in warning for warning in profile.warnings)
            return
        engine = build_engine(url, grammar="require")
        with pytest.raises(LoadError, match="status 400" if name == "tokens only" else "enable_in_reasoning"):
            await engine.start()
