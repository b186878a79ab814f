"""The model that a server is asked for."""

from typing import Any

import msgspec

from antiphon.kit.checker.schema import as_objects
from antiphon.kit.conformance.client import LiveClient, UnreachableError

CONTEXT_KEYS = ("max_model_len", "context_length", "context_window", "max_context_length", "n_ctx")
"""Keys by which servers say how many tokens a model's context holds."""


class TargetModel(msgspec.Struct, frozen=True):
    """A model of the server."""

    name: str
    context_length: int | None = None


def find_model(client: LiveClient, name: str | None) -> TargetModel:
    """Returns the model with this name, or the first of the list. Raises `UnreachableError` if there is none."""
    reply = client.send("GET", "/models")
    if reply.status == 0:
        raise UnreachableError(f"{client.root_url} does not answer: {reply.fault_text or reply.fault}")
    entries = as_objects((reply.read_object() or {}).get("data"))
    known = {str(entry.get("id")): entry for entry in entries if entry.get("id")}
    if name is None:
        if not known:
            raise UnreachableError(f"GET {client.base_url}/models gets {reply.status} and lists no model: use --model")
        name = next(iter(known))
    return TargetModel(name, _find_context(known.get(name, {})))


def _find_context(entry: dict[str, Any]) -> int | None:
    meta = entry.get("meta")
    for table in (entry, meta if isinstance(meta, dict) else {}):
        for key in CONTEXT_KEYS:
            if isinstance(table.get(key), int):
                return int(table[key])
    return None
