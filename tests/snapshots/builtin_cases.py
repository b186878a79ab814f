"""Cases that only Responses has: the built-in tools that the client runs, and compactions inside a request."""

import itertools
import json
from typing import Any

from tests.snapshots.cases import FAULT, RUN, WEATHER, Case

SHELL = {"type": "shell", "environment": {"type": "local"}}
PATCH = {"type": "apply_patch"}
LOCAL_SHELL = {"type": "local_shell"}
SEARCH = {"type": "tool_search", "execution": "client"}
DEFERRED_WEATHER = {**WEATHER, "defer_loading": True}
FOUND_WEATHER = [
    {"role": "user", "content": "How is the weather? [found_tool_called]"},
    {"type": "tool_search_call", "call_id": "call_search", "execution": "client", "arguments": {"query": "weather"}},
    {"type": "tool_search_output", "call_id": "call_search", "execution": "client", "tools": [WEATHER]},
]
CREATE = "*** Add File: a.md\n+# Title\n+\n"
UPDATE = "*** Update File: src/b.py\n@@ def greet():\n-    print('Hi')\n+    print('Hello')\n"
DELETE = "*** Delete File: old.txt\n"


def write_call(name: str, arguments: dict[str, Any]) -> str:
    """Returns a call as the dialect hermes writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def write_patch(*sections: str) -> str:
    """Returns a patch in the frame of raw text."""
    return (
        f"<tool_call>\n<custom=apply_patch>\n*** Begin Patch\n{''.join(sections)}*** End Patch\n</custom>\n</tool_call>"
    )


def cut_text(text: str, *places: str) -> list[str]:
    """Returns the text in parts, each of which begins with one of `places`."""
    starts = [0, *(text.index(place) for place in places), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(starts)]


def make_case(
    name: str, output: list[Any], comment: str = "", *, tools: tuple[Any, ...] = (SHELL, PATCH), **fields: Any
) -> Case:
    responses = {"tools": list(tools)} | fields.pop("responses", {})
    return Case(name, output, comment, faces=("responses",), responses=responses, **fields)


def make_compaction(name: str, summary: list[Any], output: list[Any], comment: str = "", **fields: Any) -> Case:
    question = {"role": "user", "content": "The beginning. " + "Words. " * 60}
    entry = {"type": "compaction", "compact_threshold": 1000}
    responses = {"input": [question, {"role": "user", "content": "Which words?"}], "context_management": [entry]}
    return make_case(name, output, comment, summary=summary, responses=responses, **fields)


PROGRAM = write_call("local_shell", {"command": ["ls", "-a"], "timeout_ms": 5000, "env": {"A": "1"}})
ONE_COMMAND = write_call("shell", {"commands": ["ls -a"], "max_output_length": 8912})
TWO_COMMANDS = write_call("shell", {"commands": ['cat "a b"', "echo \U0001f600"], "timeout_ms": 5000})
TWO_FILES = write_patch(CREATE, UPDATE)

BUILTIN_CASES = [
    make_case("shell_one_command", cut_text(ONE_COMMAND, "commands", "ls", "-a", "8912"), "settings appear in the finished item"),
    make_case("shell_two_commands", cut_text(TWO_COMMANDS, "cat", "a b", "echo", "de00", "5000"), "escapes are decoded"),
    make_case("shell_without_environment", [ONE_COMMAND], "the item has none either", tools=({"type": "shell"},)),
    make_case("shell_settings_first", [write_call("shell", {"max_output_length": 10, "timeout_ms": 1, "commands": ["ls"]})]),
    make_case("shell_empty_command", [write_call("shell", {"commands": ["", "ls"]})]),
    make_case("shell_no_command", [write_call("shell", {"commands": []})], "a call of nothing is never done", fails=True),
    make_case("shell_as_words", [write_call("shell", {"command": ["bash", "-lc", "ls | wc"]}), write_call("shell", {"cmd": ["cat", "a b"]})],
              "as models write it that no grammar binds"),
    make_case("shell_cut_before_its_arguments", ['<tool_call>\n{"name": "shell", "argu'], finish="length"),
    make_case("shell_cut_inside_a_command", [*cut_text(TWO_COMMANDS, "cat", "echo")[:2], "echo"], finish="length",
              comment="half a command is kept, and never done"),
    make_case("shell_cut_after_its_commands", [*cut_text(TWO_COMMANDS, "5000")[:1], "50"], finish="length"),
    make_case("shell_fault_inside_a_command", [*cut_text(TWO_COMMANDS, "a b")[:1], FAULT], fails=True),
    make_case("shell_beside_a_function_of_its_name", [write_call("builtin__shell", {"commands": ["ls"]}), write_call("shell", {"cmd": "x"})],
              "the built-in tool has another name for the model", tools=({**RUN, "name": "shell"}, SHELL)),
    make_case("shell_invented_by_gpt_oss", ['<|channel|>commentary to=container.exec <|constrain|>json<|message|>{"cmd":["bash","-lc","ls"]}<|call|>'],
              "the name that the model invents is that of the shell", dialect="gpt-oss"),
    make_case("shell_after_reasoning_and_text", ["<think>\nLook.\n</think>\n\nI look.\n\n", ONE_COMMAND]),
    make_case("patch_creates_a_file", cut_text(write_patch(CREATE), "*** Begin", "*** Add", "+#", "Title", "*** End")),
    make_case("patch_of_three_files", cut_text(write_patch(CREATE, UPDATE, DELETE), "*** Add", "*** Update", "+    p", "*** Delete"),
              "one item for each file"),
    make_case("patch_with_its_diffs", cut_text(write_patch(CREATE, UPDATE, DELETE), "*** Add", "Title", "*** Update", "+    p", "*** Delete"),
              "as OpenAI streams them", patch_diffs=True),
    make_case("patch_in_the_json_spelling", [write_call("apply_patch", {"input": f"*** Begin Patch\n{CREATE}*** End Patch"})]),
    make_case("patch_by_gpt_oss", ["<|channel|>commentary to=functions.apply_patch<|message|>*** Begin Patch\n", f"{UPDATE}*** End Patch\n<|call|>"],
              dialect="gpt-oss"),
    make_case("patch_by_gpt_oss_in_json", ["<|channel|>commentary to=functions.apply_patch <|constrain|>json<|message|>", json.dumps({"patch": f"*** Begin Patch\n{DELETE}*** End Patch"}), "<|call|>"],
              dialect="gpt-oss"),
    make_case("patch_without_its_frame_lines", [write_patch(CREATE).replace("*** Begin Patch\n", "").replace("*** End Patch\n", "")]),
    make_case("patch_of_an_empty_file", [write_patch("*** Add File: empty\n")], "clients reject an empty diff"),
    make_case("patch_that_moves_a_file", [write_patch("*** Update File: a\n*** Move to: b\n@@\n+x\n")], "renames are not offered", fails=True),
    make_case("patch_of_nothing", [write_patch()], fails=True),
    make_case("patch_cut_before_its_header", ["<tool_call>\n<custom=apply_patch>\n*** Begin Patch\n*** Add Fi"], finish="length",
              comment="no item yet"),
    make_case("patch_cut_inside_a_diff", [*cut_text(TWO_FILES, "*** Update", "+    p")[:2], "+   "], finish="length",
              comment="clients know no incomplete patch"),
    make_case("patch_cut_between_two_files", cut_text(TWO_FILES, "*** Update")[:1], finish="length"),
    make_case("patch_with_its_diffs_cut", cut_text(TWO_FILES, "*** Update", "+    p")[:2], finish="length", patch_diffs=True),
    make_case("patch_ends_with_the_turn_between_two_files", cut_text(TWO_FILES, "*** Update")[:1], "the model stopped inside the call", fails=True),
    make_case("patches_when_parallel_calls_are_off", [TWO_FILES], "the turn stops after the first file", responses={"parallel_tool_calls": False}),
    make_case("builtin_tools_forced", [ONE_COMMAND], responses={"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "shell"}]}}),
    make_case("builtin_and_other_calls", [ONE_COMMAND, write_call("get_weather", {"city": "Oslo"}), write_patch(DELETE)], tools=(WEATHER, SHELL, PATCH)),
    make_case("local_shell", cut_text(PROGRAM, "command", "-a", "env"), "emitted as a whole", tools=(LOCAL_SHELL,)),
    make_case("local_shell_line_in_a_list", [write_call("local_shell", {"command": ["ls -a"]})], "as one word", tools=(LOCAL_SHELL,)),
    make_case("local_shell_command_as_text", [write_call("local_shell", {"command": "ls | wc"})], tools=(LOCAL_SHELL,)),
    make_case("local_shell_cut", cut_text(PROGRAM, "-a")[:1], finish="length", tools=(LOCAL_SHELL,)),
    make_case("local_shell_without_command", [write_call("local_shell", {"command": []})], fails=True, tools=(LOCAL_SHELL,)),
    make_case("tool_search", cut_text(write_call("tool_search", {"query": "weather"}), "query", "weather"), tools=(SEARCH, DEFERRED_WEATHER)),
    make_case("tool_search_cut", ['<tool_call>\n{"name": "tool_search", "arguments": {"que'], finish="length", tools=(SEARCH,)),
    make_case("found_tool_called", [write_call("get_weather", {"city": "Oslo"})], "a search has found it", tools=(SEARCH, DEFERRED_WEATHER),
              responses={"input": FOUND_WEATHER}),
    make_case("deferred_tool_called", [write_call("get_weather", {"city": "Oslo"})], "as a call of an unknown tool", tools=(SEARCH, DEFERRED_WEATHER)),
    make_case("async_calls", [write_call("get_weather", {"city": "Oslo"}), write_call("get_time", {"city": "Oslo"})], "one of two tools is asynchronous",
              tools=({**WEATHER, "async": True}, {**WEATHER, "name": "get_time"})),
    make_case("builtin_tools_not_offered", [ONE_COMMAND], "a call of an unknown function", tools=(WEATHER,)),
]  # fmt: skip

COMPACTION_CASES = [
    make_compaction("compaction_before_the_answer", ["<think>\nShort.\n</think>\n\n", "The summary", " of it.\n"], ["Here it is."]),
    make_compaction("compaction_then_a_call", ["The summary."], ["I look.\n\n", ONE_COMMAND], "tools are those of the request"),
    make_compaction("compaction_without_a_summary", ["<think>\nHm.\n</think>\n\n"], ["All of it."], "the item holds the whole conversation"),
    make_compaction("compaction_fails", ["The sum", FAULT], ["All of it."], "the turn goes on with the whole conversation"),
    make_compaction("compaction_cancelled", ["The sum", {"stall": True}], ["Never said."], cancel=True),
]  # fmt: skip
