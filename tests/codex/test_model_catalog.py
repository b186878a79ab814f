"""What Codex does depends on what it knows of a model. A catalogue tells it: other tools, and how much it may hold."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.codex.codex_process import Codex
from tests.codex.recorder import Tape
from tests.codex.replies import COMMAND, NOTHING, ONCE, call, reply, run
from tests.conftest import Serve
from tests.serving import scripted_registry

PATCH = """*** Begin Patch
*** Add File: note.txt
+written by a "patch"
+in two \\lines
*** End Patch"""
CATALOGUE = {
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
"""The least that Codex must know of a model before it offers it `apply_patch`."""
CODE_MODE = {"tool_mode": "code_mode_only"}
LITE = {"tool_mode": "code_mode_only", "use_responses_lite": True}
SCRIPT = f'text(await tools.exec_command({{cmd: "{COMMAND}"}}));'


def known(folder: Path, **more: Any) -> str:
    """The setting that tells Codex of the model."""
    path = folder / "models.json"
    path.write_text(json.dumps({"models": [{**CATALOGUE, **more}]}), encoding="utf-8")
    return f"model_catalog_json={json.dumps(str(path))}"


DONE = "It is written."
PATCHES = [
    pytest.param("hermes", f"<tool_call>\n<custom=apply_patch>\n{PATCH}\n</custom>\n</tool_call>", DONE, id="raw"),
    pytest.param("hermes", call("apply_patch", input=PATCH), DONE, id="as JSON"),
    pytest.param(
        "gpt-oss",
        f"<|channel|>commentary to=functions.apply_patch code<|message|>{PATCH}<|call|>",
        f"<|channel|>final<|message|>{DONE}<|return|>",
        id="gpt-oss",
    ),
]


@pytest.mark.parametrize(("dialect", "spoken", "told"), PATCHES)
def test_a_patch_really_writes_a_file(
    codex: Codex, server: Serve, tape: Tape, dialect: str, spoken: str, told: str
) -> None:
    script = [
        reply("report", told, when="Success. Updated the following files"),
        reply("patch", spoken),
        NOTHING,
    ]
    served = server(scripted_registry(script, dialect=dialect), around=tape.around)
    ran = codex.exec(served, "Write it.", known(codex.home))
    assert ran.code == 0 and ran.final == DONE
    assert (codex.work / "note.txt").read_text(encoding="utf-8") == 'written by a "patch"\nin two \\lines\n'
    [change] = ran.items("file_change")
    assert change["status"] == "completed"
    first, second = tape.turns
    assert "custom" in {tool["type"] for tool in first.body["tools"]}
    [made] = second.items("custom_tool_call")
    assert (made["name"], made["input"]) == ("apply_patch", PATCH)


@pytest.mark.parametrize(
    ("model", "flat", "namespace"), [(CODE_MODE, "exec", None), (LITE, "functions__exec", "functions")]
)
def test_a_program_runs_a_command(
    codex: Codex, server: Serve, tape: Tape, model: dict[str, Any], flat: str, namespace: str | None
) -> None:
    """A lite model's tools come as an input item, each in a namespace, custom ones too."""
    script = [
        reply("report", "It says antiphon-7391.", when="antiphon-7391"),
        reply("run", f"<tool_call>\n<custom={flat}>\n{SCRIPT}\n</custom>\n</tool_call>"),
        NOTHING,
    ]
    ran = codex.exec(server(script, around=tape.around), "Run it.", known(codex.home, **model))
    assert ran.code == 0 and ran.final == "It says antiphon-7391."
    first, second = tape.turns
    assert (first.input[0]["type"] == "additional_tools") == (model is LITE)
    [made] = second.items("custom_tool_call")
    assert (made["name"], made.get("namespace"), made["input"]) == ("exec", namespace, SCRIPT)
    [output] = second.items("custom_tool_call_output")
    assert isinstance(output["output"], list), "parts, not a string"


HALF = '<tool_call>\n<custom=exec>\ntext(await tools.exec_command({cmd: "echo > made"}));\n'


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_half_a_program_that_could_run_is_not_run(codex: Codex, server: Serve, tape: Tape, finish: str) -> None:
    """Unlike half of a JSON object, half of a program may well be one: only that it is never done keeps it from running."""
    made, said = codex.work / "made", reply("made", "Made.", when="Script completed")
    whole, half = reply("whole", HALF, "</custom>\n</tool_call>"), reply("half", HALF, finish=finish)
    ran = codex.exec(server([said, whole], around=tape.around), "Run it.", known(codex.home, **CODE_MODE))
    assert ran.code == 0 and made.exists()
    made.unlink()
    ran = codex.exec(server([said, half], around=tape.around), "Run it.", known(codex.home, **CODE_MODE), *ONCE)
    assert ran.code == 1 and ran.of("turn.failed") and not made.exists()
    assert tape.turns[-1].events[-1]["response"]["output"][-1]["input"].endswith('made"}));\n')


OFFERS = [
    pytest.param({"supports_search_tool": True}, {"tool_search"}, id="search"),
    pytest.param(
        {"input_modalities": ["text", "image"], "web_search_tool_type": "text_and_image"}, {"web_search"}, id="images"
    ),
    pytest.param({"support_verbosity": True, "default_verbosity": "low"}, {"namespace"}, id="verbosity"),
    pytest.param({"supports_reasoning_summaries": True, "default_reasoning_level": "medium"}, {"custom"}, id="effort"),
]


@pytest.mark.parametrize(("model", "kinds"), OFFERS)
def test_whatever_is_offered_is_accepted(
    codex: Codex, server: Serve, tape: Tape, model: dict[str, Any], kinds: set[str]
) -> None:
    ran = codex.exec(server([reply("hello", "Hello.")], around=tape.around), "Hi.", known(codex.home, **model), *ONCE)
    assert ran.code == 0 and ran.final == "Hello."
    assert kinds <= {tool["type"] for tool in tape.turns[0].body["tools"]}


def test_a_session_that_grew_too_long_is_summed_up(codex: Codex, server: Serve, tape: Tape) -> None:
    """Codex goes by the usage it was told, asks for a summary without offering tools, and goes on from that."""
    script = [
        reply("go on", "I went on.", when="The summary: there were many numbers."),
        reply("sum up", "The summary: there were many numbers.", when="CONTEXT CHECKPOINT COMPACTION"),
        reply("second", run("echo second"), when="Process exited with code 0"),
        reply("first", run("seq 1 4000")),
        NOTHING,
    ]
    limit = "model_auto_compact_token_limit=26000"
    ran = codex.exec(server(script, around=tape.around), "Count.", known(codex.home), limit)
    assert ran.code == 0 and ran.final == "I went on."
    assert len(ran.items("command_execution")) == 2
    _, second, summary, after = tape.turns
    assert second.events[-1]["response"]["usage"]["total_tokens"] > 26_000
    assert summary.body["tools"] == []
    assert {item["type"] for item in after.input} == {"message"}, "calls and outputs are gone"
