"""The prefix that the second prompt shares with a turn of two parallel calls, for templates of many kinds."""

import pytest

from antiphon.app.turns.prompts.prompt_token_cache import (
    MAX_OMITTED_TOKENS,
    FinishedTurn,
    PromptTokenCache,
    TurnPrompt,
    common_length,
)
from antiphon.events.inputs import AnyInput, InputFunctionCall
from antiphon.events.items import FunctionCall
from antiphon.harmony.detection.template_format import TemplateFormat
from antiphon.harmony.format import PromptInput
from tests.harmony.calling_models import (
    ANSWER,
    CALL_ITEMS,
    EACH_CALLING_MODEL,
    OUTPUT_ITEMS,
    QUESTION,
    TOOLS,
    load_model,
)
from tests.harmony.parser_helpers import NOW
from tests.harmony.template_models import TEMPLATE_MODELS, TemplateModel

OUTPUT = tuple(
    FunctionCall(
        id=f"fc_{call.call_id}", status="completed", call_id=call.call_id, name=call.name, arguments=call.arguments
    )
    for call in CALL_ITEMS
    if isinstance(call, InputFunctionCall)
)
MODELS = {model.name: model for model in TEMPLATE_MODELS}
SINGLE_CALL_MODELS = {"llama-3.1", "gigachat-3.0", "llm-jp-4"}


def render(history: PromptTokenCache, model: TemplateModel, *items: AnyInput) -> TurnPrompt:
    return history.render(load_model(model), "me", PromptInput(items=items, tools=TOOLS), NOW)


def render_two_turns(model: TemplateModel) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Returns the first prompt, the tokens generated for it, and the second prompt."""
    history, generated = PromptTokenCache(), tuple(load_model(model).encode(model.output))
    first = render(history, model, QUESTION)
    history.add_turn(FinishedTurn(first, generated, OUTPUT))
    second = render(history, model, QUESTION, *CALL_ITEMS, *OUTPUT_ITEMS)
    return first.prompt.tokens, generated, second.prompt.tokens


@EACH_CALLING_MODEL
def test_second_prompt_shares_the_first_up_to_the_answer(model: TemplateModel) -> None:
    """The start of the answer, such as an opened reasoning, is a part of the prompt that history may leave out."""
    first, _, second = render_two_turns(model)
    assert common_length(first, second) >= len(first) - MAX_OMITTED_TOKENS
    third = render(PromptTokenCache(), model, QUESTION, *CALL_ITEMS, *OUTPUT_ITEMS, ANSWER, QUESTION).prompt.tokens
    assert common_length(second, third) >= len(first) - MAX_OMITTED_TOKENS


def test_templates_with_one_call_in_a_message_are_known() -> None:
    found = {name for name, model in MODELS.items() if model.output and _takes_single_calls(model)}
    assert found == SINGLE_CALL_MODELS


def _takes_single_calls(model: TemplateModel) -> bool:
    model_format = load_model(model)
    return isinstance(model_format, TemplateFormat) and model_format._tool_renderer.shape.single_call


@pytest.mark.parametrize("name", sorted(SINGLE_CALL_MODELS))
def test_template_with_one_call_in_a_message_shares_at_most_the_first_call(name: str) -> None:
    """Such a template writes the first call's output behind the first call, where the model wrote the second call.

    So the second prompt cannot share more. It shares less if history leaves reasoning out, which stands before the
    calls (llm-jp-4).
    """
    model = MODELS[name]
    first, generated, second = render_two_turns(model)
    model_format = load_model(model)
    shared = common_length((*first, *generated), second)
    assert shared >= len(first)
    shared_calls = model_format.decode(second[len(first) : shared])
    remaining = model_format.decode(second[shared:])
    assert ("Oslo" in shared_calls) == (name != "llm-jp-4") and "Bergen" not in shared_calls
    assert remaining.index("sleet until noon") < remaining.index("Bergen") < remaining.index("drizzle all day")
