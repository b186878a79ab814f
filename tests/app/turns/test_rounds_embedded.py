"""The embedded model calls a tool of the server: the second round computes only the result of the call."""

import json
from typing import Any

import pytest

from antiphon.app.projections.responses import final_response
from antiphon.app.turns.core.rounds import Round
from antiphon.engine.cache.paged import PAGE_TOKENS
from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.client import ProcessEngine
from antiphon.engine.scheduler.prefix_cache import MIN_PREFIX_TOKENS
from tests.codex.embedded_registry import load_model_format, make_registry, needs_weights
from tests.engine.threaded_engine import ThreadWorker
from tests.snapshots.tool_cases import CALLED
from tests.snapshots.tool_runs import ToolCase, open_run

pytestmark = needs_weights
FIELDS = {
    "input": "Where is the nearest cafe in Oslo?",
    "tool_choice": "required",
    "temperature": 0,
    "max_output_tokens": 200,
}


async def run_rounds(case: ToolCase, options: EngineOptions) -> tuple[list[Round], dict[str, Any]]:
    """Returns the rounds of one turn and its response."""
    engine = ProcessEngine(MODEL_DIR, options, spawn=ThreadWorker)
    await engine.start()
    try:
        async with open_run(case, make_registry(engine, load_model_format())) as run:
            log = await run.start_turn(**FIELDS)
            core = run.core
            response = json.loads(await final_response(log))
            return core.figures.rounds, response
    finally:
        await engine.close()


@pytest.mark.parametrize(("paged", "step"), [(False, MIN_PREFIX_TOKENS), (True, PAGE_TOKENS)])
async def test_second_round_reads_the_first_from_the_prefix_cache(*, paged: bool, step: int) -> None:
    rounds, response = await run_rounds(CALLED, EngineOptions(device="cpu", threads=1, paged_cache=paged))
    first, second = rounds[:2]
    assert "mcp_call" in [item["type"] for item in response["output"]]
    num_spoken = len(first.generated_tokens)
    known = (*first.prompt.prompt.tokens, *first.generated_tokens)
    assert second.prompt.prompt.tokens[: len(known)] == known
    assert second.cached_tokens >= len(first.prompt.prompt.tokens) + num_spoken - step
    assert second.cached_tokens < len(second.prompt.prompt.tokens)
    usage = response["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] == sum(each.cached_tokens for each in rounds)
