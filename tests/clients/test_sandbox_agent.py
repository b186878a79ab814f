"""A sandbox agent of openai-agents with its default capabilities, one of which asks for compaction in every request."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from antiphon.engine.protocol import EngineInfo
from tests.clients.python_install import PROGRAMS_FOLDER, install_python_clients, run_program
from tests.clients.reading_script import ASKED
from tests.clients.sdk_helpers import record_prompts
from tests.serving import RunningServer, scripted_registry, serve
from tests.snapshots.builtin_cases import write_call, write_patch

CONTEXT = 36_000
"""Context window in tokens. The threshold of the library is for OpenAI's models, and counts as nine tenths of this."""
ANSWER = "c.txt holds the number 41."
SCRIPT: list[dict[str, Any]] = [
    {"name": "summary", "when": [ASKED], "output": ["The summary."]},
    {"name": "answer", "when": ["The word is zebra.", "The summary.", "+The number is 41."], "output": [ANSWER]},
    {"name": "lost", "when": ["c.txt"], "output": ["The prompt lacks the word, the summary or the patch."]},
    {
        "name": "patch",
        "when": ["[page 2]"],
        "output": ["I write it down.\n\n", write_patch("*** Add File: c.txt\n+The number is 41.\n")],
        "tokens_per_chunk": 0,
    },
    *(
        {
            "name": f"read {path}",
            "when": [text],
            "output": ["I look.\n\n", write_call("exec_command", {"cmd": f"cat {path}"})],
            "tokens_per_chunk": 0,
        }
        for path, text in (("b.txt", "[page 1]"), ("a.txt", "The word is zebra."))
    ),
]
TASK = {
    "model": "scripted",
    "prompt": "Read a.txt and b.txt. The word is zebra.",
    "files": {"a.txt": "[page 1] " + "Words. " * 700, "b.txt": "[page 2] " + "Words. " * 700},
}
ITEMS = [
    ["message", None],
    ["function_call", "exec_command"],
    ["message", None],
    ["function_call", "exec_command"],
    ["compaction", None],
    ["message", None],
    ["custom_tool_call", "apply_patch"],
    ["message", None],
]
SERVER = partial(
    serve, partial(scripted_registry, SCRIPT, info=EngineInfo(max_model_len=CONTEXT, vocab_size=262_144, device="none"))
)


@pytest.mark.timeout(600)  # the first run installs packages
def test_sandbox_agent_runs_with_its_default_capabilities(
    server: RunningServer, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    prompts = record_prompts(server)
    task = json.dumps(TASK | {"url": server.url})
    command: list[str | Path] = [install_python_clients("python"), PROGRAMS_FOLDER / "sandbox_agent.py", task]
    results = run_program(command, tmp_path, TMPDIR=str(tmp_path))
    assert list(results) == ["run", "stream", "previous_response_id"]
    for name, seen in results.items():
        with subtests.test(run=name):
            assert seen["capabilities"] == ["filesystem", "shell", "compaction"]
            assert seen["items"] == ITEMS
            assert (seen["text"], seen["file"]) == (ANSWER, "The number is 41.")
    assert {record.status for record in server.access_records} == {200}
    assert [ASKED in prompt for prompt in prompts] == [False, False, True, False, False] * 3
    # Outputs of commands hold the time that each took, so the prompts of the runs differ.
    assert ["[page 1]" in prompt for prompt in prompts] == [False, True, True, False, False] * 3
