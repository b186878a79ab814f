"""Rendering of input items into a prompt: the messages a chat template receives, and its limits."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai_harmony as harmony  # type: ignore[import-untyped] # the package has no type information
import pytest

from antiphon.events.inputs import (
    CompactionInput,
    HostedInput,
    InputAudio,
    InputCustomCall,
    InputCustomOutput,
    InputFile,
    InputFunctionCall,
    InputFunctionOutput,
    InputImage,
    InputMessage,
    InputReasoning,
    InputText,
    OutputTextInput,
    RefusalInput,
)
from antiphon.events.items import ReasoningText, SummaryText
from antiphon.harmony.detection.detect import DIALECTS
from antiphon.harmony.detection.template_format import TemplateFormat
from antiphon.harmony.format import PromptInput
from antiphon.harmony.gptoss import format as gptoss_format
from antiphon.harmony.prompt.templates.jinja import ChatTemplate
from antiphon.harmony.rendered_prompt import RenderError
from antiphon.harmony.tokens.vocabulary import ByteVocabulary
from antiphon.state.segments import Arguments, Call, Close
from tests.harmony import parser_helpers

DUMP_TEMPLATE = "{{ {'messages': messages, 'tools': tools} | tojson }}"


def user_message(text: str) -> InputMessage:
    return InputMessage(role="user", content=text)


def assistant_message(text: str, **fields: Any) -> InputMessage:
    return InputMessage(role="assistant", content=(OutputTextInput(text=text),), **fields)


def reasoning_item(text: str) -> InputReasoning:
    return InputReasoning(content=(ReasoningText(text=text),))


def function_call(number: int, arguments: str = "{}", name: str = "add") -> InputFunctionCall:
    return InputFunctionCall(call_id=f"call_{number}", name=name, arguments=arguments)


def function_output(number: int, text: str) -> InputFunctionOutput:
    return InputFunctionOutput(call_id=f"call_{number}", output=text)


def create_format(template: str = DUMP_TEMPLATE, dialect: str = "hermes") -> TemplateFormat:
    return TemplateFormat(
        DIALECTS[dialect], ByteVocabulary(("<think>", "</think>"), ("<|im_end|>",)), ChatTemplate(template)
    )


def render_messages(*items: Any, dialect: str = "hermes", **fields: Any) -> list[dict[str, Any]]:
    prompt = create_format(dialect=dialect).render_prompt(
        parser_helpers.build_prompt_input(items=items, **fields), now=parser_helpers.NOW
    )
    rendered_messages: list[dict[str, Any]] = json.loads(prompt.text)["messages"]
    return rendered_messages


def test_instructions_become_one_leading_system_message() -> None:
    late_message = InputMessage(role="developer", content="late")
    rendered = render_messages(
        InputMessage(role="system", content="a"),
        user_message("hi"),
        late_message,
        dialect="plain",
        instructions="first",
    )
    assert rendered == [{"role": "system", "content": "first\n\na\n\nlate"}, {"role": "user", "content": "hi"}]


def test_turn_with_parallel_calls() -> None:
    items = [
        user_message("go"),
        reasoning_item("hm"),
        assistant_message("Let me see."),
        function_call(1, '{"a": 1}'),
        function_call(2),
        function_output(1, "one"),
        function_output(2, "two"),
    ]
    _, question, answer, first_output, second_output = render_messages(*items)
    assert question == {"role": "user", "content": "go"}
    assert (answer["content"], answer["reasoning_content"]) == ("Let me see.", "hm")
    assert [tool_call["function"] for tool_call in answer["tool_calls"]] == [
        {"name": "add", "arguments": {"a": 1}},
        {"name": "add", "arguments": {}},
    ]
    assert (first_output["role"], first_output["content"], first_output["name"], first_output["tool_call_id"]) == (
        "tool",
        "one",
        "add",
        "call_1",
    )
    assert second_output["content"] == "two"


def test_reasoning_is_attached_to_the_following_message() -> None:
    _, first, _, second = render_messages(
        reasoning_item("a"),
        reasoning_item("b"),
        function_call(1),
        function_output(1, "x"),
        reasoning_item("c"),
        assistant_message("done"),
    )
    assert (first["reasoning_content"], second["reasoning_content"]) == ("a\n\nb", "c")
    assert render_messages(reasoning_item("a"), user_message("hi"))[-1] == {"role": "user", "content": "hi"}


@pytest.mark.parametrize("dialect", ["hermes", "gpt-oss"])
@pytest.mark.parametrize("kind", ["summary", "content"])
def test_parts_of_reasoning_are_paragraphs(dialect: str, kind: str) -> None:
    part = SummaryText if kind == "summary" else ReasoningText
    parts = tuple(part(text=text) for text in ("**Plan**", "", "I add."))
    item = InputReasoning(**{kind: parts})
    text = (
        parser_helpers.load_token_format(dialect)
        .render_prompt(
            parser_helpers.build_prompt_input(
                items=(user_message("hi"), item, function_call(1), function_output(1, "x"))
            ),
            now=parser_helpers.NOW,
        )
        .text
    )
    assert "**Plan**\n\nI add." in text


def test_unanswered_reasoning_is_not_attached_to_a_later_turn() -> None:
    *_, question, answer = render_messages(
        user_message("one"), reasoning_item("of the first turn"), user_message("two"), assistant_message("done")
    )
    assert question == {"role": "user", "content": "two"}
    assert answer == {"role": "assistant", "content": "done"}
    *_, answer = render_messages(
        reasoning_item("of the first turn"),
        user_message("two"),
        reasoning_item("of the second"),
        assistant_message("done"),
    )
    assert answer["reasoning_content"] == "of the second"


def test_refusal_is_part_of_the_prompt() -> None:
    refusal = InputMessage(role="assistant", content=(OutputTextInput(text="No."), RefusalInput(refusal="I cannot.")))
    assert render_messages(user_message("do"), refusal)[-1] == {"role": "assistant", "content": "No.\nI cannot."}


def test_text_after_a_call_is_a_separate_message() -> None:
    assert [
        message["content"]
        for message in render_messages(function_call(1), assistant_message("after"), assistant_message("more"))[1:]
    ] == [
        "",
        "after\n\nmore",
    ]


def test_arguments_that_are_not_an_object_stay_text() -> None:
    calls = [function_call(number, text) for number, text in enumerate(["[1]", "{bad", "", '"x"'])]
    assert [tool_call["function"]["arguments"] for tool_call in render_messages(*calls)[1]["tool_calls"]] == [
        "[1]",
        "{bad",
        {},
        '"x"',
    ]


def test_strict_templates_get_merged_users_and_object_arguments() -> None:
    strict_template = """{% for m in messages %}{% if m.role == 'user' and loop.previtem and loop.previtem.role == 'user' %}
{{- raise_exception('roles must alternate') }}{% endif %}{{ m.content }}
{%- for c in m.tool_calls or [] %}{% for k, v in c.function.arguments | items %}[{{ c.function.name }} {{ k }}={{ v }}]{% endfor %}{% endfor %}{% endfor %}"""
    prompt_input = PromptInput(
        items=(user_message("a"), user_message("b"), function_call(1, "{bad"), function_call(2, '{"x": 1}'))
    )
    assert (
        create_format(strict_template).render_prompt(prompt_input, now=parser_helpers.NOW).text
        == "a\n\nb[add arguments={bad][add x=1]"
    )


def test_custom_calls_are_rendered_in_their_raw_frame() -> None:
    custom_call = InputCustomCall(call_id="c", name="apply_patch", input="x\ny")
    items = (assistant_message("Patching."), custom_call, InputCustomOutput(call_id="c", output="ok"))
    assert (
        render_messages(*items)[1]["content"]
        == "Patching.\n<tool_call>\n<custom=apply_patch>\nx\ny\n</custom>\n</tool_call>"
    )
    assert render_messages(*items, dialect="qwen3-coder")[0]["tool_calls"][0]["function"] == {
        "name": "apply_patch",
        "arguments": {"input": "x\ny"},
    }
    native_template = DUMP_TEMPLATE + "{# it knows tools of type custom #}"
    rendered = json.loads(
        create_format(native_template)
        .render_prompt(parser_helpers.build_prompt_input(items=items), now=parser_helpers.NOW)
        .text
    )
    assert rendered["messages"][0]["tool_calls"][0]["custom"] == {"name": "apply_patch", "input": "x\ny"}
    assert [tool["type"] for tool in rendered["tools"]] == [
        "function",
        "function",
        "function",
        "custom",
        "function",
        "custom",
    ]


def test_custom_tool_instructions_appear_only_when_needed() -> None:
    assert "Freeform" in render_messages(user_message("hi"))[0]["content"]
    assert render_messages(user_message("hi"), tools=parser_helpers.ToolTable()) == [{"role": "user", "content": "hi"}]
    assert render_messages(user_message("hi"), tool_choice="none") == [{"role": "user", "content": "hi"}]


def test_images_files_and_audio_become_placeholders() -> None:
    parts = (
        InputText(text="see"),
        InputImage(image_url="data:x"),
        InputFile(filename="a.pdf"),
        InputFile(),
        InputAudio(input_audio={}),
    )
    assert (
        render_messages(InputMessage(role="user", content=parts))[1]["content"]
        == "see\n[image]\n[file: a.pdf]\n[file]\n[audio]"
    )
    list_output = InputFunctionOutput(call_id="x", output=(InputText(text="a"), InputImage()))
    assert render_messages(list_output)[1] == {"role": "tool", "content": "a\n[image]", "tool_call_id": "x"}


def test_hosted_and_compaction_items_are_omitted() -> None:
    items = (
        HostedInput(kind="computer_call", payload={}),
        CompactionInput(encrypted_content="x"),
        user_message("hi"),
    )
    assert len(render_messages(*items)) == 2


def test_namespaced_tools_have_flat_names_in_tools_and_history() -> None:
    spawn_call = InputFunctionCall(call_id="x", name="spawn", namespace="agents", arguments="{}")
    rendered = json.loads(
        create_format()
        .render_prompt(parser_helpers.build_prompt_input(items=(spawn_call,)), now=parser_helpers.NOW)
        .text
    )
    assert rendered["messages"][1]["tool_calls"][0]["function"]["name"] == "agents__spawn"
    assert "agents__spawn" in [tool["function"]["name"] for tool in rendered["tools"]]


@pytest.mark.parametrize(
    ("tail", "thinking"),
    [
        ("", False),
        ("<think>\n", True),
        ("<think>\n\n</think>\n\n", False),
        ("</think>", False),
        ("<think></think><think>", True),
    ],
)
def test_open_reasoning_is_detected_at_the_end_of_the_prompt(tail: str, thinking: bool) -> None:
    template = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}" + tail
    prompt_input = PromptInput(
        items=(user_message("Say <think>"), assistant_message("a<think>b"), user_message("<think>"))
    )
    assert create_format(template).render_prompt(prompt_input, now=parser_helpers.NOW).in_reasoning is thinking


def test_open_reasoning_is_detected_if_its_marker_consists_of_control_tokens() -> None:
    tokens = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")
    prompts = []
    for tail in ("", "<|channel|>analysis<|message|>", "<|channel|>analysis<|message|><|end|>"):
        template = ChatTemplate(f"<|start|>user<|message|>hi<|end|><|start|>assistant{tail}")
        model_format = TemplateFormat(DIALECTS["harmony"], ByteVocabulary((), tokens), template)
        prompts.append(model_format.render_prompt(PromptInput(), now=parser_helpers.NOW).in_reasoning)
    assert prompts == [False, True, False]


def test_unclosed_reasoning_of_an_earlier_turn_is_ignored() -> None:
    assert (
        not create_format("<think>old<|im_end|>new").render_prompt(PromptInput(), now=parser_helpers.NOW).in_reasoning
    )


def test_effort_sets_enable_thinking_and_reasoning_effort() -> None:
    template = "{{ enable_thinking }}|{{ reasoning_effort }}"
    texts = [
        create_format(template).render_prompt(PromptInput(effort=effort), now=parser_helpers.NOW).text
        for effort in (None, "none", "high")
    ]
    assert texts == ["|", "False|", "True|high"]


@pytest.mark.parametrize("dialect", ["hermes", "gpt-oss"])
def test_lone_surrogate_raises_render_error(dialect: str) -> None:
    with pytest.raises(RenderError):
        parser_helpers.load_token_format(dialect).render_prompt(
            PromptInput(items=(user_message("\ud800"),)), now=parser_helpers.NOW
        )


def test_gpt_oss_renders_the_history(tmp_path: Path) -> None:
    items = (
        user_message("hi"),
        reasoning_item("old"),
        assistant_message("Hello.", phase="final_answer"),
        user_message("add"),
        reasoning_item("new"),
        assistant_message("Let me."),
        function_call(1, '{"a": 1}'),
        function_output(1, "1"),
        InputCustomCall(call_id="c", name="script", namespace="agents", input="x"),
    )
    text = (
        parser_helpers.load_token_format("gpt-oss")
        .render_prompt(parser_helpers.build_prompt_input(items=items, effort="high"), now=parser_helpers.NOW)
        .text
    )
    assert "Reasoning: high" in text and "Current date: 2026-11-21" in text
    assert text.endswith(
        "<|start|>user<|message|>hi<|end|><|start|>assistant<|channel|>final<|message|>Hello.<|end|>"
        "<|start|>user<|message|>add<|end|><|start|>assistant<|channel|>analysis<|message|>new<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>Let me.<|end|>"
        '<|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>'
        "<|start|>functions.add<|channel|>commentary to=assistant<|message|>1<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.agents__script <|constrain|>code<|message|>x<|call|>"
        "<|start|>assistant"
    )


def test_gpt_oss_cached_rendering_equals_the_library() -> None:
    rng, model_format = random.Random("again"), parser_helpers.load_token_format("gpt-oss")
    texts = ("", "hi", " two\n", "a<|end|>b<|return|>", '{"a": "é"}', "word " * 30)
    item_factories: list[Callable[[str], Any]] = [
        user_message,
        reasoning_item,
        lambda text: assistant_message(text, phase=rng.choice([None, "commentary", "final_answer"])),
        lambda text: function_call(1, text),
        lambda text: function_output(1, text),
        lambda text: function_output(2, text),
        lambda text: InputCustomCall(call_id="c", name="script", namespace="agents", input=text),
        lambda text: InputCustomOutput(call_id="c", output=text),
    ]
    for _ in range(40):
        items = tuple(rng.choice(item_factories)(rng.choice(texts)) for _ in range(rng.randint(0, 12)))
        tool_options = rng.choice([{}, {"tool_choice": "none"}])
        prompt_input = parser_helpers.build_prompt_input(
            items=items, instructions=rng.choice(["", "Be kind."]), **tool_options
        )
        conversation = harmony.Conversation.from_messages(
            [
                *gptoss_format._head_messages(prompt_input, parser_helpers.NOW),
                *gptoss_format._HistoryMessages(prompt_input).build_messages(),
            ]
        )
        config = harmony.RenderConversationConfig(auto_drop_analysis=False)
        expected = gptoss_format.load_encoding().render_conversation_for_completion(
            conversation, harmony.Role.ASSISTANT, config
        )
        for owner in ("me", "me", "you"):
            assert model_format.render_prompt(prompt_input, now=parser_helpers.NOW, owner=owner).tokens == tuple(
                expected
            )


def test_gpt_oss_caches_rendered_messages_per_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    model_format, rendered = gptoss_format.GptOssFormat(), []
    render_conversation, render_message = harmony.HarmonyEncoding.render_conversation, harmony.HarmonyEncoding.render

    def recording_render_conversation(self: Any, conversation: Any, *args: Any) -> list[int]:
        rendered.append("head")
        return render_conversation(self, conversation, *args)

    def recording_render(self: Any, message: Any, *args: Any) -> list[int]:
        rendered.append(message.content[0].text)
        return render_message(self, message, *args)

    monkeypatch.setattr(harmony.HarmonyEncoding, "render_conversation", recording_render_conversation)
    monkeypatch.setattr(harmony.HarmonyEncoding, "render", recording_render)
    for owner, texts in (("me", ["a", "b"]), ("me", ["a", "c", "b"]), ("you", ["a"])):
        model_format.render_prompt(
            PromptInput(items=tuple(map(user_message, texts))), now=parser_helpers.NOW, owner=owner
        )
    assert rendered == ["head", "a", "b", "c", "head", "a"]


def test_gpt_oss_schema_too_deep_for_the_library_raises_render_error() -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(300):
        schema = {"type": "object", "properties": {"x\ny": schema}}
    tools = parser_helpers.ToolTable.from_request([parser_helpers.FunctionTool(name="f", parameters=schema)])
    with pytest.raises(RenderError):
        parser_helpers.load_token_format("gpt-oss").render_prompt(PromptInput(tools=tools), now=parser_helpers.NOW)


@pytest.mark.parametrize(
    "arguments",
    [
        '{"a":' * 800 + "1" + "}" * 800,
        '{"a":' * 65 + "1" + "}" * 65,
        '{"a": "\\ud800"}',
        '{"\\udfff": 1}',
        "[" * 100_000,
    ],
    ids=["800 levels", "65 levels", "half of a pair", "half of a pair in a key", "endless"],
)
def test_arguments_that_no_prompt_can_hold_are_shown_as_text(arguments: str) -> None:
    """A model wrote them, so the conversation must continue."""
    prompt_input = PromptInput(items=(function_call(1, arguments),))
    assert json.dumps(arguments)[1:-1] in create_format().render_prompt(prompt_input, now=parser_helpers.NOW).text


TEMPLATE_WITHOUT_TOOLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


@pytest.mark.parametrize("name", [name for name, dialect in DIALECTS.items() if dialect.calls])
def test_templates_without_tools_get_tool_instructions(name: str) -> None:
    """The prompt describes the tools in text and shows earlier calls in the dialect's format, which parse back."""
    dialect = DIALECTS[name]
    model_format = TemplateFormat(
        dialect,
        ByteVocabulary(("<think>", "</think>"), ("<|im_start|>", "<|im_end|>")),
        ChatTemplate(TEMPLATE_WITHOUT_TOOLS),
    )
    add_call = InputFunctionCall(call_id="c1", name="add", arguments='{"a": 1, "b": 2}')
    now_call = InputFunctionCall(call_id="c2", name="now", arguments="{}")
    add_output = InputFunctionOutput(call_id="c1", output="3")
    text = model_format.render_prompt(
        parser_helpers.build_prompt_input(items=(user_message("Add."), add_call, now_call, add_output)),
        now=parser_helpers.NOW,
    ).text
    assert '"name": "write"' in text and "Adds two numbers." in text and "NAME" in text
    assert "<|im_start|>user\nOutput of add:\n3<|im_end|>" in text
    rendered_turn = text.partition("<|im_start|>user\nAdd.<|im_end|>\n<|im_start|>assistant\n")[2].partition(
        "<|im_end|>"
    )[0]
    segments, _ = parser_helpers.parse_tokens(model_format, model_format.encode(rendered_turn))
    assert next(segment.name for segment in segments if isinstance(segment, Call)) == "add"
    assert [segment.name for segment in segments if isinstance(segment, Call)] == ["add", "now"]
    add_segments = segments[: next(index for index, segment in enumerate(segments) if isinstance(segment, Close))]
    assert json.loads("".join(segment.text for segment in add_segments if isinstance(segment, Arguments))) == {
        "a": 1,
        "b": 2,
    }
    assert (
        "# Tools"
        not in model_format.render_prompt(
            parser_helpers.build_prompt_input(items=(user_message("Add."),), tool_choice="none"), now=parser_helpers.NOW
        ).text
    )


def test_invalid_json_arguments_are_rendered_as_text() -> None:
    model_format = TemplateFormat(
        DIALECTS["glm"], ByteVocabulary((), ("<|im_start|>", "<|im_end|>")), ChatTemplate(TEMPLATE_WITHOUT_TOOLS)
    )
    invalid_call = InputFunctionCall(call_id="c1", name="add", arguments="not JSON")
    text = model_format.render_prompt(
        parser_helpers.build_prompt_input(items=(user_message("Add."), invalid_call)), now=parser_helpers.NOW
    ).text
    assert "<tool_call>add" in text and "not JSON" in text
