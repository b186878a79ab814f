"""The OpenAI Agents SDK on Responses and on chat completions."""

import asyncio
from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from agents.models.interface import Model
from openai import AsyncOpenAI
from scenarios import (
    TASK,
    TOO_MUCH,
    UNKNOWN_MODEL,
    Person,
    describe_error,
    join_pieces,
    read_broken_stream,
    run_scenarios,
)

set_tracing_disabled(True)


@function_tool
def get_weather(city: str) -> str:
    """Returns the weather in a city."""
    return TASK.tool_result


class AgentRuns:
    """Runs of agents with one kind of model."""

    def __init__(self, kind: type[Model], reasoning_output: str) -> None:
        self._kind, self._url = kind, f"{TASK.roots[reasoning_output]}/v1"

    def text(self) -> dict[str, Any]:
        result = self._run("text")
        return {"text": result.final_output, "output_tokens": result.raw_responses[0].usage.output_tokens}

    def text_stream(self) -> dict[str, Any]:
        return join_pieces(self._stream("text")[1])

    def reasoning(self) -> dict[str, Any]:
        result = self._run("reasoning")
        return {"text": result.final_output, "reasoning": _reasoning_of(result)}

    def reasoning_stream(self) -> dict[str, Any]:
        result, _ = self._stream("reasoning")
        return {"text": result.final_output, "reasoning": _reasoning_of(result)}

    def tools(self) -> dict[str, Any]:
        return _tools_of(self._run("tools", tools=[get_weather]))

    def tools_stream(self) -> dict[str, Any]:
        return _tools_of(self._stream("tools", tools=[get_weather])[0])

    def structured(self) -> dict[str, Any]:
        return {"parsed": self._run("structured", output_type=Person).final_output.model_dump()}

    def bad_request(self) -> dict[str, Any]:
        return describe_error(lambda: self._run("text", model_settings=ModelSettings(temperature=TOO_MUCH)))

    def unknown_model(self) -> dict[str, Any]:
        return describe_error(lambda: self._run("text", model=UNKNOWN_MODEL))

    def broken_stream(self) -> dict[str, Any]:
        return read_broken_stream(lambda: self._stream("broken"))

    def _agent(self, model: str = TASK.model, **fields: Any) -> Agent:
        # A new client for each run: each has its own event loop.
        client = AsyncOpenAI(base_url=self._url, api_key="none", max_retries=0)
        return Agent(name="A", model=self._kind(model, openai_client=client), **fields)

    def _run(self, prompt: str, **fields: Any) -> Any:
        return asyncio.run(Runner.run(self._agent(**fields), TASK.prompts[prompt]))

    def _stream(self, prompt: str, **fields: Any) -> tuple[Any, list[str]]:
        async def stream() -> tuple[Any, list[str]]:
            result = Runner.run_streamed(self._agent(**fields), TASK.prompts[prompt])
            pieces = [
                event.data.delta
                async for event in result.stream_events()
                if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
            ]
            return result, pieces

        return asyncio.run(stream())


def _reasoning_of(result: Any) -> str | None:
    items = [item for item in result.raw_responses[0].output if item.type == "reasoning"]
    return "".join(part.text for item in items for part in [*item.summary, *(item.content or [])]) or None


def _tools_of(result: Any) -> dict[str, Any]:
    calls = [
        [item.raw_item.name, item.raw_item.arguments] for item in result.new_items if item.type == "tool_call_item"
    ]
    return {"calls": calls, "reasoning": _reasoning_of(result), "text": result.final_output}


run_scenarios(
    {
        "openai-agents responses": AgentRuns(OpenAIResponsesModel, "content"),
        "openai-agents responses, summaries": AgentRuns(OpenAIResponsesModel, "summary"),
        "openai-agents chat": AgentRuns(OpenAIChatCompletionsModel, "content"),
    }
)
