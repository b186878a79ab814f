"""Scripted model replies for Codex.

`LAST_REPLY` ends a script, so that an agent whose call had no result does not ask again forever.
"""

import json
from typing import Any

COMMAND = "echo antiphon-$((7000 + 391))"
"""Prints `antiphon-7391`, which no prompt contains before the command has run."""
NO_RETRIES = ("model_providers.antiphon.stream_max_retries=0", "model_providers.antiphon.request_max_retries=0")
ONE_RETRY = "model_providers.antiphon.stream_max_retries=1"


def make_reply(name: str, *output: Any, when: str | None = None, **fields: Any) -> dict[str, Any]:
    """Returns one scripted reply, which the engine sends seven tokens at a time."""
    return {"name": name, "output": list(output), "tokens_per_chunk": 7, **({"when": [when]} if when else {}), **fields}


def make_call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def make_command_call(command: str) -> str:
    return make_call("exec_command", cmd=command)


LAST_REPLY = make_reply("nothing", "Nothing came back.")
