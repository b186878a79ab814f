"""What a reply says, read from the body of each API, and what a response obliges the other APIs to say."""

import json
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
PARAGRAPH_BREAK = "\n\n"
"""Separator of two messages in a chat completion, which has one text."""


@dataclass
class ApiReading:
    """What a reply of any API says."""

    texts: list[str]
    """Chat: the one text. Messages: the text of each block."""
    refusal: str
    """Chat only: a message shows refusals as text."""
    reasoning: str
    calls: list[tuple[str, str, Any]]
    """Id, name and payload of each call; in a message, the payload is an object."""
    usage: dict[str, int]
    stop: str | None
    """Finish reason or stop reason, in the API's own words."""
    stop_string: str | None
    """Stop string that ended the text."""

    @property
    def content(self) -> tuple[Any, ...]:
        """What the model has said. A turn that fails has nothing else."""
        return self.texts, self.refusal, self.reasoning, self.calls


def read_chat_choice(completion: Json) -> ApiReading:
    """Reads the first choice of a chat completion."""
    choice = completion["choices"][0]
    message, usage = choice["message"], completion["usage"]
    return ApiReading(
        texts=[message["content"]] if message.get("content") else [],
        refusal=message.get("refusal") or "",
        reasoning=message.get("reasoning_content") or "",
        calls=[_read_chat_call(call) for call in message.get("tool_calls") or ()],
        usage={} if usage is None else _flatten_usage(usage, "prompt", "completion"),
        stop=choice["finish_reason"],
        stop_string=choice.get("stop_reason"),
    )


def _read_chat_call(call: Json) -> tuple[str, str, Any]:
    payload = call[call["type"]]
    return call["id"], payload["name"], payload["arguments" if call["type"] == "function" else "input"]


def read_message_body(message: Json) -> ApiReading:
    """Reads an Anthropic message."""
    blocks, usage = message["content"], message["usage"]
    return ApiReading(
        texts=[block["text"] for block in blocks if block["type"] == "text"],
        refusal="",
        reasoning="".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
        calls=[(block["id"], block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"],
        usage={
            "input": usage["input_tokens"] + usage["cache_read_input_tokens"],
            "cached": usage["cache_read_input_tokens"],
            "output": usage["output_tokens"],
        },
        stop=message["stop_reason"],
        stop_string=message["stop_sequence"],
    )


def expected_chat(response: Json, *, stop_string: str | None) -> ApiReading:
    """Returns what a chat completion must say if it is a reading of the same events as this response."""
    messages = [item["content"] for item in response["output"] if item["type"] == "message"]
    texts = ["".join(part.get("text", "") for part in content) for content in messages]
    text = PARAGRAPH_BREAK.join(text for text in texts if text)
    calls = [call_of(item) for item in response["output"] if item["type"].endswith("_call")]
    return ApiReading(
        texts=[text] if text else [],
        refusal="".join(part.get("refusal", "") for content in messages for part in content),
        reasoning=_reasoning_of(response),
        calls=calls,
        usage=_usage_of(response),
        stop="length" if response["status"] != "completed" else "tool_calls" if calls else "stop",
        stop_string=stop_string,
    )


def expected_message(response: Json, *, stop_string: str | None) -> ApiReading:
    """Returns what an Anthropic message must say: all but calls that were cut off."""
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    complete = [item for item in response["output"] if item["type"].endswith("_call") and item["status"] == "completed"]
    usage = _usage_of(response)
    if any("refusal" in part for part in parts):
        stop = "refusal"
    elif response["status"] != "completed":
        stop = "max_tokens"
    else:
        stop = "tool_use" if complete else "stop_sequence" if stop_string is not None else "end_turn"
    return ApiReading(
        texts=[part.get("text", part.get("refusal")) for part in parts],
        refusal="",
        reasoning=_reasoning_of(response),
        calls=[(*call_of(item)[:2], _input_of(item)) for item in complete],
        usage={key: count for key, count in usage.items() if key in ("input", "cached", "output")},
        stop=stop,
        stop_string=stop_string if stop == "stop_sequence" else None,
    )


def call_of(item: Json) -> tuple[str, str, str]:
    """Returns the id, the name and the payload of a call."""
    return item["call_id"], item["name"], item["arguments" if item["type"] == "function_call" else "input"]


def _input_of(item: Json) -> Any:
    """Returns a call's payload as an object: the text of a custom tool is the value of one key."""
    return json.loads(item["arguments"]) if item["type"] == "function_call" else {"input": item["input"]}


def _reasoning_of(response: Json) -> str:
    """Returns the reasoning, as summaries where it has no raw text."""
    items = [item for item in response["output"] if item["type"] == "reasoning"]
    return "".join(part["text"] for item in items for part in item.get("content") or item["summary"])


def _usage_of(response: Json) -> dict[str, int]:
    usage = response["usage"]
    return {} if usage is None else _flatten_usage(usage, "input", "output")


def _flatten_usage(usage: Json, read: str, written: str) -> dict[str, int]:
    """Returns a usage whose API calls tokens `read` and `written`."""
    return {
        "input": usage[f"{read}_tokens"],
        "cached": usage[f"{read}_tokens_details"]["cached_tokens"],
        "output": usage[f"{written}_tokens"],
        "reasoning": usage[f"{written}_tokens_details"]["reasoning_tokens"],
        "total": usage["total_tokens"],
    }
