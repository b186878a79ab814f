"""Faults of a reply in one piece."""

from typing import Any

import msgspec

from antiphon.kit.faults.arguments import break_arguments
from antiphon.kit.faults.fault import WireFault


def break_json_reply(fault: WireFault, body: bytes) -> bytes:
    """Returns the body with broken arguments: of the `number`-th function call of a response or chat completion."""
    reply = msgspec.json.decode(body)
    owners = list(_find_arguments(reply))
    number = fault.number or 1
    if len(owners) < number:
        return body
    owner = owners[number - 1]
    owner["arguments"] = break_arguments(owner["arguments"])
    return msgspec.json.encode(reply)


def _find_arguments(reply: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the objects that have the arguments of calls, in order."""
    owners = [item for item in reply.get("output") or () if item.get("type") == "function_call"]
    for choice in (reply.get("choices") or ())[:1]:
        calls = (choice.get("message") or {}).get("tool_calls") or ()
        owners += [call["function"] for call in calls if "function" in call]
    return owners
