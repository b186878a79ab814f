"""The embedded model's chat template: short prompts for large inputs, and every message form that clients send."""

import json
from typing import Any

import pytest
from tokenizers import Tokenizer

from training import chat, generator
from training.chat import ChatMessage, call_message, tool_messages, user_message
from training.tool_definitions import tool_line

OUTPUT_HEADER = (
    "Chunk ID: 1f2e3d\nWall time: 0.0521 seconds\nProcess exited with code 0\nOriginal token count: 4\nOutput:\n"
)
SYSTEM_MESSAGE = {"role": "system", "content": "You are a coding agent. " * 700}
CONTEXT_MESSAGE = user_message("<environment_context>\n  <cwd>/work</cwd>\n" + "more\n" * 900)


def make_tool(name: str, properties: list[str], required: list[str]) -> dict[str, Any]:
    schema = {"type": "object", "properties": {p: {"type": "string"} for p in properties}, "required": required}
    return {"type": "function", "function": {"name": name, "description": "Does it. " * 40, "parameters": schema}}


EXEC_TOOL = make_tool("exec_command", ["cmd", "workdir", "shell", "justification"], ["cmd"])
TOOLS = [EXEC_TOOL] + [make_tool(f"multi_agent_v1__act_{n}", ["target", "message"], ["target"]) for n in range(12)]


def test_prompt_of_a_codex_turn_is_short(tokenizer: Tokenizer) -> None:
    call = call_message("exec_command(cmd): exec_command", ("exec_command", {"cmd": "cat big"}))
    messages = [
        SYSTEM_MESSAGE,
        CONTEXT_MESSAGE,
        CONTEXT_MESSAGE,
        user_message("run `cat big`"),
        call,
        *tool_messages(call, [OUTPUT_HEADER + "line\n" * 5000]),
    ]
    assert len(tokenizer.encode(chat.render_prompt(messages, TOOLS)).ids) < 800


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        ("<system-reminder>\nNo.\n</system-reminder>\nrun `ls`", "run `ls`"),
        ("Hi.\n<system-reminder>a</system-reminder><system-reminder>b</system-reminder>", "Hi."),
        ([{"type": "text", "text": "<system-reminder>a</system-reminder>\n"}, {"type": "text", "text": "Hi."}], "Hi."),
        ("What does <system-reminder> mean?", "What does <system-reminder> mean?"),
        ("<system-reminder>alone</system-reminder>", "<system-reminder>alone</system-reminder>"),
    ],
)
def test_reminders_of_claude_code_are_no_words_of_the_user(content: object, kept: str) -> None:
    assert chat.render_prompt([{"role": "user", "content": content}], []).startswith(
        f"<|im_start|>user\n{kept}<|im_end|>"
    )


def test_tools_are_listed_by_name_and_required_parameters() -> None:
    optional = make_tool("free", ["a", "b"], [])
    custom = {"type": "custom", "custom": {"name": "apply_patch", "description": "Patches."}}
    text = chat.render_prompt([user_message("hello")], [EXEC_TOOL, optional, make_tool("none", [], []), custom])
    assert (
        "\nexec_command(cmd): exec_command\nfree(a, b): free\nnone(): none\napply_patch(input): apply_patch\n<|im_end|>"
        in text
    )


@pytest.mark.parametrize("course", ["everything", "sessions", "patch", "questions"])
def test_generator_and_template_format_tools_alike(course: str) -> None:
    for number in range(100):
        dialogue = generator.training_dialogue(f"listed {number}", course=course)
        text = chat.render_prompt(dialogue.messages[:-1], dialogue.tools)
        assert all(f"\n{tool_line(tool)}\n" in text for tool in dialogue.tools)


def test_header_of_a_codex_tool_output_is_removed() -> None:
    call = call_message("exec_command(cmd): exec_command", ("exec_command", {"cmd": "echo hi"}))
    text = chat.render_prompt(
        [user_message("run `echo hi`"), call, *tool_messages(call, [OUTPUT_HEADER + "hi\n"])], [EXEC_TOOL]
    )
    assert "<|im_start|>user\n<tool_response>\nhi</tool_response><|im_end|>" in text


def test_tool_arguments_may_be_text_or_an_object() -> None:
    def render_call(arguments: Any) -> str:
        call: ChatMessage = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"type": "function", "id": "c", "function": {"name": "f", "arguments": arguments}}],
        }
        return chat.render_prompt(
            [user_message("go"), call, {"role": "tool", "content": [{"type": "text", "text": "done"}]}], []
        )

    args = {"a": "<b> & 'ø'", "n": 2}
    assert render_call(args) == render_call(json.dumps(args, ensure_ascii=False))
    assert (
        '<tool_call>\n{"name": "f", "arguments": {"a": "<b> & \'ø\'", "n": 2}}\n</tool_call><|im_end|>'
        in render_call(args)
    )


