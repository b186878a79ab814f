"""Lines of every API's stream for the snapshots. Those of Responses and of chat are the kit's."""

import json
import re
from typing import Any

from antiphon.kit.snapshot import id_numbers
from antiphon.kit.snapshot.event_lines import format_chunk, format_event

__all__ = ["IdNumbers", "format_chunk", "format_completion_chunk", "format_event", "format_message_event"]

_ID = re.compile(r"\b(resp|rs|msg|fc|ctc|sh|apc|cmp|call|chatcmpl|mcptoolu|srvtoolu)[_-][0-9a-z]+\b")


class IdNumbers(id_numbers.IdNumbers):
    """Replaces ids in text, too: all ids of this server have a prefix, and no text of the cases looks like one."""

    def replace_ids(self, text: str) -> str:
        return _ID.sub(lambda match: self.number_id(match[0], match[1]), text)


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


def _dump_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
