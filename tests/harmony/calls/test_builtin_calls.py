"""Calls of built-in tools in every dialect: any split gives the same items, and text of no call becomes no half item."""

import itertools
import json
import random
from typing import Any

import pytest

from antiphon.events.tools import FunctionTool, PatchTool, ShellTool
from antiphon.harmony.builtin_tools import SHELL_SCHEMA
from antiphon.harmony.calls.builtin.patch import MAX_OPERATIONS, PatchReader
from antiphon.harmony.detection.detect import DIALECTS
from antiphon.harmony.dialect import Dialect
from antiphon.harmony.format import PromptInput
from antiphon.harmony.parsing.tape import MalformedText
from antiphon.harmony.rendered_prompt import RenderedPrompt
from antiphon.harmony.tools import ToolTable
from antiphon.state.segments import Arguments, Call, Close
from tests.harmony import parser_helpers
from tests.harmony.calls.builtin_call_helpers import (
    EACH_DIALECT,
    PROMPT,
    TOOLS,
    read_items,
    read_output,
    read_patch,
    read_shell,
    write_call,
)
from tests.harmony.dialect_outputs import draw_output_under_grammar
from tests.harmony.grammar_helpers import grammar_accepts

COMMANDS = ['cat "a b" | wc', "", "echo \U0001f600 \\n\ttab é"]
SHELL_ARGUMENTS = json.dumps({"commands": COMMANDS, "timeout_ms": 5000})
CREATE, UPDATE = "+# Title\n+\n+*** Delete File: no\n", "@@ def f():\n a\n-b\n+c\n@@\n+d\n*** End of File\n"
PATCH = (
    f"*** Begin Patch\n*** Add File: docs/a b.md\n{CREATE}*** Update File: src/é.py\n{UPDATE}"
    "*** Delete File: old.txt\n*** End Patch"
)
OPERATIONS = [
    ("create_file", "docs/a b.md", CREATE),
    ("update_file", "src/é.py", UPDATE),
    ("delete_file", "old.txt", ""),
]


@EACH_DIALECT
@pytest.mark.parametrize(
    ("tool", "arguments", "expected"),
    [("shell", SHELL_ARGUMENTS, [(COMMANDS, {"timeout_ms": 5000})]), ("apply_patch", PATCH, OPERATIONS)],
)
def test_any_split_of_a_call_gives_the_same_items(name: str, tool: str, arguments: str, expected: list[Any]) -> None:
    text, rng = write_call(name, tool, arguments), random.Random(name)
    for model_format in parser_helpers.load_formats(name):
        tokens = model_format.encode(text)
        assert read_output(model_format, tokens) == (expected, False)
        step = len(tokens) // 40 + 1 if not parser_helpers.FULL_COUNTS else 1
        splits = [range(len(tokens)), *([cut] for cut in range(rng.randrange(step), len(tokens), step))]
        for cuts in splits:
            assert read_output(model_format, tokens, cuts) == (expected, False)


