"""LiteLLM as a client of chat completions, of Responses and of Anthropic's Messages."""

import gc
from typing import Any

import litellm
from scenarios import (
    CHAT_TOOL,
    TASK,
    TOO_MUCH,
    UNKNOWN_MODEL,
    Person,
    describe_error,
    join_pieces,
    read_broken_stream,
    run_scenarios,
)

litellm.suppress_debug_info = True
# LiteLLM leaves streams unclosed. If the garbage collector closes one while httpcore 1.0 holds the lock of its pool, the
# thread waits for itself for ever. A short program needs no collector.
gc.disable()
Message = dict[str, Any]


class Completions:
    """`litellm.completion` with one provider."""

    def __init__(self, provider: str, suffix: str, **options: Any) -> None:
        self._provider = provider
        self._options = {"api_base": TASK.roots["content"] + suffix, "api_key": "none", "max_retries": 0, **options}

    def text(self) -> dict[str, Any]:
        reply = self._complete("text")
        return {"text": reply.choices[0].message.content, "output_tokens": reply.usage.completion_tokens}

    def text_stream(self) -> dict[str, Any]:
        return join_pieces(chunk.choices[0].delta.content for chunk in self._complete("text", stream=True))

    def reasoning(self) -> dict[str, Any]:
        message = self._complete("reasoning").choices[0].message
        return {"text": message.content, "reasoning": message.reasoning_content}

    def reasoning_stream(self) -> dict[str, Any]:
        message = self._stream_message([_user("reasoning")])
        return {"text": message.content, "reasoning": message.reasoning_content}

    def tools(self) -> dict[str, Any]:
        return self._run_tool(lambda messages: self._complete(messages, tools=[CHAT_TOOL]).choices[0].message)

    def tools_stream(self) -> dict[str, Any]:
        return self._run_tool(lambda messages: self._stream_message(messages, tools=[CHAT_TOOL]))

    def structured(self) -> dict[str, Any]:
        reply = self._complete("structured", response_format=Person)
        return {"parsed": Person.model_validate_json(reply.choices[0].message.content).model_dump()}

    def bad_request(self) -> dict[str, Any]:
        return describe_error(lambda: self._complete("text", temperature=TOO_MUCH))

    def unknown_model(self) -> dict[str, Any]:
        return describe_error(lambda: self._complete("text", model=UNKNOWN_MODEL))

    def broken_stream(self) -> dict[str, Any]:
        return read_broken_stream(lambda: list(self._complete("broken", stream=True)))

    def _complete(self, prompt: str | list[Message], model: str = TASK.model, **fields: Any) -> Any:
        messages = [_user(prompt)] if isinstance(prompt, str) else prompt
        return litellm.completion(model=f"{self._provider}/{model}", messages=messages, **self._options, **fields)

    def _stream_message(self, messages: list[Message], **fields: Any) -> Any:
        chunks = list(self._complete(messages, stream=True, **fields))
        return litellm.stream_chunk_builder(chunks, messages=messages).choices[0].message

    def _run_tool(self, ask: Any) -> dict[str, Any]:
        messages = [_user("tools")]
        first = ask(messages)
        results = [{"role": "tool", "tool_call_id": call.id, "content": TASK.tool_result} for call in first.tool_calls]
        calls = [[call.function.name, call.function.arguments] for call in first.tool_calls]
        last = ask([*messages, first.model_dump(exclude_none=True), *results])
        return {"calls": calls, "reasoning": first.reasoning_content, "text": last.content}


def _user(prompt: str) -> Message:
    return {"role": "user", "content": TASK.prompts[prompt]}


THINKING = {"type": "enabled", "budget_tokens": 1024}
run_scenarios(
    {
        "LiteLLM openai": Completions("openai", "/v1"),
        "LiteLLM hosted_vllm": Completions("hosted_vllm", "/v1"),
        # LiteLLM knows only the names of Anthropic's models, so it must be told that this one has the field.
        "LiteLLM anthropic": Completions("anthropic", "", thinking=THINKING, allowed_openai_params=["thinking"]),
    }
)
