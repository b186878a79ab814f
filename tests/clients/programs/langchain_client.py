"""LangChain's ChatOpenAI, on chat completions and on Responses, and ChatAnthropic."""

from functools import reduce
from operator import add
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
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


@tool
def get_weather(city: str) -> str:
    """Returns the weather in a city."""
    return TASK.tool_result


class ChatModel:
    """A chat model of LangChain."""

    def __init__(self, kind: type[BaseChatModel], structured_kind: type[BaseChatModel] | None = None, **options: Any):
        self._kind, self._options = kind, {"model": TASK.model, "api_key": "none", "max_retries": 0, **options}
        self._model = kind(**self._options)

    def text(self) -> dict[str, Any]:
        reply = self._model.invoke(TASK.prompts["text"])
        return {"text": reply.text, "output_tokens": reply.usage_metadata["output_tokens"]}

    def text_stream(self) -> dict[str, Any]:
        return join_pieces(chunk.text for chunk in self._model.stream(TASK.prompts["text"]))

    def reasoning(self) -> dict[str, Any]:
        reply = self._model.invoke(TASK.prompts["reasoning"])
        return {"text": reply.text, "reasoning": _reasoning_of(reply)}

    def reasoning_stream(self) -> dict[str, Any]:
        reply = reduce(add, self._model.stream(TASK.prompts["reasoning"]))
        return {"text": reply.text, "reasoning": _reasoning_of(reply)}

    def tools(self) -> dict[str, Any]:
        return self._run_tool(self._model.bind_tools([get_weather]).invoke)

    def tools_stream(self) -> dict[str, Any]:
        model = self._model.bind_tools([get_weather])
        return self._run_tool(lambda messages: reduce(add, model.stream(messages)))

    def structured(self) -> dict[str, Any]:
        options = {key: value for key, value in self._options.items() if key != "thinking"}
        model = self._kind(**options).with_structured_output(Person, method="json_schema")
        return {"parsed": model.invoke(TASK.prompts["structured"]).model_dump()}

    def bad_request(self) -> dict[str, Any]:
        return describe_error(lambda: self._model.invoke(TASK.prompts["text"], temperature=TOO_MUCH))

    def unknown_model(self) -> dict[str, Any]:
        return describe_error(lambda: self._model.invoke(TASK.prompts["text"], model=UNKNOWN_MODEL))

    def broken_stream(self) -> dict[str, Any]:
        return read_broken_stream(lambda: list(self._model.stream(TASK.prompts["broken"])))

    def _run_tool(self, ask: Any) -> dict[str, Any]:
        messages = [HumanMessage(TASK.prompts["tools"])]
        first = ask(messages)
        results = [ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"]) for call in first.tool_calls]
        calls = [[call["name"], call["args"]] for call in first.tool_calls]
        return {"calls": calls, "reasoning": _reasoning_of(first), "text": ask([*messages, first, *results]).text}


def _reasoning_of(message: AIMessage) -> str | None:
    blocks = [block.get("reasoning", "") for block in message.content_blocks if block["type"] == "reasoning"]
    return "".join(blocks) or None


def _responses(kind: str) -> ChatModel:
    return ChatModel(ChatOpenAI, base_url=f"{TASK.roots[kind]}/v1", use_responses_api=True)


THINKING = {"type": "enabled", "budget_tokens": 1024}
run_scenarios(
    {
        "ChatOpenAI chat": ChatModel(ChatOpenAI, base_url=f"{TASK.roots['content']}/v1", use_responses_api=False),
        "ChatOpenAI responses": _responses("content"),
        "ChatOpenAI responses, summaries": _responses("summary"),
        "ChatAnthropic": ChatModel(ChatAnthropic, base_url=TASK.roots["content"], max_tokens=4000, thinking=THINKING),
    }
)
