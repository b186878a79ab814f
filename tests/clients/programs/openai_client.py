"""OpenAI's SDK for Python: chat.completions.create, stream and parse, and completions.create."""

from typing import Any

from openai import OpenAI
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

CLIENT = OpenAI(base_url=f"{TASK.roots['content']}/v1", api_key="none", max_retries=0)
Message = dict[str, Any]


class Chat:
    """`client.chat.completions`."""

    def text(self) -> dict[str, Any]:
        reply = self._create("text")
        return {"text": reply.choices[0].message.content, "output_tokens": reply.usage.completion_tokens}

    def text_stream(self) -> dict[str, Any]:
        return join_pieces(chunk.choices[0].delta.content for chunk in self._create("text", stream=True))

    def reasoning(self) -> dict[str, Any]:
        message = self._create("reasoning").choices[0].message
        return {"text": message.content, "reasoning": message.reasoning_content}

    def reasoning_stream(self) -> dict[str, Any]:
        message = self._stream_message([_user("reasoning")])
        return {"text": message.content, "reasoning": message.reasoning_content}

    def tools(self) -> dict[str, Any]:
        return self._run_tool(lambda messages: self._create(messages, tools=[CHAT_TOOL]).choices[0].message)

    def tools_stream(self) -> dict[str, Any]:
        return self._run_tool(lambda messages: self._stream_message(messages, tools=[CHAT_TOOL]))

    def structured(self) -> dict[str, Any]:
        reply = CLIENT.chat.completions.parse(model=TASK.model, messages=[_user("structured")], response_format=Person)
        return {"parsed": reply.choices[0].message.parsed.model_dump()}

    def bad_request(self) -> dict[str, Any]:
        return describe_error(lambda: self._create("text", temperature=TOO_MUCH))

    def unknown_model(self) -> dict[str, Any]:
        return describe_error(lambda: self._create("text", model=UNKNOWN_MODEL))

    def broken_stream(self) -> dict[str, Any]:
        return read_broken_stream(lambda: self._stream_message([_user("broken")]))

    def _create(self, prompt: str | list[Message], model: str = TASK.model, **fields: Any) -> Any:
        messages = [_user(prompt)] if isinstance(prompt, str) else prompt
        return CLIENT.chat.completions.create(model=model, messages=messages, **fields)

    def _stream_message(self, messages: list[Message], **fields: Any) -> Any:
        with CLIENT.chat.completions.stream(model=TASK.model, messages=messages, **fields) as stream:
            return stream.get_final_completion().choices[0].message

    def _run_tool(self, ask: Any) -> dict[str, Any]:
        messages = [_user("tools")]
        first = ask(messages)
        results = [{"role": "tool", "tool_call_id": call.id, "content": TASK.tool_result} for call in first.tool_calls]
        calls = [[call.function.name, call.function.arguments] for call in first.tool_calls]
        last = ask([*messages, first.to_dict(warnings=False), *results])
        return {"calls": calls, "reasoning": first.reasoning_content, "text": last.content}


class Completions:
    """`client.completions`."""

    def text(self) -> dict[str, Any]:
        reply = self._create()
        return {"text": reply.choices[0].text, "output_tokens": reply.usage.completion_tokens}

    def text_stream(self) -> dict[str, Any]:
        return join_pieces(chunk.choices[0].text for chunk in self._create(stream=True))

    def bad_request(self) -> dict[str, Any]:
        return describe_error(lambda: self._create(temperature=TOO_MUCH))

    def unknown_model(self) -> dict[str, Any]:
        return describe_error(lambda: self._create(model=UNKNOWN_MODEL))

    def broken_stream(self) -> dict[str, Any]:
        return read_broken_stream(lambda: list(self._create(prompt=TASK.prompts["broken"], stream=True)))

    def _create(self, **fields: Any) -> Any:
        return CLIENT.completions.create(**{"model": TASK.model, "prompt": TASK.prompts["text"], **fields})


def _user(prompt: str) -> Message:
    return {"role": "user", "content": TASK.prompts[prompt]}


run_scenarios({"openai Python SDK chat": Chat(), "openai Python SDK completions": Completions()})
