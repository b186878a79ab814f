"""The real Codex with a model catalogue, which decides on its tools and its context limit."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.codex.codex_process import CodexCli
from tests.codex.recorder import TrafficRecorder
from tests.codex.replies import COMMAND, LAST_REPLY, NO_RETRIES, make_call, make_command_call, make_reply
from tests.conftest import StartServer
from tests.serving import scripted_registry

PATCH = """*** Begin Patch
*** Add File: note.txt
+written by a "patch"
+in two \\lines
*** End Patch"""
MODEL_ENTRY = {
    "slug": "scripted",
    "display_name": "Scripted",
    "description": None,
    "supported_reasoning_levels": [{"effort": "medium", "description": "as it comes"}],
    "shell_type": "default",
    "visibility": "list",
    "supported_in_api": True,
    "priority": 0,
    "availability_nux": None,
    "upgrade": None,
    "base_instructions": "You work in a folder.",
    "supports_reasoning_summaries": False,
    "support_verbosity": False,
    "default_verbosity": None,
    "apply_patch_tool_type": "freeform",
    "truncation_policy": {"mode": "bytes", "limit": 10_000},
    "supports_parallel_tool_calls": True,
    "context_window": 100_000,
    "experimental_supported_tools": [],
}
"""The smallest catalogue entry with which Codex offers `apply_patch` to a model."""
CODE_MODE = {"tool_mode": "code_mode_only"}
LITE = {"tool_mode": "code_mode_only", "use_responses_lite": True}
PROGRAM = f'text(await tools.exec_command({{cmd: "{COMMAND}"}}));'


def write_catalog(folder: Path, **fields: Any) -> str:
    """Writes a catalogue with one model, and returns the option with its path."""
    path = folder / "models.json"
    path.write_text(json.dumps({"models": [{**MODEL_ENTRY, **fields}]}), encoding="utf-8")
    return f"model_catalog_json={json.dumps(str(path))}"


REPORT = "It is written."
PATCH_SCRIPTS = [
    pytest.param("hermes", f"<tool_call>\n<custom=apply_patch>\n{PATCH}\n</custom>\n</tool_call>", REPORT, id="raw"),
    pytest.param("hermes", make_call("apply_patch", input=PATCH), REPORT, id="as JSON"),
    pytest.param(
        "gpt-oss",
        f"<|channel|>commentary to=functions.apply_patch code<|message|>{PATCH}<|call|>",
        f"<|channel|>final<|message|>{REPORT}<|return|>",
        id="gpt-oss",
    ),
]


@pytest.mark.parametrize(("dialect", "call_text", "report_text"), PATCH_SCRIPTS)
def test_patch_writes_a_file(
    codex: CodexCli,
    start_server: StartServer,
    recorder: TrafficRecorder,
    dialect: str,
    call_text: str,
    report_text: str,
) -> None:
    script = [
        make_reply("report", report_text, when="Success. Updated the following files"),
        make_reply("patch", call_text),
        LAST_REPLY,
    ]
    server = start_server(scripted_registry(script, dialect=dialect), wrap_app=recorder.wrap_app)
    run = codex.exec(server, "Write it.", write_catalog(codex.home))
    assert run.exit_code == 0 and run.final_message == REPORT
    assert (codex.work_folder / "note.txt").read_text(encoding="utf-8") == 'written by a "patch"\nin two \\lines\n'
    [change] = run.items_of_type("file_change")
    assert change["status"] == "completed"
    first, second = recorder.turns
    assert "custom" in {tool["type"] for tool in first.body["tools"]}
    [call_item] = second.items_of_type("custom_tool_call")
    assert (call_item["name"], call_item["input"]) == ("apply_patch", PATCH)


@pytest.mark.parametrize(
    ("model", "flat_name", "namespace"), [(CODE_MODE, "exec", None), (LITE, "functions__exec", "functions")]
)
def test_code_mode_program_runs_a_command(
    codex: CodexCli,
    start_server: StartServer,
    recorder: TrafficRecorder,
    model: dict[str, Any],
    flat_name: str,
    namespace: str | None,
) -> None:
    """A lite model gets its tools as an input item, each in a namespace, including custom tools."""
    script = [
        make_reply("report", "It says antiphon-7391.", when="antiphon-7391"),
        make_reply("run", f"<tool_call>\n<custom={flat_name}>\n{PROGRAM}\n</custom>\n</tool_call>"),
        LAST_REPLY,
    ]
    run = codex.exec(start_server(script, wrap_app=recorder.wrap_app), "Run it.", write_catalog(codex.home, **model))
    assert run.exit_code == 0 and run.final_message == "It says antiphon-7391."
    first, second = recorder.turns
    assert (first.input[0]["type"] == "additional_tools") == (model is LITE)
    [call_item] = second.items_of_type("custom_tool_call")
    assert (call_item["name"], call_item.get("namespace"), call_item["input"]) == ("exec", namespace, PROGRAM)
    [output] = second.items_of_type("custom_tool_call_output")
    assert isinstance(output["output"], list), "parts, not a string"


UNCLOSED_PROGRAM_CALL = '<tool_call>\n<custom=exec>\ntext(await tools.exec_command({cmd: "echo > made"}));\n'


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_truncated_program_is_not_run(
    codex: CodexCli, start_server: StartServer, recorder: TrafficRecorder, finish: str
) -> None:
    """Unlike truncated JSON, a truncated program may be valid. Only the missing `output_item.done` keeps it from
    running.
    """
    created_file, report = codex.work_folder / "made", make_reply("made", "Made.", when="Script completed")
    complete = make_reply("whole", UNCLOSED_PROGRAM_CALL, "</custom>\n</tool_call>")
    truncated = make_reply("half", UNCLOSED_PROGRAM_CALL, finish=finish)
    run = codex.exec(
        start_server([report, complete], wrap_app=recorder.wrap_app), "Run it.", write_catalog(codex.home, **CODE_MODE)
    )
    assert run.exit_code == 0 and created_file.exists()
    created_file.unlink()
    run = codex.exec(
        start_server([report, truncated], wrap_app=recorder.wrap_app),
        "Run it.",
        write_catalog(codex.home, **CODE_MODE),
        *NO_RETRIES,
    )
    assert run.exit_code == 1 and run.events_of_type("turn.failed") and not created_file.exists()
    assert recorder.turns[-1].events[-1]["response"]["output"][-1]["input"].endswith('made"}));\n')


MODEL_ENTRIES = [
    pytest.param({"supports_search_tool": True}, {"tool_search"}, id="search"),
    pytest.param(
        {"input_modalities": ["text", "image"], "web_search_tool_type": "text_and_image"}, {"web_search"}, id="images"
    ),
    pytest.param({"support_verbosity": True, "default_verbosity": "low"}, {"namespace"}, id="verbosity"),
    pytest.param({"supports_reasoning_summaries": True, "default_reasoning_level": "medium"}, {"custom"}, id="effort"),
]


@pytest.mark.parametrize(("model", "kinds"), MODEL_ENTRIES)
def test_every_offered_tool_type_is_accepted(
    codex: CodexCli, start_server: StartServer, recorder: TrafficRecorder, model: dict[str, Any], kinds: set[str]
) -> None:
    run = codex.exec(
        start_server([make_reply("hello", "Hello.")], wrap_app=recorder.wrap_app),
        "Hi.",
        write_catalog(codex.home, **model),
        *NO_RETRIES,
    )
    assert run.exit_code == 0 and run.final_message == "Hello."
    assert kinds <= {tool["type"] for tool in recorder.turns[0].body["tools"]}


def test_long_session_is_summarized_by_codex(
    codex: CodexCli, start_server: StartServer, recorder: TrafficRecorder
) -> None:
    """Codex counts the reported usage, asks for a summary without offering tools, and continues from it."""
    script = [
        make_reply("go on", "I went on.", when="The summary: there were many numbers."),
        make_reply("sum up", "The summary: there were many numbers.", when="CONTEXT CHECKPOINT COMPACTION"),
        make_reply("second", make_command_call("echo second"), when="Process exited with code 0"),
        make_reply("first", make_command_call("seq 1 4000")),
        LAST_REPLY,
    ]
    limit = "model_auto_compact_token_limit=26000"
    run = codex.exec(start_server(script, wrap_app=recorder.wrap_app), "Count.", write_catalog(codex.home), limit)
    assert run.exit_code == 0 and run.final_message == "I went on."
    assert len(run.items_of_type("command_execution")) == 2
    _, second, summary, after = recorder.turns
    assert second.events[-1]["response"]["usage"]["total_tokens"] > 26_000
    assert summary.body["tools"] == []
    assert {item["type"] for item in after.input} == {"message"}, "the summary replaces calls and outputs"
