"""A scripted server for conversations, and the command that talks to it."""

import os
import subprocess
from typing import Any

from tests.kit.pseudo_terminal import COMMAND
from tests.progress import HANG_TIMEOUT_S

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
_REPLIES: list[dict[str, Any]] = [
    {"when": ["21 degrees"], "output": ["It is warm in Oslo."]},
    {"when": ["The user cancelled this call."], "output": ["No weather, then."]},
    {"when": ["ask for the weather"], "output": ["<think>\nI need a tool.\n</think>\n\nLooking.\n\n", CALL]},
    {"when": ["be slow", "It begins", "first words"], "output": ["Hello, you. That was slow."]},
    {"when": ["be slow"], "output": ["It begins", {"pause": 600}, " and ends."]},
    {"when": ["first words", "second words"], "output": ["I remember both."]},
    {"when": ["second words"], "output": ["I know only the second."]},
    {"when": ["speak like a pirate", "first words"], "output": ["Arr."]},
    {"when": ["first words"], "output": ["Hello, ", "you. ", "\U0001f99c é"]},
    {"when": ["line one\nline two"], "output": ["Two lines."]},
    {"when": ["be cut"], "output": ["Half", " and more"], "tokens_per_chunk": 0, "fault": {"kind": "cut"}},
    {"when": ["say much"], "output": ["word " * 200]},
    {"when": ["think"], "output": ["<think>\nA deep thought.\n</think>\n\nThe answer."]},
]
SCRIPT = [{"name": f"reply-{number}", **reply} for number, reply in enumerate(_REPLIES)]
TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
APIS = ("responses", "chat", "messages")


def run_piped(*arguments: str, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Runs `antiphon chat` with pipes."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ANTIPHON_", "OPENAI_"))}
    return subprocess.run(
        [*COMMAND, "chat", *arguments],
        input=stdin,
        capture_output=True,
        env=kept | {"PYTHONUTF8": "1"} | environment,
        timeout=HANG_TIMEOUT_S,
        check=False,
    )
