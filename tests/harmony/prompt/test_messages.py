"""From items to a prompt: what a template is given, and what it may do."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai_harmony as harmony  # type: ignore[import-untyped] # it says nothing of its types to mypy
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
)
from antiphon.events.items import ReasoningText
from antiphon.harmony.detect import DIALECTS
from antiphon.harmony.format import PromptInput, RenderError
from antiphon.harmony.gptoss import format as gptoss_format
from antiphon.harmony.prompt.jinja import ChatTemplate
from antiphon.harmony.template_format import TemplateFormat
from antiphon.harmony.tokens.vocabulary import ByteVocabulary
from antiphon.state.segments import Arguments, Call, Close
from tests.harmony import parser_helpers

DUMP = "{{ {'messages': messages, 'tools': tools} | tojson }}"


def user(text: str) -> InputMessage:
    return InputMessage(role="user", content=text)


def said(text: str, **more: Any) -> InputMessage:
    return InputMessage(role="assistant", content=(OutputTextInput(text=text),), **more)


def think(text: str) -> InputReasoning:
    return InputReasoning(content=(ReasoningText(text=text),))


def call(number: int, arguments: str = "{}", name: str = "add") -> InputFunctionCall:
    return InputFunctionCall(call_id=f"call_{number}", name=name, arguments=arguments)


def output(number: int, text: str) -> InputFunctionOutput:
    return InputFunctionOutput(call_id=f"call_{number}", output=text)


def ready(template: str = DUMP, dialect: str = "hermes") -> TemplateFormat:
    return TemplateFormat(
        DIALECTS[dialect], ByteVocabulary(("<think>", "</think>"), ("<|im_end|>",)), ChatTemplate(template)
    )


def messages(*items: Any, dialect: str = "hermes", **more: Any) -> list[dict[str, Any]]:
    prompt = ready(dialect=dialect).render_prompt(
        parser_helpers.conversation(items=items, **more), now=parser_helpers.NOW
    )
    found: list[dict[str, Any]] = json.loads(prompt.text)["messages"]
    return found


def test_all_instructions_become_one_leading_message() -> None:
    late = InputMessage(role="developer", content="late")
    found = messages(InputMessage(role="system", content="a"), user("hi"), late, dialect="plain", instructions="first")
    assert found == [{"role": "system", "content": "first\n\na\n\nlate"}, {"role": "user", "content": "hi"}]


def test_a_whole_turn_with_parallel_calls() -> None:
    items = [
        user("go"),
        think("hm"),
        said("Let me see."),
        call(1, '{"a": 1}'),
        call(2),
        output(1, "one"),
        output(2, "two"),
    ]
    _, asked, answer, one, two = messages(*items)
    assert asked == {"role": "user", "content": "go"}
    assert (answer["content"], answer["reasoning_content"]) == ("Let me see.", "hm")
    assert [made["function"] for made in answer["tool_calls"]] == [
        {"name": "add", "arguments": {"a": 1}},
        {"name": "add", "arguments": {}},
    ]
    assert (one["role"], one["content"], one["name"], one["tool_call_id"]) == ("tool", "one", "add", "call_1")
    assert two["content"] == "two"


def test_reasoning_goes_with_what_it_led_to() -> None:
    _, first, _, second = messages(think("a"), think("b"), call(1), output(1, "x"), think("c"), said("done"))
    assert (first["reasoning_content"], second["reasoning_content"]) == ("a\n\nb", "c")
    assert messages(think("a"), user("hi"))[-1] == {"role": "user", "content": "hi"}


def test_text_after_a_call_is_a_message_of_its_own() -> None:
    assert [message["content"] for message in messages(call(1), said("after"), said("more"))[1:]] == [
        "",
        "after\n\nmore",
    ]


def test_arguments_that_are_no_object_stay_text() -> None:
    calls = [call(number, text) for number, text in enumerate(["[1]", "{bad", "", '"x"'])]
    assert [made["function"]["arguments"] for made in messages(*calls)[1]["tool_calls"]] == ["[1]", "{bad", {}, '"x"']


def test_a_template_that_demands_objects_or_lone_users_is_served() -> None:
    strict = """{% for m in messages %}{% if m.role == 'user' and loop.previtem and loop.previtem.role == 'user' %}
{{- raise_exception('roles must alternate') }}{% endif %}{{ m.content }}
{%- for c in m.tool_calls or [] %}{% for k, v in c.function.arguments | items %}[{{ k }}={{ v }}]{% endfor %}{% endfor %}{% endfor %}"""
    talk = PromptInput(items=(user("a"), user("b"), call(1, "{bad"), call(2, '{"x": 1}')))
    assert ready(strict).render_prompt(talk, now=parser_helpers.NOW).text == "a\n\nb[arguments={bad][x=1]"


def test_custom_calls_are_written_in_their_raw_frame() -> None:
    made = InputCustomCall(call_id="c", name="apply_patch", input="x\ny")
    items = (said("Patching."), made, InputCustomOutput(call_id="c", output="ok"))
    assert (
        messages(*items)[1]["content"] == "Patching.\n<tool_call>\n<custom=apply_patch>\nx\ny\n</custom>\n</tool_call>"
    )
    assert messages(*items, dialect="qwen3-coder")[0]["tool_calls"][0]["function"] == {
        "name": "apply_patch",
        "arguments": {"input": "x\ny"},
    }
    native = DUMP + "{# it knows tools of type custom #}"
    found = json.loads(
        ready(native).render_prompt(parser_helpers.conversation(items=items), now=parser_helpers.NOW).text
    )
    assert found["messages"][0]["tool_calls"][0]["custom"] == {"name": "apply_patch", "input": "x\ny"}
    assert [tool["type"] for tool in found["tools"]] == [
        "function",
        "function",
        "function",
        "custom",
        "function",
        "custom",
    ]


def test_the_lesson_is_there_only_where_it_is_needed() -> None:
    assert "Freeform" in messages(user("hi"))[0]["content"]
    assert messages(user("hi"), tools=parser_helpers.ToolTable()) == [{"role": "user", "content": "hi"}]
    assert messages(user("hi"), tool_choice="none") == [{"role": "user", "content": "hi"}]


def test_what_is_no_text_is_named() -> None:
    parts = (
        InputText(text="see"),
        InputImage(image_url="data:x"),
        InputFile(filename="a.pdf"),
        InputFile(),
        InputAudio(input_audio={}),
    )
    assert (
        messages(InputMessage(role="user", content=parts))[1]["content"]
        == "see\n[image]\n[file: a.pdf]\n[file]\n[audio]"
    )
    listed = InputFunctionOutput(call_id="x", output=(InputText(text="a"), InputImage()))
    assert messages(listed)[1] == {"role": "tool", "content": "a\n[image]", "tool_call_id": "x"}


def test_items_of_others_are_not_shown() -> None:
    items = (HostedInput(kind="web_search_call", payload={}), CompactionInput(encrypted_content="x"), user("hi"))
    assert len(messages(*items)) == 2


def test_namespaced_tools_have_flat_names_in_offers_and_in_history() -> None:
    spawned = InputFunctionCall(call_id="x", name="spawn", namespace="agents", arguments="{}")
    found = json.loads(
        ready().render_prompt(parser_helpers.conversation(items=(spawned,)), now=parser_helpers.NOW).text
    )
    assert found["messages"][1]["tool_calls"][0]["function"]["name"] == "agents__spawn"
    assert "agents__spawn" in [tool["function"]["name"] for tool in found["tools"]]


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
def test_whether_it_thinks_is_read_from_the_prompt(tail: str, thinking: bool) -> None:
    template = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}" + tail
    talk = PromptInput(items=(user("Say <think>"), said("a<think>b"), user("<think>")))
    assert ready(template).render_prompt(talk, now=parser_helpers.NOW).in_reasoning is thinking


def test_reasoning_left_open_in_an_earlier_turn_does_not_count() -> None:
    assert not ready("<think>old<|im_end|>new").render_prompt(PromptInput(), now=parser_helpers.NOW).in_reasoning


def test_effort_is_told_under_the_names_that_templates_know() -> None:
    template = "{{ enable_thinking }}|{{ reasoning_effort }}"
    texts = [
        ready(template).render_prompt(PromptInput(effort=effort), now=parser_helpers.NOW).text
        for effort in (None, "none", "high")
    ]
    assert texts == ["|", "False|", "True|high"]


@pytest.mark.parametrize("dialect", ["hermes", "gpt-oss"])
def test_half_a_surrogate_pair_ends_in_an_error_that_is_ours(dialect: str) -> None:
    with pytest.raises(RenderError):
        parser_helpers.tokens_format(dialect).render_prompt(
            PromptInput(items=(user("\ud800"),)), now=parser_helpers.NOW
        )


def test_gpt_oss_history(tmp_path: Path) -> None:
    items = (
        user("hi"),
        think("old"),
        said("Hello.", phase="final_answer"),
        user("add"),
        think("new"),
        said("Let me."),
        call(1, '{"a": 1}'),
        output(1, "1"),
        InputCustomCall(call_id="c", name="script", namespace="agents", input="x"),
    )
    text = (
        parser_helpers.tokens_format("gpt-oss")
        .render_prompt(parser_helpers.conversation(items=items, effort="high"), now=parser_helpers.NOW)
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


def test_gpt_oss_lays_out_what_is_said_again_as_the_library_lays_out_the_whole() -> None:
    chance, form = random.Random("again"), parser_helpers.tokens_format("gpt-oss")
    texts = ("", "hi", " two\n", "a<|end|>b<|return|>", '{"a": "é"}', "word " * 30)
    makers: list[Callable[[str], Any]] = [
        user,
        think,
        lambda text: said(text, phase=chance.choice([None, "commentary", "final_answer"])),
        lambda text: call(1, text),
        lambda text: output(1, text),
        lambda text: output(2, text),
        lambda text: InputCustomCall(call_id="c", name="script", namespace="agents", input=text),
        lambda text: InputCustomOutput(call_id="c", output=text),
    ]
    for _ in range(40):
        items = tuple(chance.choice(makers)(chance.choice(texts)) for _ in range(chance.randint(0, 12)))
        choice = chance.choice([{}, {"tool_choice": "none"}])
        talk = parser_helpers.conversation(items=items, instructions=chance.choice(["", "Be kind."]), **choice)
        whole = harmony.Conversation.from_messages(
            [
                *gptoss_format._head_messages(talk, parser_helpers.NOW),
                *gptoss_format._HistoryMessages(talk).build_messages(),
            ]
        )
        config = harmony.RenderConversationConfig(auto_drop_analysis=False)
        laid = gptoss_format.load_encoding().render_conversation_for_completion(whole, harmony.Role.ASSISTANT, config)
        for owner in ("me", "me", "you"):
            assert form.render_prompt(talk, now=parser_helpers.NOW, owner=owner).tokens == tuple(laid)


def test_gpt_oss_lays_out_for_each_owner_what_has_not_been_said_before(monkeypatch: pytest.MonkeyPatch) -> None:
    form, laid = gptoss_format.GptOssFormat(), []
    head, one = harmony.HarmonyEncoding.render_conversation, harmony.HarmonyEncoding.render

    def counted_head(self: Any, talk: Any, *more: Any) -> list[int]:
        laid.append("head")
        return head(self, talk, *more)

    def counted(self: Any, message: Any, *more: Any) -> list[int]:
        laid.append(message.content[0].text)
        return one(self, message, *more)

    monkeypatch.setattr(harmony.HarmonyEncoding, "render_conversation", counted_head)
    monkeypatch.setattr(harmony.HarmonyEncoding, "render", counted)
    for owner, texts in (("me", ["a", "b"]), ("me", ["a", "c", "b"]), ("you", ["a"])):
        form.render_prompt(PromptInput(items=tuple(map(user, texts))), now=parser_helpers.NOW, owner=owner)
    assert laid == ["head", "a", "b", "c", "head", "a"]


def test_gpt_oss_refuses_what_the_library_cannot_take() -> None:
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(300):
        deep = {"type": "object", "properties": {"x\ny": deep}}
    tools = parser_helpers.ToolTable.from_request([parser_helpers.FunctionTool(name="f", parameters=deep)])
    with pytest.raises(RenderError):
        parser_helpers.tokens_format("gpt-oss").render_prompt(PromptInput(tools=tools), now=parser_helpers.NOW)


def test_json_that_is_too_deep_is_an_error_of_the_conversation() -> None:
    deep = '{"a":' * 800 + "1" + "}" * 800
    with pytest.raises(RenderError):
        ready().render_prompt(PromptInput(items=(call(1, deep),)), now=parser_helpers.NOW)


BARE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"


@pytest.mark.parametrize("name", [name for name, dialect in DIALECTS.items() if dialect.calls])
def test_a_template_without_a_place_for_tools_is_served_anyway(name: str) -> None:
    """The prompt tells of the tools in words, shows earlier calls as the model writes them, and reads the same back."""
    dialect = DIALECTS[name]
    form = TemplateFormat(
        dialect, ByteVocabulary(("<think>", "</think>"), ("<|im_start|>", "<|im_end|>")), ChatTemplate(BARE)
    )
    call = InputFunctionCall(call_id="c1", name="add", arguments='{"a": 1, "b": 2}')
    other = InputFunctionCall(call_id="c2", name="now", arguments="{}")
    output = InputFunctionOutput(call_id="c1", output="3")
    text = form.render_prompt(
        parser_helpers.conversation(items=(user("Add."), call, other, output)), now=parser_helpers.NOW
    ).text
    assert '"name": "write"' in text and "Adds two numbers." in text and "NAME" in text
    assert "<|im_start|>user\nOutput of add:\n3<|im_end|>" in text
    shown = text.partition("<|im_start|>user\nAdd.<|im_end|>\n<|im_start|>assistant\n")[2].partition("<|im_end|>")[0]
    said, _ = parser_helpers.read(form, form.encode(shown))
    assert next(one.name for one in said if isinstance(one, Call)) == "add"
    assert [one.name for one in said if isinstance(one, Call)] == ["add", "now"]
    first = said[: next(place for place, one in enumerate(said) if isinstance(one, Close))]
    assert json.loads("".join(one.text for one in first if isinstance(one, Arguments))) == {"a": 1, "b": 2}
    assert (
        "# Tools"
        not in form.render_prompt(
            parser_helpers.conversation(items=(user("Add."),), tool_choice="none"), now=parser_helpers.NOW
        ).text
    )


def test_arguments_that_are_no_json_are_shown_all_the_same() -> None:
    form = TemplateFormat(DIALECTS["glm"], ByteVocabulary((), ("<|im_start|>", "<|im_end|>")), ChatTemplate(BARE))
    call = InputFunctionCall(call_id="c1", name="add", arguments="not JSON")
    text = form.render_prompt(parser_helpers.conversation(items=(user("Add."), call)), now=parser_helpers.NOW).text
    assert "<tool_call>add" in text and "not JSON" in text