@EACH_DIALECT
@pytest.mark.parametrize(("tool", "arguments"), [("shell", SHELL_ARGUMENTS), ("apply_patch", PATCH)])
def test_truncated_call_has_no_item_that_is_done_too_early(name: str, tool: str, arguments: str) -> None:
    model_format = parser_helpers.load_formats(name)[0]
    tokens = model_format.encode(write_call(name, tool, arguments))
    complete, _ = read_output(model_format, tokens)
    for end in range(0, len(tokens), len(tokens) // 40 + 1):
        items, _ = read_output(model_format, tokens[:end], natural=False)
        done = [item for item in items if item is not ...]
        assert done == complete[: len(done)]
        assert len(items) - len(done) <= 1


@EACH_DIALECT
def test_grammar_accepts_the_calls_and_no_others(name: str) -> None:
    if name == "gpt-oss":
        return  # tests/harmony/gptoss has its grammar
    model_format = parser_helpers.load_formats(name)[0]
    prompt_input = PromptInput(tools=TOOLS, tool_choice="required")
    commands = json.dumps({"commands": ["ls"], "timeout_ms": 5})
    assert grammar_accepts(model_format, write_call(name, "shell", commands), prompt_input)
    if name == "pythonic":
        return  # it has no frame for raw text, so its grammar has no patch
    assert grammar_accepts(model_format, write_call(name, "apply_patch", PATCH), prompt_input)
    assert not grammar_accepts(model_format, write_call(name, "shell", '{"commands": []}'), prompt_input)
    assert not grammar_accepts(
        model_format, write_call(name, "apply_patch", "*** Begin Patch\n*** End Patch"), prompt_input
    )
    assert not grammar_accepts(
        model_format, write_call(name, "apply_patch", PATCH.replace("*** Delete", "*** Move")), prompt_input
    )


@pytest.mark.parametrize("name", ["hermes", "mistral", "apertus", "kimi-k2", "qwen3-coder"])
def test_grammar_takes_one_command_as_a_string_where_calls_are_json(name: str) -> None:
    """Elsewhere, the text of a parameter would be both: a string, and an array."""
    model_format = parser_helpers.load_formats(name)[0]
    call = write_call(name, "shell", '{"commands": "ls -a"}')
    accepted = grammar_accepts(model_format, call, PromptInput(tools=TOOLS, tool_choice="required"))
    assert accepted == (name != "qwen3-coder")
    assert read_output(model_format, model_format.encode(call)) == ([(["ls -a"], {})], False)


def test_grammar_of_gpt_oss_takes_one_command_as_a_string() -> None:
    model_format = parser_helpers.load_formats("gpt-oss")[0]
    grammar = model_format.build_grammar(
        RenderedPrompt((), "", False), PromptInput(tools=TOOLS, tool_choice="required")
    )
    assert grammar is not None
    assert json.dumps({"commands": SHELL_SCHEMA["properties"]["commands"]})[1:-1] in grammar


def test_one_file_a_call_if_calls_are_not_parallel() -> None:
    model_format = parser_helpers.load_formats("hermes")[0]
    tools = ToolTable.from_request([PatchTool()], single_call=True)
    prompt_input = PromptInput(tools=tools, tool_choice="required", single_call=True)
    one_file = f"*** Begin Patch\n*** Add File: a\n{CREATE}*** End Patch"
    assert grammar_accepts(model_format, write_call("hermes", "apply_patch", one_file), prompt_input)
    assert not grammar_accepts(model_format, write_call("hermes", "apply_patch", PATCH), prompt_input)


@pytest.mark.parametrize("dialect", [DIALECTS["hermes"], DIALECTS["glm"]], ids=lambda dialect: dialect.name)
def test_random_output_under_the_grammar_is_a_call_that_clients_can_apply(dialect: Dialect) -> None:
    model_format, rng, complete = parser_helpers.load_formats(dialect.name)[0], random.Random(dialect.name), 0
    for _ in range(40):
        tokens = draw_output_under_grammar(model_format, PromptInput(tools=TOOLS, tool_choice="required"), rng)
        if tokens is None:
            continue
        reader = model_format.create_reader(RenderedPrompt((), ""), PROMPT)
        segments = [*reader.feed(tokens), *reader.finish(natural=True)]
        assert not reader.call_failed, model_format.decode(tokens)
        assert ... not in read_items(segments)
        complete += 1
        for kind, _, diff in (item for item in read_items(segments) if len(item) == 3):
            starts = {"create_file": ("+",), "update_file": ("@@", " ", "-", "+", "*** End of File"), "delete_file": ()}
            assert (
                all(line.startswith(starts[kind]) for line in diff.removesuffix("\n").split("\n"))
                or kind == "delete_file"
            )
    assert complete


@pytest.mark.parametrize(
    ("text", "commands", "settings"),
    [
        ('{"commands": ["ls", "pwd"]}', ["ls", "pwd"], {}),
        (' {"timeout_ms":1,"x":[{"y":"]"}],"commands":["a"],"max_output_length":null} ', ["a"], {"timeout_ms": 1}),
        ('{"commands": "ls"}', ["ls"], {}),
        ('{"command": "ls -a"}', ["ls -a"], {}),
        ('{"cmd": ["bash", "-lc", "ls | wc"]}', ["ls | wc"], {}),
        ('{"cmd": ["git", "commit", "-m", "a b"], "timeout_ms": 10}', ["git commit -m 'a b'"], {"timeout_ms": 10}),
        (r'{"commands": ["\ud83d\ude00 \u00e9 \ud800 \\ \" \/ \n"]}', ['\U0001f600 é � \\ " / \n'], {}),
        ('{"commands": ["ls"], "timeout_ms": 9223372036854775808}', ["ls"], {"timeout_ms": 1 << 63}),
        (json.dumps({"commands": ["x"] * 10_000}), ["x"] * 10_000, {}),
    ],
)  # fmt: skip
def test_shell_arguments(text: str, commands: list[str], settings: dict[str, int]) -> None:
    assert read_shell(text) == [(commands, settings)]
    for cut in range(1, len(text) if len(text) < 200 else 3):
        assert read_shell(text, [cut]) == [(commands, settings)]
    if len(text) < 200:
        assert read_shell(text, range(len(text))) == [(commands, settings)]


@pytest.mark.parametrize(
    "text",
    ["", "ls", "[]", "{}", '{"commands": []}', '{"commands": [1]}', '{"commands": ["ls"', '{"commands": ["ls"]',
     '{"commands": ["ls"], "timeout_ms": 0}', '{"commands": ["ls"], "timeout_ms": "5"}', '{"commands": null}',
     '{"cmd": []}', '{"cmd": [1]}', '{"commands": ["ls"]} and more', '{"commands": ["ls"], "timeout_ms": true}'],
)  # fmt: skip
def test_text_that_is_no_shell_call(text: str) -> None:
    with pytest.raises(MalformedText):
        read_shell(text)


@pytest.mark.parametrize(
    ("text", "items"),
    [
        (PATCH, OPERATIONS),
        (PATCH + "\n", OPERATIONS),
        ("Here it is:\n" + PATCH + "\nDone.", OPERATIONS),
        (json.dumps({"patch": PATCH}), OPERATIONS),
        (PATCH.replace("\n", "\r\n"), [(kind, path, diff.replace("\n", "\r\n")) for kind, path, diff in OPERATIONS]),
        ("*** Add File: a\n+x\n", [("create_file", "a", "+x\n")]),
        ("*** Add File: a\n+x", [("create_file", "a", "+x")]),
        ("*** Begin Patch\n*** Add File: a\n*** End Patch", [("create_file", "a", "+\n")]),
        ("*** Begin Patch\n*** Delete File: a\n+ignored\n*** End Patch", [("delete_file", "a", "")]),
        ("*** Begin Patch\n*** Update File: a\n@@\n***\n*bold*\n*** End Patch", [("update_file", "a", "@@\n***\n*bold*\n")]),
        ("*** Begin Patch\n*** Add File: a\n+*** End Patch\n*** End Patch", [("create_file", "a", "+*** End Patch\n")]),
    ],
)  # fmt: skip
def test_patch_text(text: str, items: list[Any]) -> None:
    assert read_patch(text) == items
    for cut in range(1, len(text)):
        assert read_patch(text, [cut]) == items
    assert read_patch(text, range(len(text))) == items


@pytest.mark.parametrize(
    "text",
    ["", "Hello.", "*** Begin Patch\n*** End Patch", "*** Begin Patch\n*** Update File: a\n*** End Patch",
     "*** Begin Patch\n*** Update File: a\n*** Move to: b\n@@\n+x\n*** End Patch", '{"patch": 1}', '{"patch": "*** Add',
     "*** Add File:  \n+x\n"],
)  # fmt: skip
def test_text_that_is_no_patch(text: str) -> None:
    with pytest.raises(MalformedText):
        read_patch(text)


def test_patch_ends_after_the_last_file_that_a_call_may_have() -> None:
    files = "".join(f"*** Delete File: {number}\n" for number in range(5000))
    items = read_patch(f"*** Begin Patch\n{files}*** End Patch")
    assert items == [("delete_file", str(number), "") for number in range(MAX_OPERATIONS)]


def test_long_diff_without_line_end_is_read_in_linear_time() -> None:
    """Each of these takes minutes if a step copies what was read before."""
    pieces = ["x" * 20] * 100_000
    for head in ("+", "*"):
        text = ["*** Begin Patch\n*** Add File: a\n", head, *pieces, "\n*** End Patch"]
        reader = PatchReader(Call("apply_patch", "apply_patch"))
        for piece in text:
            reader.feed(piece, [])


def test_segments_of_other_calls_pass_unchanged() -> None:
    tools = ToolTable.from_request([ShellTool(), FunctionTool(name="add")])
    model_format = parser_helpers.load_formats("hermes")[0]
    reader = model_format.create_reader(RenderedPrompt((), ""), PromptInput(tools=tools))
    text = 'Hi.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    segments = [*reader.feed(model_format.encode(text)), *reader.finish(natural=True)]
    assert [type(segment) for segment in segments if type(segment) in (Call, Arguments, Close)] == [
        Call,
        Arguments,
        Close,
    ]
    assert reader.reasoning_tokens == 0


def test_two_calls_in_a_row_keep_their_own_commands() -> None:
    model_format = parser_helpers.load_formats("hermes")[0]
    text = "\n".join(write_call("hermes", "shell", json.dumps({"commands": [command]})) for command in ("ls", "pwd"))
    assert read_output(model_format, model_format.encode(text))[0] == [(["ls"], {}), (["pwd"], {})]


def test_names_of_built_in_tools_beside_tools_of_the_request() -> None:
    tools = ToolTable.from_request([ShellTool(), FunctionTool(name="shell"), PatchTool()])
    names = [(tool.model_name, tool.builtin) for tool in tools]
    assert names == [("builtin__shell", "shell"), ("shell", None), ("apply_patch", "apply_patch")]
    assert tools.builtin_name_of("shell") == tools.model_name_of("builtin__shell") == "builtin__shell"
    assert tools.model_name_of("shell") == "shell"
    without = ToolTable.from_request([FunctionTool(name="shell")])
    assert (without.builtin_name_of("shell"), without.builtin_name_of("apply_patch")) == (
        "builtin__shell",
        "apply_patch",
    )


def test_every_pair_of_cuts_inside_an_escape() -> None:
    text = r'{"commands": ["\ud83d\ude00"]}'
    for cuts in itertools.combinations(range(14, 28), 2):
        assert read_shell(text, cuts) == [(["\U0001f600"], {})]
