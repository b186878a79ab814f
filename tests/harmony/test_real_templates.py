"""Chat templates of published models: the dialect, prompts, calls and reasoning of each, against known facts."""

from collections import Counter
from itertools import takewhile

import pytest

from antiphon.events.inputs import AnyInput, InputFunctionCall, InputFunctionOutput, InputMessage, InputReasoning
from antiphon.events.items import ReasoningText
from antiphon.events.tools import FunctionTool
from antiphon.harmony.detection.template_format import TemplateFormat
from antiphon.harmony.format import PromptInput
from antiphon.harmony.rendered_prompt import RenderedPrompt
from antiphon.harmony.tools import ToolTable
from antiphon.state.segments import Say
from tests.harmony import parser_helpers
from tests.harmony.real_templates import TemplateFacts, load_facts, load_real_format

FACTS = load_facts()
EACH_TEMPLATE = pytest.mark.parametrize("facts", FACTS, ids=lambda facts: facts.file)
EACH_CALLING_TEMPLATE = pytest.mark.parametrize(
    "facts", [facts for facts in FACTS if facts.num_calls], ids=lambda facts: facts.file
)
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
TOOLS = ToolTable.from_request([FunctionTool(name="find_weather", description="Finds the weather.", parameters=SCHEMA)])
QUESTION = InputMessage(role="user", content="How is the walrus?")
REASONING = InputReasoning(content=(ReasoningText(text="A zebra helps."),))
CALLS = [("find_weather", {"city": "Oslo", "days": 2}), ("find_weather", {"city": "Bergen", "days": 3})]
CALL_ITEMS = [
    InputFunctionCall(call_id="call_8f3a90c1", name="find_weather", arguments='{"city": "Oslo", "days": 2}'),
    InputFunctionCall(call_id="call_77ab02de", name="find_weather", arguments='{"city": "Bergen", "days": 3}'),
]
OUTPUT_ITEMS = [
    InputFunctionOutput(call_id="call_8f3a90c1", output="sleet until noon"),
    InputFunctionOutput(call_id="call_77ab02de", output="drizzle all day"),
]


def render(
    model_format: TemplateFormat, *items: AnyInput, tools: ToolTable = TOOLS, effort: str | None = None
) -> RenderedPrompt:
    return model_format.render_prompt(PromptInput(items=items, tools=tools, effort=effort), now=parser_helpers.NOW)


def write_calls(model_format: TemplateFormat) -> list[str]:
    """Returns what a prompt has between a question and the first output: from the question on, and as an answer."""
    question = render(model_format, QUESTION).text
    text = render(model_format, QUESTION, *CALL_ITEMS, *OUTPUT_ITEMS).text
    begin, end = text.index(str(QUESTION.content)) + len(str(QUESTION.content)), text.index("sleet until noon")
    common = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(question, text, strict=False))))
    return [text[begin:end], text[max(begin, common) : end]]


def read_calls(model_format: TemplateFormat, output: str) -> list[tuple[str, object]]:
    """Returns the calls in an output, up to the first stop token behind one."""
    ids = model_format.encode(output)
    prompt_input = PromptInput(items=(QUESTION,), tools=TOOLS)
    segments, _ = parser_helpers.parse_tokens(model_format, ids, prompt_input=prompt_input)
    return parser_helpers.collect_calls(segments)


def count_control_tokens(model_format: TemplateFormat, prompt: RenderedPrompt) -> Counter[int]:
    added = frozenset(model_format.vocabulary.added_tokens.values())
    return Counter(token for token in prompt.tokens if token in added)


def test_sixty_templates_have_calls_that_are_read_back() -> None:
    assert len({facts.sha256 for facts in FACTS if facts.num_calls}) >= 60
    assert len({facts.dialect for facts in FACTS if facts.num_calls}) >= 20


@EACH_TEMPLATE
def test_dialect_is_found(facts: TemplateFacts) -> None:
    assert load_real_format(facts.file).name == facts.dialect


