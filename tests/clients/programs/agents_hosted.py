"""The OpenAI Agents SDK with tools that the server runs.

The program is run as `python PROGRAM TASK`. The task is a JSON object: `url`, `model`, `label` and `prompt`. It prints
{answer: {run: {...}}}, where the answer is what the user says about a call: nothing (none is asked for), yes or no.
"""

import asyncio
import json
import sys
from typing import Any

from agents import (
    Agent,
    HostedMCPTool,
    MCPToolApprovalFunctionResult,
    MCPToolApprovalRequest,
    ModelSettings,
    OpenAIResponsesModel,
    Runner,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

set_tracing_disabled(True)
TASK = json.loads(sys.argv[1])
ANSWERS: dict[str, MCPToolApprovalFunctionResult | None] = {
    "not asked": None,
    "yes": {"approve": True},
    "no": {"approve": False, "reason": "It is late."},
}


async def run_agent(answer: str, *, stream: bool, **settings: Any) -> dict[str, Any]:
    """Runs an agent to its end. Returns what was asked, the types of the new items, and the answer."""
    asked = []
    reply = ANSWERS[answer]

    def on_request(request: MCPToolApprovalRequest) -> MCPToolApprovalFunctionResult:
        asked.append([request.data.server_label, request.data.name, json.loads(request.data.arguments)])
        assert reply is not None
        return reply

    config: Any = {
        "type": "mcp",
        "server_label": TASK["label"],
        "require_approval": "never" if reply is None else "always",
    }
    tool = HostedMCPTool(tool_config=config, on_approval_request=on_request)
    async with AsyncOpenAI(base_url=TASK["url"], api_key="none", max_retries=0) as client:
        model = OpenAIResponsesModel(TASK["model"], openai_client=client)
        agent = Agent(name="A", model=model, tools=[tool], model_settings=ModelSettings(**settings))
        if stream:
            result: Any = Runner.run_streamed(agent, TASK["prompt"])
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, TASK["prompt"])
        follow_up = [*result.to_input_list(), {"role": "user", "content": "Say it again."}]
        again = await Runner.run(agent, follow_up) if answer != "no" else None
    return {
        "asked": asked,
        "items": [item.type for item in result.new_items],
        "text": result.final_output,
        "again": again and again.final_output,
    }


RUNS = {
    f"{'stream' if stream else 'run'}{'' if store is None else f', store {store}'}": {"stream": stream, "store": store}
    for stream in (False, True)
    for store in (None, True, False)
}
results = {
    answer: {name: asyncio.run(run_agent(answer, **options)) for name, options in RUNS.items()} for answer in ANSWERS
}
json.dump(results, sys.stdout)
