"""An agent of the OpenAI Agents SDK that reads files one after the other while the server compacts its conversation.

The program is run as `python PROGRAM TASK`. The task is a JSON object: `url`, `model`, `prompt`, `follow_up`, the texts
of `files`, `threshold`, and the names of `runs`. It prints for each run the answers, the paths that were read, the number of compactions in
the output, and the size of the next prompt with all items and with those from the newest compaction on.
"""

import asyncio
import json
import sys
from typing import Any

from agents import Agent, ModelSettings, OpenAIResponsesModel, RunConfig, Runner, function_tool, set_tracing_disabled
from agents.models.openai_responses import Converter
from agents.run import CallModelData, ModelInputData
from openai import AsyncOpenAI

set_tracing_disabled(True)
TASK = json.loads(sys.argv[1])
MANAGEMENT = [{"type": "compaction", "compact_threshold": TASK["threshold"]}]
MAX_TURNS = 40


@function_tool
def read_file(path: str) -> str:
    """Returns the text of a file."""
    return TASK["files"][path]


def drop_before_compaction(items: list[Any]) -> list[Any]:
    """Returns the items from the newest compaction on; all of them if there is none."""
    found = [index for index, item in enumerate(items) if item.get("type") == "compaction"]
    return items[found[-1] :] if found else items


def drop_input(data: CallModelData[None]) -> ModelInputData:
    """Drops items before a request."""
    sent = data.model_data
    return ModelInputData(input=drop_before_compaction(sent.input), instructions=sent.instructions)


async def run_agent(agent: Agent, items: Any, *, stream: bool, **options: Any) -> Any:
    """Runs the agent to its end."""
    if not stream:
        return await Runner.run(agent, items, max_turns=MAX_TURNS, **options)
    result = Runner.run_streamed(agent, items, max_turns=MAX_TURNS, **options)
    async for _ in result.stream_events():
        pass
    return result


async def read_files(
    *, stream: bool = False, settings: dict[str, Any] | None = None, keeps_history: bool = True, drops: bool = False
) -> dict[str, Any]:
    """Runs the agent for the prompt, and then for the follow-up. Without `keeps_history`, the server keeps it."""
    async with AsyncOpenAI(base_url=TASK["url"], api_key="none", max_retries=0) as client:
        model = OpenAIResponsesModel(TASK["model"], openai_client=client)
        chosen = ModelSettings(**(settings or {"context_management": MANAGEMENT}))
        agent = Agent(name="A", instructions="Be brief.", model=model, tools=[read_file], model_settings=chosen)
        options: dict[str, Any] = {"run_config": RunConfig(call_model_input_filter=drop_input if drops else None)}
        if not keeps_history:
            options["auto_previous_response_id"] = True
        result = await run_agent(agent, TASK["prompt"], stream=stream, **options)
        history = result.to_input_list()
        question = [{"role": "user", "content": TASK["follow_up"]}]
        if not keeps_history:
            options["previous_response_id"] = result.last_response_id
        again = await run_agent(agent, [*history, *question] if keeps_history else question, stream=stream, **options)
        tools = Converter.convert_tools([read_file], handoffs=[]).tools

        async def count(items: list[Any]) -> int:
            fields = {"model": TASK["model"], "instructions": "Be brief.", "tools": tools}
            return (await client.responses.input_tokens.count(input=items, **fields)).input_tokens

        outputs = [item for response in result.raw_responses for item in response.output]
        return {
            "text": result.final_output,
            "again": again.final_output,
            "paths": [json.loads(item.arguments)["path"] for item in outputs if item.type == "function_call"],
            "compactions": sum(item.type == "compaction" for item in outputs),
            "items": [item.type for item in result.new_items].count("compaction_item"),
            "tokens": [await count([*history, *question]), await count([*drop_before_compaction(history), *question])],
            "num_dropped": len(history) - len(drop_before_compaction(history)),
        }


RUNS: dict[str, dict[str, Any]] = {
    "run": {},
    "stream": {"stream": True},
    "extra_body, store False": {"settings": {"extra_body": {"context_management": MANAGEMENT}, "store": False}},
    "stream, drops": {"stream": True, "drops": True},
    "previous_response_id": {"keeps_history": False},
    "stream, previous_response_id": {"stream": True, "keeps_history": False},
}
json.dump({name: asyncio.run(read_files(**RUNS[name])) for name in TASK["runs"]}, sys.stdout)
