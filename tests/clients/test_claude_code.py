"""The real Claude Code in print mode: it runs the tool that the model calls, and reports the tool's result."""

from pathlib import Path

from tests.clients.claude_code import install_claude_code, run_claude_code
from tests.serving import serve

KEY = "sk-claude-code-test"
CALL = '<tool_call>\n{"name": "Bash", "arguments": {"command": "echo marker-$((5000 + 417))", "description": "Print"}}\n</tool_call>'
SCRIPT = [
    {"name": "report", "when": ["marker-5417"], "output": ["It printed marker-5417."]},
    {"name": "call", "when": ["run the echo command"], "output": ["<think>\nRun it.\n</think>\n\n", CALL]},
    {"name": "other", "output": ["Hello."]},
]


def test_tool_is_run_and_its_result_reported(tmp_path: Path) -> None:
    program = install_claude_code()
    with serve(SCRIPT, api_keys=(KEY,)) as server:
        result = run_claude_code(program, server, "Please run the echo command", tmp_path / "home", KEY)
    assert (result["result"], result["is_error"], result["num_turns"]) == ("It printed marker-5417.", False, 2)
    posted = [record for record in server.access_records if record.path.startswith("/v1/messages")]
    assert len(posted) >= 2 and {record.status for record in posted} == {200}
