"""The chat template: small prompts for big clients, and every spelling of a message that clients use."""

import json
from typing import Any

import pytest
from tokenizers import Tokenizer

from antiphon.engine.embedded import MODEL_DIR, chat, generator
from antiphon.engine.embedded.chat import Message, call_message, tool_messages, user_message
from antiphon.engine.embedded.tool_definitions import tool_line

FRAME = "Chunk ID: 1f2e3d\nWall time: 0.0521 seconds\nProcess exited with code 0\nOriginal token count: 4\nOutput:\n"
SYSTEM = {"role": "system", "content": "You are a coding agent. " * 700}
CONTEXT = user_message("<environment_context>\n  <cwd>/work</cwd>\n" + "more\n" * 900)


def function(name: str, properties: list[str], required: list[str]) -> dict[str, Any]:
    schema = {"type": "object", "properties": {p: {"type": "string"} for p in properties}, "required": required}
    return {"type": "function", "function": {"name": name, "description": "Does it. " * 40, "parameters": schema}}


EXEC = function("exec_command", ["cmd", "workdir", "shell", "justification"], ["cmd"])
TOOLS = [EXEC] + [function(f"multi_agent_v1__act_{n}", ["target", "message"], ["target"]) for n in range(12)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))


def test_a_codex_turn_stays_small(tokenizer: Tokenizer) -> None:
    said = call_message("exec_command(cmd): exec_command", ("exec_command", {"cmd": "cat big"}))
    messages = [
        SYSTEM,
        CONTEXT,
        CONTEXT,
        user_message("run `cat big`"),
        said,
        *tool_messages(said, [FRAME + "line\n" * 5000]),
    ]
    assert len(tokenizer.encode(chat.render_prompt(messages, TOOLS)).ids) < 800


def test_tools_are_listed_by_name_and_required_parameters() -> None:
    optional = function("free", ["a", "b"], [])
    custom = {"type": "custom", "custom": {"name": "apply_patch", "description": "Patches."}}
    text = chat.render_prompt([user_message("hello")], [EXEC, optional, function("none", [], []), custom])
    assert (
        "\nexec_command(cmd): exec_command\nfree(a, b): free\nnone(): none\napply_patch(input): apply_patch\n<|im_end|>"
        in text
    )


def test_the_generator_thinks_of_tools_as_the_template_lists_them() -> None:
    for number in range(100):
        one = generator.training_dialogue(f"listed {number}")
        text = chat.render_prompt(one.messages[:-1], one.tools)
        assert all(f"\n{tool_line(tool)}\n" in text for tool in one.tools)


def test_of_a_framed_output_only_the_output_is_kept() -> None:
    said = call_message("exec_command(cmd): exec_command", ("exec_command", {"cmd": "echo hi"}))
    text = chat.render_prompt([user_message("run `echo hi`"), said, *tool_messages(said, [FRAME + "hi\n"])], [EXEC])
    assert "<|im_start|>user\n<tool_response>\nhi</tool_response><|im_end|>" in text


def test_arguments_come_as_text_or_as_an_object() -> None:
    def rendered(arguments: Any) -> str:
        said: Message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"type": "function", "id": "c", "function": {"name": "f", "arguments": arguments}}],
        }
        return chat.render_prompt(
            [user_message("go"), said, {"role": "tool", "content": [{"type": "text", "text": "done"}]}], []
        )

    args = {"a": "<b> & 'ø'", "n": 2}
    assert rendered(args) == rendered(json.dumps(args, ensure_ascii=False))
    assert '<tool_call>\n{"name": "f", "arguments": {"a": "<b> & \'ø\'", "n": 2}}\n</tool_call><|im_end|>' in rendered(
        args
    )


def test_the_last_request_is_kept_and_earlier_ones_are_clipped() -> None:
    text = chat.render_prompt([user_message("x" * 500), user_message("y" * 500)], [])
    assert "x" * 100 in text and "x" * 101 not in text and "y" * 500 in text


def test_reasoning_is_kept_within_the_turn_and_dropped_before_it() -> None:
    said = call_message("f(): f", ("f", {}))
    turn = [user_message("go"), said, *tool_messages(said, ["done"])]
    assert "<think>\nf(): f\n</think>" in chat.render_prompt(turn, [])
    assert "<think>" not in chat.render_prompt(
        [*turn, {"role": "assistant", "content": "done"}, user_message("and?")], []
    )


def test_without_thinking_the_thought_is_given_empty() -> None:
    assert chat.render_prompt([user_message("hello")], [], thinking=False).endswith(
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert chat.render_prompt([user_message("hello")], []).endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize("odd", [None, "", [], [{"type": "input_image"}], ["a", {"text": "b"}]])
@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_odd_contents_are_taken(odd: Any, role: str) -> None:
    assert chat.render_prompt(
        [{"role": role, "content": odd}, {"role": "system", "content": "late"}, user_message("hi")], []
    )


def test_the_trainer_spells_answers_as_the_template_does() -> None:
    for number in range(200):
        one = generator.training_dialogue(f"template {number}")
        *before, said = one.messages
        if len(str(said["content"])) < 600:
            whole = chat.load_template().render(messages=one.messages, tools=one.tools)
            assert whole == chat.render_prompt(before, one.tools) + chat.render_completion(said) + "\n"


@pytest.mark.parametrize(
    "text", ["naïve café", "日本語 ✓ 😀", "a\tb\r\n\x00", '{"a": "b"}}', "1234567890", " -- __x__ "]
)
def test_every_text_survives_the_tokenizer(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) == text


def test_every_digit_is_a_token_and_a_word_is_the_same_anywhere(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("7391").tokens == list("7391")
    word = tokenizer.encode("kettle").ids
    for around in ('"{}"', " {} ", "`{}`", "/{}/", "({},", '{"cmd": "{}"}}'):
        ids = tokenizer.encode(around.replace("{}", "kettle")).ids
        assert any(ids[n : n + len(word)] == word for n in range(len(ids)))
