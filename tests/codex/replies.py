"""Scripts: what a model is to say to Codex.

`NOTHING` comes last, so that an agent whose call led to nothing does not ask for ever.
"""

import json
from typing import Any

COMMAND = "echo antiphon-$((7000 + 391))"
"""Says `antiphon-7391`, which stands nowhere before it was executed."""
ONCE = ("model_providers.antiphon.stream_max_retries=0", "model_providers.antiphon.request_max_retries=0")
AGAIN = "model_providers.antiphon.stream_max_retries=1"


def reply(name: str, *speak: Any, when: str | None = None, **more: Any) -> dict[str, Any]:
    """One scripted turn, in pieces of a few tokens."""
    return {"name": name, "output": list(speak), "tokens_per_chunk": 7, **({"when": [when]} if when else {}), **more}


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def run(command: str) -> str:
    return call("exec_command", cmd=command)


NOTHING = reply("nothing", "Nothing came back.")