@pytest.mark.parametrize("content", [None, "Now:"])
def test_call_of_a_custom_tool_is_raw_text(content: str | None) -> None:
    """The server's grammar for this model writes such calls so."""
    patch = "*** Begin Patch\n*** Delete File: <a>.txt\n*** End Patch"
    custom = {"type": "custom", "id": "c", "custom": {"name": "apply_patch", "input": patch}}
    call = {"role": "assistant", "content": content, "tool_calls": [custom, custom]}
    text = chat.render_prompt([user_message("go"), call, *tool_messages(call, ["completed"] * 2)], [])
    written = f"<tool_call>\n<custom=apply_patch>\n{patch}\n</custom>\n</tool_call>"
    prefix = f"{content}\n" if content else ""
    assert f"<|im_start|>assistant\n{prefix}{written}\n{written}<|im_end|>" in text


def test_last_user_message_is_kept_and_earlier_ones_are_clipped(tokenizer: Tokenizer) -> None:
    text = chat.render_prompt([user_message("x" * 500), user_message("y" * 5000)], [])
    assert "x" * 100 in text and "x" * 101 not in text and "y" * 5000 in text
    text = chat.render_prompt([user_message("The quick brown fox jumps. " * 1200)], [])
    assert len(tokenizer.encode(text).ids) > 4096, "the server answers context_length_exceeded"


def test_clipped_tool_output_ends_in_a_mark() -> None:
    call = call_message("f(): f", ("f", {}))
    kept, clipped = (
        chat.render_prompt([user_message("go"), call, *tool_messages(call, ["x" * length + "\n"])], [])
        for length in (300, 301)
    )
    assert "x" * 300 + "</tool_response>" in kept
    assert "\n" + "x" * 300 + "…</tool_response>" in clipped


def test_earlier_messages_begin_with_one_of_the_user() -> None:
    call = call_message("f(): f", ("f", {}))
    turn = [*tool_messages(call, ["done"]), {"role": "assistant", "content": "said"}, user_message("go"), call]
    text = chat.render_prompt([user_message("first"), call, *turn * 4], [])
    assert text.startswith("<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n<tool_call>")
    assert text.count("<|im_start|>user\ngo") == 3


def test_sixty_four_tools_are_listed() -> None:
    text = chat.render_prompt([user_message("hello")], [make_tool(f"tool_{n}", [], []) for n in range(70)])
    assert "tool_63(): tool_63\n<|im_end|>" in text


def test_reasoning_is_kept_only_within_the_current_turn() -> None:
    call = call_message("f(): f", ("f", {}))
    turn = [user_message("go"), call, *tool_messages(call, ["done"])]
    assert "<think>\nf(): f\n</think>" in chat.render_prompt(turn, [])
    assert "<think>" not in chat.render_prompt(
        [*turn, {"role": "assistant", "content": "done"}, user_message("and?")], []
    )


def test_disabled_thinking_renders_an_empty_reasoning_block() -> None:
    assert chat.render_prompt([user_message("hello")], [], thinking=False).endswith(
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert chat.render_prompt([user_message("hello")], []).endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize("content", [None, "", [], [{"type": "input_image"}], ["a", {"text": "b"}]])
@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_unusual_contents_are_accepted(content: Any, role: str) -> None:
    assert chat.render_prompt(
        [{"role": role, "content": content}, {"role": "system", "content": "late"}, user_message("hi")], []
    )


@pytest.mark.parametrize("course", ["everything", "patch", "questions", "first questions"])
def test_training_and_template_render_answers_alike(course: str) -> None:
    for number in range(200):
        dialogue = generator.training_dialogue(f"template {number}", course=course)
        *history, answer = dialogue.messages
        if len(str(answer["content"])) < 600:
            expected = chat.load_template().render(messages=dialogue.messages, tools=dialogue.tools)
            assert expected == chat.render_prompt(history, dialogue.tools) + chat.render_completion(answer) + "\n"


@pytest.mark.parametrize(
    "text", ["naïve café", "日本語 ✓ 😀", "a\tb\r\n\x00", '{"a": "b"}}', "1234567890", " -- __x__ "]
)
def test_tokenizer_round_trips_any_text(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) == text


def test_digits_are_single_tokens_and_words_tokenize_alike_anywhere(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("7391").tokens == list("7391")
    word = tokenizer.encode("kettle").ids
    for template in ('"{}"', " {} ", "`{}`", "/{}/", "({},", '{"cmd": "{}"}}'):
        ids = tokenizer.encode(template.replace("{}", "kettle")).ids
        assert any(ids[n : n + len(word)] == word for n in range(len(ids)))