@EACH_TEMPLATE
def test_prompts_end_as_known(facts: TemplateFacts) -> None:
    model_format = load_real_format(facts.file)
    for effort in ("default", "none", "high"):
        prompt = render(model_format, QUESTION, tools=ToolTable(), effort=None if effort == "default" else effort)
        assert prompt.text.endswith(facts.ends.get(effort, facts.ends["default"]))
        assert prompt.in_reasoning == (effort in facts.reasoning)


def test_answer_in_a_wrapper_that_the_prompt_opened_is_its_text() -> None:
    model_format = load_real_format("Kimi-K3")
    conversation = PromptInput(items=(QUESTION,), effort="none")
    prompt = model_format.render_prompt(conversation, now=parser_helpers.NOW)
    reader = model_format.create_reader(prompt, conversation)
    output = "Hi<|close|>response<|sep|><|close|>message<|sep|>"
    segments = [*reader.feed(model_format.encode(output)), *reader.finish(natural=True)]
    assert segments == [Say("Hi")]


@EACH_TEMPLATE
def test_efforts_reach_variables_that_the_template_reads(facts: TemplateFacts) -> None:
    renderer = load_real_format(facts.file).renderer
    sent = {**renderer._find_effort_variables("none"), **renderer._find_effort_variables("high")}
    readable = renderer._template.variables
    assert readable is not None and sorted(sent.keys() & readable) == facts.effort_variables


@EACH_CALLING_TEMPLATE
def test_calls_of_the_template_are_read_back(facts: TemplateFacts) -> None:
    model_format = load_real_format(facts.file)
    outputs = write_calls(model_format)
    assert facts.call in outputs[0]
    assert CALLS[: facts.num_calls] in [read_calls(model_format, output) for output in outputs]


@EACH_TEMPLATE
def test_calls_that_no_dialect_reads_are_told(facts: TemplateFacts) -> None:
    assert bool(load_real_format(facts.file).unread_syntax) == facts.unread


@EACH_CALLING_TEMPLATE
def test_tool_loop_shows_calls_outputs_and_reasoning(facts: TemplateFacts) -> None:
    model_format = load_real_format(facts.file)
    loop = (QUESTION, REASONING, CALL_ITEMS[0], OUTPUT_ITEMS[0], REASONING, CALL_ITEMS[1], OUTPUT_ITEMS[1])
    text = render(model_format, *loop, effort="high").text
    for word in ("walrus", "Oslo", "sleet until noon", "Bergen", "drizzle all day"):
        assert word in text
    assert text.count("zebra") == facts.num_shown
    assert model_format.renderer.shape.reasoning_in == facts.reasoning_in


@pytest.mark.parametrize("file", ["Kimi-K2-Instruct", "Kimi-K2-Thinking"])
def test_ids_of_calls_count_over_the_conversation(file: str) -> None:
    calls = zip(CALL_ITEMS, OUTPUT_ITEMS, strict=True)
    text = render(load_real_format(file), QUESTION, *(item for pair in calls for item in pair)).text
    for number, output in enumerate(("sleet", "drizzle")):
        assert f"<|tool_call_begin|>functions.find_weather:{number}<|tool_call_argument_begin|>" in text
        assert f"Return of functions.find_weather:{number}\n{output}" in text


@EACH_TEMPLATE
def test_control_words_in_client_text_are_no_tokens(facts: TemplateFacts) -> None:
    model_format = load_real_format(facts.file)
    markers = (*model_format.vocabulary.added_tokens, *model_format.dialect.all_markers)
    hostile, counts = " ".join(dict.fromkeys(markers)), []
    for text in ("harmless", hostile):
        calls = [CALL_ITEMS[0]] if facts.num_calls else []
        outputs = [InputFunctionOutput(call_id="call_8f3a90c1", output=text)] if facts.num_calls else []
        items = (
            InputMessage(role="system", content=text),
            InputMessage(role="user", content=text),
            *calls,
            *outputs,
            InputMessage(role="assistant", content=f"Said: {text}"),
            InputMessage(role="user", content=f"{text} again"),
        )
        counts.append(count_control_tokens(model_format, render(model_format, *items)))
    assert counts[0] == counts[1]
