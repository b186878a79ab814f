"""A scripted server with turns to look at, and the command that shows them."""

import os
import subprocess
from typing import Any

from antiphon.console.runtime_file import RuntimeInfo, write_runtime_file
from tests.kit.hostile_texts import HOSTILE_TEXTS
from tests.kit.pseudo_terminal import COMMAND
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer

ATTACK = "".join(text for name, text in HOSTILE_TEXTS.items() if name not in ("long", "nul"))
CALL = '<tool_call>\n{"name": "find", "arguments": {"a": 1}}\n</tool_call>'
TOOLS = [{"type": "function", "name": "find", "parameters": {"type": "object"}}]
SCRIPT: list[dict[str, Any]] = [
    {"name": "slow", "when": ["be slow"], "output": ["It begins", {"pause": 600}, " and ends."]},
    {"name": "hostile", "when": ["attack"], "output": [ATTACK], "tokens_per_chunk": 0},
    {
        "name": "call",
        "when": ["Search"],
        "output": ["<think>\nHm.\n</think>\n\nI look.\n", CALL],
        "tokens_per_chunk": 4,
    },
    {"name": "unknown", "when": ["Seek"], "output": [CALL.replace("find", "seek")], "tokens_per_chunk": 4},
    {"name": "any", "output": ["Hello there, how are you?"], "cached_tokens": 5, "tokens_per_chunk": 0},
]


def write_key(server: RunningServer) -> None:
    """Writes the runtime file of a server that runs in this process."""
    write_runtime_file(server.port, RuntimeInfo(url=server.url, page_key=server.context.page_key, pid=os.getpid()))


def clean_environment(**environment: str) -> dict[str, str]:
    """Returns this process's environment without servers and keys."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ANTIPHON_", "OPENAI_"))}
    return kept | {"PYTHONUTF8": "1"} | environment


def run_piped(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `antiphon inspect` with pipes."""
    return subprocess.run(
        [*COMMAND, "inspect", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        env=clean_environment(**environment),
        timeout=HANG_TIMEOUT_S,
        check=False,
    )
