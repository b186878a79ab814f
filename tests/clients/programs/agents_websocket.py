"""The OpenAI Agents SDK over a WebSocket: two turns of one session, the first with a tool.

The program is run as `python PROGRAM TASK`. The task is a JSON object: `url`, `model`, and two `prompts`. It prints the
answer and the outputs of the tool of each turn, for complete and streamed runs.
"""

import asyncio
import json
import sys
from typing import Any

from agents import Agent, function_tool, responses_websocket_session, set_tracing_disabled

set_tracing_disabled(True)
TASK = json.loads(sys.argv[1])


@function_tool
def get_weather(city: str) -> str:
    """Returns the weather in a city."""
    return f"4 degrees in {city}"


async def run_turns(*, stream: bool) -> list[dict[str, Any]]:
    """Runs both turns on one connection. The second continues the last response of the first."""
    agent = Agent(name="A", model=TASK["model"], tools=[get_weather])
    turns: list[dict[str, Any]] = []
    previous = None
    async with responses_websocket_session(
        api_key="none", base_url=TASK["url"], unknown_prefix_mode="model_id"
    ) as session:
        for prompt in TASK["prompts"]:
            options = {"previous_response_id": previous, "auto_previous_response_id": previous is None}
            if stream:
                result: Any = session.run_streamed(agent, prompt, **options)
                async for _ in result.stream_events():
                    pass
            else:
                result = await session.run(agent, prompt, **options)
            outputs = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
            turns.append({"text": result.final_output, "outputs": outputs})
            previous = result.last_response_id
    return turns


json.dump({"run": asyncio.run(run_turns(stream=False)), "stream": asyncio.run(run_turns(stream=True))}, sys.stdout)
