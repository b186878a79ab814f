"""Deltas of a text, merged into one: how a server cuts a text into deltas has no meaning.

Only deltas that nothing but other deltas separates are merged, so a delta in a wrong place keeps its line.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from antiphon.kit.json_values import Json, as_list

KEEPALIVE_TYPES = ("keepalive", "response.keepalive")
STAGE_TYPES = tuple(
    f"response.{name}"
    for name in (
        *("mcp_call.in_progress", "web_search_call.searching", "file_search_call.searching"),
        *("code_interpreter_call.interpreting", "compaction.compacting"),
    )
)
"""Stages that a server repeats while it works."""
POSITION_KEYS = ("item_id", "output_index", "content_index", "summary_index", "command_index")
CALL_KEYS = ("index", "id", "type", "function", "custom", "name", "arguments", "input")
"""Order of the keys of a call. Servers and SDKs differ in it."""
CHAT_TEXT_KEYS = ("reasoning_content", "reasoning", "content", "refusal")


def merge_deltas(events: Iterable[Json]) -> list[Json]:
    """Returns Responses events with one delta for each text. Keepalives depend on time, and are left out.

    A server also repeats the stage of a tool that works: of those in a row, the first one stays.
    """
    merged: list[Json] = []
    run: dict[tuple[Any, ...], Json] = {}
    is_in_progress = False
    for event in events:
        kind = event.get("type")
        if kind in KEEPALIVE_TYPES or (kind == "response.in_progress" and is_in_progress):
            continue
        if kind in STAGE_TYPES and merged and merged[-1].get("type") == kind and _is_same_item(merged[-1], event):
            continue
        is_in_progress = kind != "response.created" and (is_in_progress or kind == "response.in_progress")
        if not _is_text_delta(event):
            run = {}
            merged.append(event)
            continue
        key = (kind, *(repr(event.get(name)) for name in POSITION_KEYS))
        if key in run:
            _extend_delta(run[key], event)
        else:
            run[key] = {**event}
            merged.append(run[key])
    return [event for event in merged if not (_is_text_delta(event) and event["delta"] == "")]


def _is_same_item(first: Json, event: Json) -> bool:
    return first.get("item_id") == event.get("item_id")


def _is_text_delta(event: Json) -> bool:
    return str(event.get("type")).endswith(".delta") and isinstance(event.get("delta"), str)


def _extend_delta(first: Json, event: Json) -> None:
    first["delta"] += event["delta"]
    if event.get("logprobs"):
        first["logprobs"] = [*as_list(first.get("logprobs")), *as_list(event["logprobs"])]


def merge_chunks(chunks: Iterable[Json]) -> list[Json]:
    """Returns chat chunks with one delta for each text and call, choice by choice; then errors and the usage."""
    choices: dict[Any, _ChoiceMerger] = {}
    rest: list[Json] = []
    for chunk in chunks:
        if "choices" not in chunk:
            rest.append(chunk)
            continue
        for choice in as_list(chunk["choices"]):
            if isinstance(choice, Mapping):
                index = repr(choice.get("index"))
                choices.setdefault(index, _ChoiceMerger(choice.get("index"))).add_choice(choice)
        if chunk.get("usage"):
            rest.append({"choices": [], "usage": chunk["usage"]})
    merged = [choice for _, merger in sorted(choices.items()) for choice in merger.list_choices()]
    return [*({"choices": [choice]} for choice in merged), *rest]


class _ChoiceMerger:
    """The deltas of one choice."""

    def __init__(self, index: Any) -> None:
        self._index = index
        self._choices: list[Json] = []
        self._text: tuple[str, Json] | None = None
        """The key and the choice of the text that the next delta may continue."""
        self._calls: list[Json] = []
        self._open_calls: dict[str, Json] = {}
        """The latest call by its index, which further fragments continue."""

    def add_choice(self, choice: Mapping[str, Any]) -> None:
        """Adds the choice of one chunk."""
        delta = choice.get("delta", choice.get("message"))
        if not isinstance(delta, Mapping):
            self._add({"delta": delta})
            return
        others = {key: value for key, value in delta.items() if key not in (*CHAT_TEXT_KEYS, "tool_calls") and value}
        if others:
            self._add({"delta": others})
        for key in CHAT_TEXT_KEYS:
            if isinstance(delta.get(key), str) and delta[key]:
                self._add_text(key, delta[key], choice.get("logprobs") if key in ("content", "refusal") else None)
        for fragment in as_list(delta.get("tool_calls")):
            self._add_fragment(fragment)
        ending = {key: choice[key] for key in ("finish_reason", "stop_reason") if choice.get(key) is not None}
        if ending:
            self._add({"delta": {}, **ending})

    def list_choices(self) -> list[Json]:
        """Returns the merged choices, in order."""
        for call in self._calls:
            _sort_keys(call)
        return self._choices

    def _add(self, choice: Json) -> Json:
        merged = {"index": self._index, **choice}
        self._choices.append(merged)
        self._text = None
        return merged

    def _add_text(self, key: str, text: str, logprobs: Any) -> None:
        if self._text is not None and self._text[0] == key:
            merged = self._text[1]
            merged["delta"][key] += text
        else:
            merged = self._add({"delta": {key: text}})
            self._text = key, merged
        scores = as_list(logprobs.get("content")) if isinstance(logprobs, Mapping) else []
        if scores:
            known = merged.setdefault("logprobs", {"content": []})
            known["content"] = [*known["content"], *scores]

    def _add_fragment(self, fragment: Any) -> None:
        if not isinstance(fragment, Mapping):
            self._add({"delta": {"tool_calls": [fragment]}})
            return
        index = repr(fragment.get("index"))
        known = self._open_calls.get(index)
        if known is None or (fragment.get("id") and known.get("id") and fragment["id"] != known["id"]):
            call = {key: {**value} if isinstance(value, Mapping) else value for key, value in fragment.items()}
            self._calls.append(call)
            self._open_calls[index] = call
            self._add({"delta": {"tool_calls": [call]}})
            return
        for key, value in fragment.items():
            if isinstance(value, Mapping):
                body = known.setdefault(key, {})
                for name, text in value.items():
                    is_text = name in ("arguments", "input") and isinstance(text, str)
                    body[name] = (body.get(name) or "") + text if is_text else text
            else:
                known[key] = value


def _sort_keys(call: Json) -> None:
    """Brings the keys of a call, and of the function in it, into a fixed order; others follow."""
    ordered = {key: call.pop(key) for key in [*CALL_KEYS, *call] if key in call}
    call.update(ordered)
    for inside in call.values():
        if isinstance(inside, dict):
            _sort_keys(inside)
