"""Calls of built-in tools whose text is meant to break their readers. Covers row 58 of the hard inputs."""

import json

import pytest

from antiphon.harmony.parsing.tape import MalformedText
from tests.harmony import parser_helpers
from tests.harmony.calls.builtin_call_helpers import EACH_DIALECT, read_output, read_patch, read_shell, write_call

MARKERS = ("<tool_call>", "</tool_call>", "</parameter>", "</function>", "</arg_value>", "[TOOL_CALLS]", "<｜tool▁calls▁end｜>",
           "<|tool_call_end|>", "<|tool_calls_section_end|>", "</think>", "</minimax:tool_call>", "<|python_tag|>")  # fmt: skip


@EACH_DIALECT
def test_command_that_spells_markers_stays_one_command(name: str) -> None:
    for marker in MARKERS:
        commands = [f"echo '{marker}\n{marker}'", marker, "ls"]
        text = write_call(name, "shell", json.dumps({"commands": commands}, ensure_ascii=False))
        for model_format in parser_helpers.load_formats(name):
            assert read_output(model_format, model_format.encode(text)) == ([(commands, {})], False), marker


@EACH_DIALECT
def test_command_with_a_marker_of_the_end_of_the_turn_is_never_half_a_call(name: str) -> None:
    for marker in ("<|im_end|>", "<|im_start|>", "<|call|>", "<|endoftext|>"):
        commands = ["ls", f"echo {marker} x", "rm -r x"]
        text = write_call(name, "shell", json.dumps({"commands": commands}))
        for model_format in parser_helpers.load_formats(name):
            assert read_output(model_format, model_format.encode(text)) in (([(commands, {})], False), ([...], True))


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        (r'{"commands": ["a\u0000b", "\u0000"]}', ["a\0b", "\0"]),
        ('{"commands": ["a\0b"]}', ["a\0b"]),
        (r'{"commands": ["a\ud83d", "\ude00b"]}', ["a�", "�b"]),
        (r'{"command": ["bash", "-lc", "a\ud83d"]}', ["a�"]),
        (r'{"cmd": ["echo", "\ud83d\ude00", "\\ud83d"]}', ["echo '\U0001f600' '\\ud83d'"]),
        (r'{"commands": ["\ude00\ud83d", "\ud83d\ud83d\ude00", "\ud83dx\ude00"]}', ["��", "�\U0001f600", "�x�"]),
    ],
    ids=ascii,
)
def test_nul_and_lone_surrogates_in_commands(text: str, commands: list[str]) -> None:
    assert read_shell(text) == read_shell(text, range(len(text))) == [(commands, {})]
    assert all(read_shell(text, [cut]) == [(commands, {})] for cut in range(1, len(text)))
    "".join(commands).encode()  # can be sent


@pytest.mark.parametrize("value", [1 << 64, 10**30, 0, "9" * 4301, "1e3", "NaN", "true"])
@pytest.mark.parametrize("key", ["timeout_ms", "max_output_length"])
def test_setting_that_is_no_integer_of_64_bits_is_no_call(key: str, value: object) -> None:
    with pytest.raises(MalformedText):
        read_shell(f'{{"commands": ["ls"], "{key}": {value}}}')
    assert read_shell(f'{{"commands": ["ls"], "{key}": {(1 << 64) - 1}}}') == [(["ls"], {key: (1 << 64) - 1})]


@pytest.mark.parametrize(
    "line", ["*** End Patch", "*** Begin Patch", "*** Add File: b", "*** Update File: b", "@@", "\0"]
)
def test_content_that_spells_a_line_of_the_format_stays_content(line: str) -> None:
    rows = f"+{line}\n-{line}\n {line}\n"
    text = f"*** Begin Patch\n*** Update File: a\n@@\n{rows}*** Delete File: c\n*** End Patch"
    expected = [("update_file", "a", f"@@\n{rows}"), ("delete_file", "c", "")]
    assert read_patch(text) == read_patch(text, range(len(text))) == expected
