"""Lines of a stream: one for each event, ids numbered by appearance, constant keys and times left out.

The formats accept events of any server: what is missing or of a wrong type is shown, and raises nothing.
"""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from antiphon.kit.json_values import Json, as_list
from antiphon.kit.line_ends import escape_line_separators
from antiphon.kit.snapshot.id_numbers import IdNumbers

UNREADABLE_TYPE = "(unreadable)"
"""Type of the event that stands for a frame without a JSON object; `data` has its text."""

TIME_KEYS = frozenset({"created", "created_at", "completed_at", "expires_at"})
SHOWN_ITEM_KEYS = frozenset(
    {
        *("type", "id", "status", "phase", "namespace", "name", "call_id", "arguments", "input"),
        *("encrypted_content", "content", "summary", "role"),
    }
)
"""Keys of items that have a place of their own in the line, and the role, which is always the assistant's."""
MAX_OTHER_TEXT_CHARS = 200
"""Length to which a text without a format of its own is cut, such as an image."""


class LineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the parts of each event that the lines show."""

    sequence_numbers: bool = True
    usage: bool = True


ALL_SHOWN = LineOptions()


def format_event(data: Json, numbers: IdNumbers, options: LineOptions = ALL_SHOWN) -> str:
    """Returns a Responses event in one line. A terminal event has another line for each item."""
    event = numbers.number_ids(data)
    kind = str(event.get("type")).removeprefix("response.")
    number = f"{_show(event.get('sequence_number')):>3}  " if options.sequence_numbers else ""
    payload = _dump_json(event.get("data")) if kind == UNREADABLE_TYPE else _format_payload(event, options)
    return f"{number}{kind:<31} {_format_position(event)}{payload}".rstrip()


def _format_position(event: Json) -> str:
    item = f"{event['item_id']} " if "item_id" in event else ""
    if "output_index" not in event:
        return item
    inner = next((event[key] for key in ("content_index", "summary_index", "command_index") if key in event), None)
    return f"[{event['output_index']}{'' if inner is None else f'.{inner}'}] {item}"


def _format_payload(event: Json, options: LineOptions) -> str:
    if isinstance(event.get("response"), Mapping):
        return format_response(event["response"], options)
    for key in ("delta", "text", "refusal", "arguments", "input", "code", "command", "diff"):
        if key in event and event.get("type") != "error":
            scored = f"  {_format_logprobs(event['logprobs'])}" if event.get("logprobs") else ""
            return _dump_json(event[key]) + scored
    if isinstance(event.get("item"), Mapping):
        return format_item(event["item"])
    if isinstance(event.get("part"), Mapping):
        return format_part(event["part"])
    if "annotation" in event:
        return f"annotation {_show(event.get('annotation_index'))} {_dump_json(event['annotation'])}"
    shown = {"type", "sequence_number", "output_index", "item_id", "content_index", "summary_index"} | TIME_KEYS
    rest = {key: value for key, value in event.items() if key not in shown}
    return _dump_json(rest if event.get("type") == "error" else _clip_texts(rest)) if rest else ""


def format_response(data: Json, options: LineOptions = ALL_SHOWN) -> str:
    """Returns the status, details, error and usage in one line, then one line for each output item."""
    fields = [_show(data.get("status"))]
    fields += [_dump_json(data[key]) for key in ("incomplete_details", "error") if data.get(key)]
    if options.usage and isinstance(data.get("usage"), Mapping):
        fields.append(_format_usage(data["usage"]))
    return "  ".join(fields) + "".join(f"\n     - {format_item(item)}" for item in as_list(data.get("output")))


def _format_usage(usage: Json) -> str:
    cached = _find_detail(usage, "input_tokens_details", "cached_tokens")
    reasoning = _find_detail(usage, "output_tokens_details", "reasoning_tokens")
    return (
        f"tokens {_show(usage.get('input_tokens'))} (cached {_show(cached)})"
        f" + {_show(usage.get('output_tokens'))}"
        + (f" (reasoning {reasoning})" if reasoning else "")
        + f" = {_show(usage.get('total_tokens'))}"
    )


def _find_detail(usage: Json, details_key: str, key: str) -> Any:
    details = usage.get(details_key)
    return details.get(key) if isinstance(details, Mapping) else None


def format_item(data: Any) -> str:
    """Returns an item of the output in one line."""
    if not isinstance(data, Mapping):
        return _dump_json(data)
    fields = [_show(data.get("type")), _show(data.get("id")), _show(data.get("status"))]
    fields += [f"{key}={data[key]}" for key in ("phase", "namespace", "name") if data.get(key) is not None]
    fields += [f"call={data['call_id']}"] if "call_id" in data else []
    fields += [_dump_json(data[key]) for key in ("arguments", "input") if key in data]
    if data.get("encrypted_content") is not None:
        fields.append(f"encrypted={_dump_json(data['encrypted_content'])}")
    fields += [format_part(part) for part in [*as_list(data.get("content")), *as_list(data.get("summary"))]]
    others = [key for key in data if key not in SHOWN_ITEM_KEYS | TIME_KEYS and data[key] is not None]
    return " ".join(fields + [f"{key}={_dump_json(_clip_texts(data[key]))}" for key in others])


def format_part(data: Any) -> str:
    """Returns a part of a message or of reasoning."""
    if not isinstance(data, Mapping):
        return _dump_json(data)
    fields = [_show(data.get("type")), _dump_json(data.get("text", data.get("refusal")))]
    fields += [f"annotations={_dump_json(data['annotations'])}"] if data.get("annotations") else []
    fields += [f"logprobs={_format_logprobs(data['logprobs'])}"] if data.get("logprobs") else []
    return " ".join(fields)


def format_chunk(data: Json, numbers: IdNumbers, options: LineOptions = ALL_SHOWN) -> str:
    """Returns a chat chunk, one line for each choice and one for the usage."""
    if "error" in data:
        return f"     error {_dump_json(numbers.number_ids(data)['error'])}"
    if data.get("type") == UNREADABLE_TYPE:
        return f"  {UNREADABLE_TYPE}  {_dump_json(data.get('data'))}"
    chunk = numbers.number_ids(data)
    lines = [_format_choice(choice) for choice in as_list(chunk.get("choices"))]
    if options.usage and chunk.get("usage"):
        lines.append(f"  usage  {_dump_json(chunk['usage'])}")
    return "\n".join(lines)


def _format_choice(choice: Any) -> str:
    if not isinstance(choice, Mapping):
        return f"  {_dump_json(choice)}"
    logprobs = choice.get("logprobs")
    scored = f"  {_format_logprobs(logprobs.get('content') or [])}" if isinstance(logprobs, Mapping) else ""
    ending = f"  finish_reason={choice['finish_reason']}" if choice.get("finish_reason") else ""
    ending += f"  stop_reason={_dump_json(choice['stop_reason'])}" if choice.get("stop_reason") is not None else ""
    said = choice.get("delta", choice.get("message"))
    return f"  [{_show(choice.get('index'))}]  {_dump_json(said)}{scored}{ending}"


def _format_logprobs(logprobs: Any) -> str:
    """Returns each token with its log-probability, and the most likely tokens in its place if there are any."""
    if not all(isinstance(entry, Mapping) for entry in as_list(logprobs)):
        return _dump_json(logprobs)
    return " ".join(_format_token(entry) for entry in as_list(logprobs))


def _format_token(entry: Json) -> str:
    tops = [top for top in as_list(entry.get("top_logprobs")) if isinstance(top, Mapping)]
    likely = "(" + " ".join(f"{top.get('token')!r}:{top.get('logprob')}" for top in tops) + ")" if tops else ""
    return f"{entry.get('token')!r}:{entry.get('logprob')}{likely}"


def _show(value: object) -> str:
    return "-" if value is None else str(value)


def _clip_texts(value: Any) -> Any:
    """Returns a JSON value whose long texts, such as images, are cut."""
    if isinstance(value, Mapping):
        return {key: _clip_texts(inside) for key, inside in value.items()}
    if isinstance(value, list):
        return [_clip_texts(inside) for inside in value]
    if not isinstance(value, str) or len(value) <= MAX_OTHER_TEXT_CHARS:
        return value
    return f"{value[:MAX_OTHER_TEXT_CHARS]}… ({len(value)} characters)"


def _dump_json(value: object) -> str:
    return escape_line_separators(json.dumps(value, ensure_ascii=False, default=str))
