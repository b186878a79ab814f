"""Ids of a stream, replaced by their kind and a number in the order of their first appearance."""

import re
from collections.abc import Mapping
from typing import Any

from antiphon.kit.checker.schema import CHECKED_ID_PREFIXES

KIND_OF_TYPE = CHECKED_ID_PREFIXES | {"function_call_output": "fco", "custom_tool_call_output": "ctco"}
"""Kind of an id by the type of its item. Servers choose different prefixes for the same kind of item."""

KIND_OF_OBJECT = {"response": "resp", "chat.completion": "chatcmpl", "chat.completion.chunk": "chatcmpl"}
KIND_OF_KEY = {
    "call_id": "call",
    "response_id": "resp",
    "previous_response_id": "resp",
    "approval_request_id": "mcpr",
}
"""Kind of an id by its key."""
FALLBACK_OF_KEY = {"item_id": "item", "file_id": "file", "container_id": "cntr"}
"""Kind of an id that no item has shown before, and whose own prefix tells nothing."""

CHAT_CALL_KEYS = ("function", "custom")
PREFIXES = frozenset({*KIND_OF_TYPE.values(), *KIND_OF_OBJECT.values(), "call", "conv"})
MIN_ID_IN_MESSAGE_CHARS = 6
"""Length from which an id is also replaced inside error messages. A shorter one may be a word of the message."""


class IdNumbers:
    """Replaces the ids in events. An id that comes again gets the same number, so a changed id shows as another one."""

    def __init__(self) -> None:
        self._labels: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def number_id(self, original: str, kind: str) -> str:
        """Returns the kind and number of an id."""
        if original not in self._labels:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._labels[original] = f"{kind}_{self._counts[kind]}"
        return self._labels[original]

    def number_ids(self, value: Any) -> Any:
        """Returns a JSON value with all its ids replaced. Texts of the model stay as they are."""
        if isinstance(value, list):
            return [self.number_ids(inside) for inside in value]
        if not isinstance(value, Mapping):
            return value
        return {key: self._number_field(key, inside, value) for key, inside in value.items()}

    def _number_field(self, key: str, value: Any, owner: Mapping[str, Any]) -> Any:
        if not isinstance(value, str):
            return self.number_ids(value)
        if key == "id" or key in KIND_OF_KEY or key in FALLBACK_OF_KEY:
            return self.number_id(value, _find_kind(key, value, owner)) if value else value
        return self._replace_known_ids(value) if key == "message" else value

    def _replace_known_ids(self, text: str) -> str:
        for original, label in self._labels.items():
            if len(original) >= MIN_ID_IN_MESSAGE_CHARS:
                text = text.replace(original, label)
        return text


def _find_kind(key: str, value: str, owner: Mapping[str, Any]) -> str:
    prefix = re.match(r"[a-z]+(?=[_-])", value)
    known_prefix = prefix[0] if prefix and prefix[0] in PREFIXES else None
    if key in KIND_OF_KEY:
        return KIND_OF_KEY[key]
    if key in FALLBACK_OF_KEY:
        return known_prefix or FALLBACK_OF_KEY[key]
    if (kind := KIND_OF_TYPE.get(str(owner.get("type"))) or KIND_OF_OBJECT.get(str(owner.get("object")))) is not None:
        return kind
    if any(call_key in owner for call_key in CHAT_CALL_KEYS):
        return "call"
    return known_prefix or "id"
