"""pydantic-ai's models of chat completions, of Responses and of Anthropic's Messages."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic_ai import Agent, NativeOutput, ToolReturnPart
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
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


def get_weather(city: str) -> str:
    """Returns the weather in a city."""
    return TASK.tool_result


class AgentRuns:
    """Runs of agents with one kind of model. Each run has its own event loop, so it gets a provider of its own."""

    def __init__(self, kind: type[Model], make_provider: Callable[[], Any], **settings: Any) -> None:
        self._kind, self._make_provider, self._settings = kind, make_provider, settings

    def text(self) -> dict[str, Any]:
        result = self._run("text")
        return {"text": result.output, "output_tokens": result.usage.output_tokens}

    def text_stream(self) -> dict[str, Any]:
        async def stream() -> dict[str, Any]:
            async with self._agent().run_stream(TASK.prompts["text"]) as result:
                return join_pieces([piece async for piece in result.stream_text(delta=True, debounce_by=None)])

        return asyncio.run(stream())

    def reasoning(self) -> dict[str, Any]:
        result = self._run("reasoning")
        return {"text": result.output, "reasoning": _reasoning_of(result.all_messages())}

    def reasoning_stream(self) -> dict[str, Any]:
        return self._stream("reasoning")

    def tools(self) -> dict[str, Any]:
        result = self._run("tools", tools=[get_weather])
        return _tools_of(result.output, result.all_messages())

    def tools_stream(self) -> dict[str, Any]:
        return self._stream("tools", tools=[get_weather])

    def structured(self) -> dict[str, Any]:
        return {"parsed": self._run("structured", output_type=NativeOutput(Person)).output.model_dump()}

    def bad_request(self) -> dict[str, Any]:
        return describe_error(lambda: self._run("text", model_settings={"temperature": TOO_MUCH}))

    def unknown_model(self) -> dict[str, Any]:
        return describe_error(lambda: self._run("text", model=UNKNOWN_MODEL))

    def broken_stream(self) -> dict[str, Any]:
        return read_broken_stream(lambda: self._stream("broken"))

    def _agent(self, model: str = TASK.model, **fields: Any) -> Agent:
        # pydantic-ai derives from a model's name whether the API takes schemas, and it knows only Anthropic's names.
        profile = {"supports_json_schema_output": True}
        chosen = self._kind(model, provider=self._make_provider(), profile=profile)
        return Agent(chosen, **{"model_settings": self._settings, **fields})

    def _run(self, prompt: str, **fields: Any) -> Any:
        return self._agent(**fields).run_sync(TASK.prompts[prompt])

    def _stream(self, prompt: str, **fields: Any) -> dict[str, Any]:
        async def stream() -> dict[str, Any]:
            async with self._agent(**fields).run_stream(TASK.prompts[prompt]) as result:
                text = await result.get_output()
            messages = result.all_messages()
            return _tools_of(text, messages) if fields else {"text": text, "reasoning": _reasoning_of(messages)}

        return asyncio.run(stream())


def _reasoning_of(messages: list[Any]) -> str | None:
    first = next(message for message in messages if isinstance(message, ModelResponse))
    texts = [
        part.content or "".join((part.provider_details or {}).get("raw_content", []))
        for part in first.parts
        if part.part_kind == "thinking"
    ]
    return "".join(texts) or None


def _tools_of(text: str, messages: list[Any]) -> dict[str, Any]:
    parts = [part for message in messages for part in message.parts]
    assert [part.content for part in parts if isinstance(part, ToolReturnPart)] == [TASK.tool_result]
    calls = [[part.tool_name, part.args_as_dict()] for part in parts if part.part_kind == "tool-call"]
    return {"calls": calls, "reasoning": _reasoning_of(messages), "text": text}


def _make_openai(kind: str) -> OpenAIProvider:
    url = f"{TASK.roots[kind]}/v1"
    return OpenAIProvider(openai_client=AsyncOpenAI(base_url=url, api_key="none", max_retries=0))


def _make_anthropic() -> AnthropicProvider:
    url = TASK.roots["content"]
    return AnthropicProvider(anthropic_client=AsyncAnthropic(base_url=url, api_key="none", max_retries=0))


THINKING = {"type": "enabled", "budget_tokens": 1024}
run_scenarios(
    {
        "pydantic-ai OpenAIChatModel": AgentRuns(OpenAIChatModel, partial(_make_openai, "content")),
        "pydantic-ai OpenAIResponsesModel": AgentRuns(OpenAIResponsesModel, partial(_make_openai, "content")),
        "pydantic-ai OpenAIResponsesModel, summaries": AgentRuns(
            OpenAIResponsesModel, partial(_make_openai, "summary")
        ),
        "pydantic-ai AnthropicModel": AgentRuns(
            AnthropicModel, _make_anthropic, anthropic_thinking=THINKING, max_tokens=4000
        ),
    }
)
