"""Two turns with tools on templates of many kinds: nothing of the conversation is lost, and no template refuses it."""

import pytest

from antiphon.events.inputs import (
    AnyInput,
    InputCustomCall,
    InputCustomOutput,
    InputFunctionCall,
    InputFunctionOutput,
    InputMessage,
)
from antiphon.events.tools import CustomTool, FunctionTool
from antiphon.harmony.format import PromptInput
from antiphon.harmony.tools import ToolTable
from antiphon.state.segments import Say
from tests.harmony import parser_helpers
from tests.harmony.calling_models import (
    ANSWER,
    CALL_ITEMS,
    EACH_CALLING_MODEL,
    OUTPUT_ITEMS,
    QUESTION,
    TOOLS,
    load_model,
)
from tests.harmony.template_models import TEMPLATE_MODELS, TEMPLATES_FOLDER, TemplateModel

CALLS = [("find_weather", {"city": "Oslo", "days": 2}), ("find_weather", {"city": "Bergen", "days": 3})]
EACH_MODEL = pytest.mark.parametrize("model", TEMPLATE_MODELS, ids=lambda model: model.name)


def render(model: TemplateModel, *items: AnyInput, tools: ToolTable = TOOLS, effort: str | None = None) -> str:
    prompt_input = PromptInput(instructions="Be brief.", items=items, tools=tools, effort=effort)
    return load_model(model).render_prompt(prompt_input, now=parser_helpers.NOW).text


def test_every_template_has_a_model() -> None:
    names = {file.name.removesuffix(".jinja") for file in TEMPLATES_FOLDER.glob("*.jinja")}
    models = [model.name for model in TEMPLATE_MODELS]
    assert {
        next(model for model in models if name in (model, f"{model}.default", f"{model}.tool_use")) for name in names
    }
    assert len(models) == len(set(models)) >= 25


@EACH_MODEL
def test_dialect_is_detected(model: TemplateModel) -> None:
    assert load_model(model).name == model.dialect


@EACH_CALLING_MODEL
def test_first_prompt_holds_the_tools(model: TemplateModel) -> None:
    text = render(model, QUESTION)
    assert "Be brief." in text and QUESTION.content in text
    assert "find_weather" in text and "city" in text


@EACH_CALLING_MODEL
def test_output_in_the_models_own_syntax_is_two_calls(model: TemplateModel) -> None:
    model_format = load_model(model)
    prompt_input = PromptInput(items=(QUESTION,), tools=TOOLS)
    prompt = model_format.render_prompt(prompt_input, now=parser_helpers.NOW)
    tokens = model_format.encode(model.output)
    segments, _ = parser_helpers.parse_tokens(
        model_format, tokens, prompt_input=prompt_input, thinking=prompt.in_reasoning
    )
    assert parser_helpers.collect_calls(segments) == CALLS
    assert "".join(segment.text for segment in segments if isinstance(segment, Say)).strip() in ("", "Looking.")
    for size in (1, 7):
        cuts = range(0, len(tokens), size)
        split, _ = parser_helpers.parse_tokens(
            model_format, tokens, cuts, prompt_input=prompt_input, thinking=prompt.in_reasoning
        )
        assert split == segments


@EACH_MODEL
@pytest.mark.parametrize("text", ["", "Let me look."], ids=["calls", "text and calls"])
@pytest.mark.parametrize("tools", [TOOLS, ToolTable()], ids=["tools", "no tools"])
def test_second_prompt_holds_calls_and_outputs(model: TemplateModel, text: str, tools: ToolTable) -> None:
    said = (InputMessage(role="assistant", content=text),) if text else ()
    rendered = render(model, QUESTION, *said, *CALL_ITEMS, *OUTPUT_ITEMS, tools=tools)
    history = rendered[rendered.index(str(QUESTION.content)) :]
    assert "Be brief." in rendered
    assert history.count("find_weather") >= 2
    for part in (text, "Oslo", "Bergen", "sleet until noon", "drizzle all day"):
        assert part in history
    assert history.index("Oslo") < history.index("sleet until noon")
    assert history.index("Bergen") < history.index("drizzle all day")


@EACH_MODEL
@pytest.mark.parametrize("text", ["", "Let me look."], ids=["calls", "text and calls"])
def test_third_prompt_holds_the_answer(model: TemplateModel, text: str) -> None:
    said = (InputMessage(role="assistant", content=text),) if text else ()
    following = InputMessage(role="user", content="And tomorrow?")
    rendered = render(model, QUESTION, *said, *CALL_ITEMS, *OUTPUT_ITEMS, ANSWER, following)
    for part in ("Oslo", "drizzle all day", str(ANSWER.content), str(following.content)):
        assert part in rendered


@EACH_MODEL
def test_chat_without_tools_is_rendered(model: TemplateModel) -> None:
    rendered = render(model, QUESTION, ANSWER, QUESTION, tools=ToolTable())
    assert "Be brief." in rendered and rendered.count(str(QUESTION.content)) == 2 and str(ANSWER.content) in rendered
    assert "find_weather" not in rendered


@EACH_MODEL
@pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh"])
def test_every_reasoning_effort_is_rendered(model: TemplateModel, effort: str) -> None:
    assert str(QUESTION.content) in render(model, QUESTION, effort=effort)


@pytest.mark.parametrize(
    ("effort", "rendered"),
    [
        (None, "no_think"),
        ("none", "no_think"),
        ("minimal", "low"),
        ("low", "low"),
        ("medium", "high"),
        ("xhigh", "high"),
    ],
)
def test_refused_effort_becomes_the_nearest_one(effort: str | None, rendered: str) -> None:
    model = next(model for model in TEMPLATE_MODELS if model.name == "hy3")
    assert f"<｜hy_Mode:opensource｜>{rendered}<" in render(model, QUESTION, effort=effort)


def test_message_of_calls_is_followed_by_no_empty_message() -> None:
    """Some templates end a message of calls, and then write its text, even if there is none."""
    rendered = render(
        TEMPLATE_MODELS[[model.name for model in TEMPLATE_MODELS].index("deepseek-r1-distill")],
        QUESTION,
        *CALL_ITEMS,
        *OUTPUT_ITEMS,
    )
    assert rendered.count("<｜Assistant｜>") == 1


@EACH_MODEL
def test_second_prompt_holds_custom_calls_and_late_messages(model: TemplateModel) -> None:
    """Agents send custom calls, several user messages in a row, late instructions, and arguments that are no JSON."""
    tools = ToolTable.from_request([CustomTool(name="apply_patch", description="Patches."), FunctionTool(name="look")])
    rendered = render(
        model,
        InputMessage(role="user", content="Environment: linux."),
        QUESTION,
        InputCustomCall(call_id="call_1", name="apply_patch", input="*** Begin\n+sunny"),
        InputCustomOutput(call_id="call_1", output="patched it"),
        InputFunctionCall(call_id="call_2", name="look", arguments="not JSON"),
        InputFunctionOutput(call_id="call_2", output="seen it"),
        InputMessage(role="developer", content="Write English."),
        InputMessage(role="user", content="And now?"),
        tools=tools,
    )
    parts = ("Environment: linux.", QUESTION.content, "apply_patch", "+sunny", "patched it", "look", "not JSON")
    for part in (*parts, "seen it", "Write English.", "And now?"):
        assert part in rendered
