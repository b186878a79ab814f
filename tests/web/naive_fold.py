"""The response after each event, by the obvious way: each event changes one copy. It shares no idea with the page's fold."""

import copy
import json
from collections.abc import Iterator, Sequence
from typing import Any

Json = dict[str, Any]
LIFE_CYCLE = ("created", "queued", "in_progress", "completed", "incomplete", "failed")


def fold_events(events: Sequence[Json]) -> Iterator[Json]:
    """Yields the response after each event. The caller must not keep a response without copying it."""
    response: Json = {}
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind in LIFE_CYCLE:
            is_terminal = kind in LIFE_CYCLE[3:]
            output = response.get("output", [])
            response = copy.deepcopy(event["response"])
            if output and not is_terminal:
                response["output"] = output
        elif "output_index" in event:
            _apply_item_event(response["output"], kind, copy.deepcopy(event))
        yield response


def _apply_item_event(output: list[Any], kind: str, event: Json) -> None:
    index = event["output_index"]
    if kind == "output_item.added":
        assert index == len(output)
        output.append(event["item"])
    elif kind == "output_item.done":
        output[index] = event["item"]
    else:
        _apply_content_event(output[index], kind, event)


def _apply_content_event(item: Json, kind: str, event: Json) -> None:
    kind, _, stage = kind.rpartition(".")
    if kind in ("content_part", "reasoning_summary_part"):
        name, index = ("content", "content_index") if kind == "content_part" else ("summary", "summary_index")
        parts = item.setdefault(name, [])
        parts[event[index] :] = [event["part"]]
    elif kind == "output_text.annotation":
        item["content"][event["content_index"]]["annotations"].append(event["annotation"])
    elif kind == "shell_call_command":
        commands = item["action"]["commands"]
        index = event["command_index"]
        commands[index:] = [commands[index] + event["delta"] if stage == "delta" else event["command"]]
    elif stage in ("delta", "done"):
        _apply_text(*_find_text(item, kind, event), event)


def _find_text(item: Json, kind: str, event: Json) -> tuple[Json, str]:
    """Returns the object and the field of the text that an event belongs to."""
    match kind:
        case "output_text" | "reasoning_text":
            return item["content"][event["content_index"]], "text"
        case "refusal":
            return item["content"][event["content_index"]], "refusal"
        case "reasoning_summary_text":
            return item["summary"][event["summary_index"]], "text"
        case "function_call_arguments" | "mcp_call_arguments":
            return item, "arguments"
        case "custom_tool_call_input":
            return item, "input"
        case "code_interpreter_call_code":
            return item, "code"
        case "apply_patch_call_operation_diff":
            return item["operation"], "diff"
    raise AssertionError(f"{kind} is not folded")


def _apply_text(target: Json, field: str, event: Json) -> None:
    scores = event.get("logprobs")
    if "delta" not in event:
        target[field] = event[field]
        target |= {} if scores is None else {"logprobs": scores}
    else:
        target[field] = (target.get(field) or "") + event["delta"]
        target |= {"logprobs": [*target.get("logprobs", ()), *scores]} if scores else {}


def snapshot_responses(events: Sequence[Json]) -> list[Json]:
    """Returns a copy of the response after each event."""
    return [json.loads(json.dumps(response)) for response in fold_events(events)]
