"""Formats a stream for a snapshot: one line an event, ids numbered by appearance, constant keys left out."""

import json
import re
from typing import Any

_ID = re.compile(r"\b(resp|rs|msg|fc|ctc|cmp|call|chatcmpl)[_-][0-9a-z]+\b")


class IdNumbers:
    """Replaces ids by their kind and a number, in the order of their first appearance."""

    def __init__(self) -> None:
        self._ids_by_original: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def replace_ids(self, text: str) -> str:
        return _ID.sub(lambda match: self._number_id(match[0], match[1]), text)

    def _number_id(self, original: str, kind: str) -> str:
        if original not in self._ids_by_original:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._ids_by_original[original] = f"{kind}_{self._counts[kind]}"
        return self._ids_by_original[original]


def format_event(data: dict[str, Any], numbers: IdNumbers) -> str:
    """Returns a Responses event in one line."""
    kind = data["type"].removeprefix("response.")
    return numbers.replace_ids(
        f"{data['sequence_number']:>3}  {kind:<31} {_format_position(data)}{_format_payload(kind, data)}"
    ).rstrip()


def _format_position(event: dict[str, Any]) -> str:
    if "output_index" not in event:
        return ""
    inner = event.get("content_index", event.get("summary_index"))
    return f"[{event['output_index']}{'' if inner is None else f'.{inner}'}] " + (
        f"{event['item_id']} " if "item_id" in event else ""
    )


def _format_payload(kind: str, event: dict[str, Any]) -> str:
    if "response" in event:
        return format_response(event["response"])
    for key in ("delta", "text", "refusal", "arguments", "input"):
        if key in event:
            scored = f"  {_format_logprobs(event['logprobs'])}" if event.get("logprobs") else ""
            return _dump_json(event[key]) + scored
    if "item" in event:
        return format_item(event["item"])
    if "part" in event:
        return format_part(event["part"])
    if "annotation" in event:
        return f"annotation {event['annotation_index']} {_dump_json(event['annotation'])}"
    return _dump_json({key: value for key, value in event.items() if key not in ("type", "sequence_number")})


def format_response(data: dict[str, Any]) -> str:
    """Returns the status, details, error and usage in one line, then one line for each output item."""
    fields = [data["status"]]
    fields += [_dump_json(data[key]) for key in ("incomplete_details", "error") if data[key]]
    if usage := data["usage"]:
        reasoning = usage["output_tokens_details"]["reasoning_tokens"]
        fields.append(
            f"tokens {usage['input_tokens']} (cached {usage['input_tokens_details']['cached_tokens']})"
            f" + {usage['output_tokens']}"
            + (f" (reasoning {reasoning})" if reasoning else "")
            + f" = {usage['total_tokens']}"
        )
    return "  ".join(fields) + "".join(f"\n     - {format_item(item)}" for item in data["output"])


def format_item(data: dict[str, Any]) -> str:
    fields = [data["type"], data["id"], data.get("status", "-")]
    fields += [f"{key}={data[key]}" for key in ("phase", "namespace", "name") if key in data]
    fields += [f"call={data['call_id']}"] if "call_id" in data else []
    fields += [_dump_json(data[key]) for key in ("arguments", "input") if key in data]
    fields += [f"encrypted={_dump_json(data['encrypted_content'])}"] if "encrypted_content" in data else []
    fields += [format_part(part) for part in [*data.get("content", []), *data.get("summary", [])]]
    return " ".join(fields)


def format_part(data: dict[str, Any]) -> str:
    fields = [data["type"], _dump_json(data.get("text", data.get("refusal")))]
    fields += [f"annotations={_dump_json(data['annotations'])}"] if data.get("annotations") else []
    fields += [f"logprobs={_format_logprobs(data['logprobs'])}"] if data.get("logprobs") else []
    return " ".join(fields)


def format_chunk(data: dict[str, Any], numbers: IdNumbers) -> str:
    """Returns a chat chunk, one line for each choice and one for the usage."""
    if "error" in data:
        return f"     error {_dump_json(data['error'])}"
    lines = []
    for choice in data["choices"]:
        scored = f"  {_format_logprobs(choice['logprobs']['content'])}" if choice["logprobs"] else ""
        ending = f"  finish_reason={choice['finish_reason']}" if choice["finish_reason"] else ""
        ending += f"  stop_reason={_dump_json(choice['stop_reason'])}" if choice.get("stop_reason") is not None else ""
        lines.append(f"  [{choice['index']}]  {_dump_json(choice['delta'])}{scored}{ending}")
    if data.get("usage"):
        lines.append(f"  usage  {_dump_json(data['usage'])}")
    return numbers.replace_ids("\n".join(lines))


def format_completion_chunk(data: dict[str, Any]) -> str:
    """Returns a chunk of a text completion in one line."""
    if "error" in data:
        return f"  error  {_dump_json(data['error'])}"
    lines = []
    for choice in data["choices"]:
        ending = f"  finish_reason={choice['finish_reason']}" if choice["finish_reason"] else ""
        lines.append(f"  [{choice['index']}]  {_dump_json(choice['text'])}{ending}")
    if usage := data.get("usage"):
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        lines.append(f"  usage  tokens {usage['prompt_tokens']} (cached {cached}) + {usage['completion_tokens']}")
    return "\n".join(lines)


def format_message_event(data: dict[str, Any], numbers: IdNumbers) -> str:
    """Returns an event of an Anthropic message in one line."""
    kind = data["type"]
    index = f"[{data['index']}] " if "index" in data else ""
    match kind:
        case "message_start":
            message = data["message"]
            payload = f"{message['id']} {_format_message_usage(message['usage'])}"
        case "content_block_start":
            payload = _dump_json(data["content_block"])
        case "content_block_delta":
            payload = _dump_json({key: value for key, value in data["delta"].items() if key != "type"})
        case "message_delta":
            payload = f"{_dump_json(data['delta'])}  {_format_message_usage(data['usage'])}"
        case "error":
            payload = _dump_json(data["error"])
        case _:
            payload = ""
    return numbers.replace_ids(f"  {kind:<21} {index}{payload}").rstrip()


def _format_message_usage(usage: dict[str, Any]) -> str:
    return f"tokens {usage['input_tokens']} + {usage['cache_read_input_tokens']} cached, {usage['output_tokens']} out"


def _format_logprobs(logprobs: list[dict[str, Any]]) -> str:
    """Returns each token with its log-probability, and the most likely tokens in its place if there are any."""
    return " ".join(
        f"{entry['token']!r}:{entry['logprob']}"
        + (
            "(" + " ".join(f"{top['token']!r}:{top['logprob']}" for top in tops) + ")"
            if (tops := entry["top_logprobs"])
            else ""
        )
        for entry in logprobs
    )


def _dump_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
