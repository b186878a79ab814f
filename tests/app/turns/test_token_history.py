"""The token history: output that a client sends back unchanged is rendered with the token ids the model generated."""

from datetime import UTC, datetime
from random import Random

import pytest

from antiphon.app.turns.token_history import (
    MAX_COMPARED_TURNS,
    TURN_OVERHEAD_TOKENS,
    FinishedTurn,
    TokenHistory,
    TurnPrompt,
    _last_message_end,
    _prefix_keys,
)
from antiphon.events.inputs import (
    AnyInput,
    FunctionTool,
    InputFunctionCall,
    InputFunctionOutput,
    InputMessage,
    InputReasoning,
)
from antiphon.events.items import FunctionCall, Message, OutputText, Reasoning, ReasoningText
from antiphon.harmony.detect import bytes_format
from antiphon.harmony.format import ModelFormat, PromptInput
from antiphon.harmony.tools import ToolTable

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TOOLS = ToolTable.from_request([FunctionTool(name="add", parameters={"type": "object"})])
QUESTION = InputMessage(role="user", content="Add.")
REASONING = InputReasoning(content=[ReasoningText(text="Hm.")])
CALL = InputFunctionCall(call_id="call_1", name="add", arguments='{"a": 1}')
CALL_OUTPUT = InputFunctionOutput(call_id="call_1", output="2")
ANSWER = InputMessage(role="assistant", content="Two.")
CALL_ITEMS = (
    Reasoning(id="rs_1", status="completed", content=(ReasoningText(text="Hm."),)),
    FunctionCall(id="fc_1", status="completed", call_id="call_1", name="add", arguments='{"a": 1}'),
)
ANSWER_ITEMS = (Message(id="msg_1", status="completed", content=(OutputText(text="Two."),)),)
CALL_TEXTS = {
    "hermes": '<think>\nHm.\n</think>\n\n<tool_call>\n{"name":"add","arguments":{"a":1}}\n</tool_call><|im_end|>',
    "gpt-oss": "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.add "
    '<|constrain|>json<|message|>{"a":  1}<|call|>',
}


def render_prompt(history: TokenHistory, model_format: ModelFormat, *items: AnyInput, owner: str = "me") -> TurnPrompt:
    return history.render(model_format, owner, PromptInput(items=items, tools=TOOLS), NOW)


def add_answer(history: TokenHistory, model_format: ModelFormat, output: str) -> TurnPrompt:
    turn_prompt = render_prompt(history, model_format, QUESTION)
    history.add_turn(FinishedTurn(turn_prompt, tuple(model_format.encode(output)), ANSWER_ITEMS))
    return turn_prompt


def start_with_call(dialect: str) -> tuple[ModelFormat, TokenHistory, tuple[int, ...]]:
    """Returns a format, a history with one tool-calling turn, and the tokens of that turn's prompt and output."""
    model_format, history = bytes_format(dialect), TokenHistory()
    turn_prompt = render_prompt(history, model_format, QUESTION)
    output = tuple(model_format.encode(CALL_TEXTS[dialect]))
    history.add_turn(FinishedTurn(turn_prompt, output, CALL_ITEMS))
    return model_format, history, turn_prompt.prompt.tokens + output


@pytest.mark.parametrize("dialect", CALL_TEXTS)
def test_call_is_rendered_with_its_generated_tokens(dialect: str) -> None:
    model_format, history, tokens = start_with_call(dialect)
    following = render_prompt(history, model_format, QUESTION, REASONING, CALL, CALL_OUTPUT)
    assert following.rendered_tokens[: len(tokens)] != tokens
    assert following.prompt.tokens[: len(tokens)] == tokens
    remaining = model_format.decode(following.prompt.tokens[len(tokens) :])
    assert "2" in remaining and following.prompt.text.endswith(remaining)


@pytest.mark.parametrize("dialect", CALL_TEXTS)
def test_several_turns_are_rendered_with_their_generated_tokens(dialect: str) -> None:
    model_format, history, tokens = start_with_call(dialect)
    second = render_prompt(history, model_format, QUESTION, REASONING, CALL, CALL_OUTPUT)
    output = tuple(model_format.encode(CALL_TEXTS[dialect]))
    history.add_turn(FinishedTurn(second, output, CALL_ITEMS))
    third = render_prompt(history, model_format, QUESTION, *(REASONING, CALL, CALL_OUTPUT) * 2)
    second_tokens = second.prompt.tokens + output
    assert second_tokens[: len(tokens)] == tokens
    assert third.prompt.tokens[: len(second_tokens)] == second_tokens


@pytest.mark.parametrize("dialect", CALL_TEXTS)
def test_changed_items_are_rendered_from_their_text(dialect: str) -> None:
    model_format, history, _ = start_with_call(dialect)
    other = InputFunctionCall(call_id="call_1", name="add", arguments='{"a": 2}')
    for items in [
        (QUESTION, REASONING, other, CALL_OUTPUT),
        (QUESTION, CALL, CALL_OUTPUT),
        (QUESTION, CALL_OUTPUT, REASONING, CALL),
    ]:
        following = render_prompt(history, model_format, *items)
        assert following.prompt.tokens == following.rendered_tokens


def test_turns_of_other_owners_or_models_are_not_used() -> None:
    model_format, history, _ = start_with_call("hermes")
    for other, owner in [(model_format, "you"), (bytes_format("hermes"), "me")]:
        following = render_prompt(history, other, QUESTION, REASONING, CALL, CALL_OUTPUT, owner=owner)
        assert following.prompt.tokens == following.rendered_tokens


def test_reasoning_that_the_template_drops_is_not_restored() -> None:
    model_format, history = bytes_format("gpt-oss"), TokenHistory()
    output = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Two.<|return|>"
    turn_prompt = render_prompt(history, model_format, QUESTION)
    items = (CALL_ITEMS[0], *ANSWER_ITEMS)
    history.add_turn(FinishedTurn(turn_prompt, tuple(model_format.encode(output)), items))
    following = render_prompt(history, model_format, QUESTION, REASONING, ANSWER, QUESTION)
    assert "Hm." not in following.prompt.text
    assert following.prompt.tokens == following.rendered_tokens


def test_final_answer_keeps_its_text_and_gets_the_end_of_history() -> None:
    model_format, history = bytes_format("gpt-oss"), TokenHistory()
    add_answer(history, model_format, "<|channel|>final<|message|>Two. <|return|>")
    following = render_prompt(history, model_format, QUESTION, ANSWER, QUESTION)
    assert "Two. <|end|>" in model_format.decode(following.prompt.tokens)
    assert "Two.<|end|>" in model_format.decode(following.rendered_tokens)


def test_unfinished_turn_gets_the_end_of_history() -> None:
    model_format, history = bytes_format("hermes"), TokenHistory()
    add_answer(history, model_format, "Two. ")
    following = render_prompt(history, model_format, QUESTION, ANSWER, QUESTION)
    assert "Two. <|im_end|>" in model_format.decode(following.prompt.tokens)


def test_oldest_turns_are_evicted() -> None:
    model_format, history, tokens = start_with_call("hermes")
    history = TokenHistory(bound=3 * len(tokens) + TURN_OVERHEAD_TOKENS)
    turn_prompt = render_prompt(history, model_format, QUESTION)
    history.add_turn(FinishedTurn(turn_prompt, tokens[len(turn_prompt.rendered_tokens) :], CALL_ITEMS))
    following = render_prompt(history, model_format, QUESTION, REASONING, CALL, CALL_OUTPUT)
    assert following.prompt.tokens[: len(tokens)] == tokens
    for _ in range(3):
        add_answer(history, model_format, "Two.<|im_end|>")
    following = render_prompt(history, model_format, QUESTION, REASONING, CALL, CALL_OUTPUT)
    assert following.prompt.tokens == following.rendered_tokens


def test_number_of_short_turns_is_limited() -> None:
    model_format, history = bytes_format("hermes"), TokenHistory(bound=10 * TURN_OVERHEAD_TOKENS)
    for _ in range(20):
        add_answer(history, model_format, "Two.<|im_end|>")
    assert 0 < len(history._turns) < 10


def test_indexed_lookup_agrees_with_a_search_of_all_turns() -> None:
    dice, history = Random(7), TokenHistory(bound=60 * TURN_OVERHEAD_TOKENS)
    formats = [bytes_format("hermes"), bytes_format("hermes")]
    messages = [InputMessage(role="user", content=text) for text in ("a", "b", "ab")]

    def render_random_prompt() -> TurnPrompt:
        items = [dice.choice(messages) for _ in range(dice.randint(1, 4))]
        return render_prompt(history, dice.choice(formats), *items, owner=dice.choice(["me", "you"]))

    for _ in range(200):
        turn_prompt = render_random_prompt()
        expected = [
            entry.number
            for entry in reversed(history._turns)
            if (entry.turn.turn_prompt.owner, entry.turn.turn_prompt.format) == (turn_prompt.owner, turn_prompt.format)
            and turn_prompt.rendered_tokens[
                : (end := _last_message_end(turn_prompt.format, entry.turn.turn_prompt.rendered_tokens) + 1)
            ]
            == entry.turn.turn_prompt.rendered_tokens[:end]
        ]
        found = history._find_candidates(
            _prefix_keys(turn_prompt.format, turn_prompt.owner, turn_prompt.rendered_tokens)
        )
        assert [entry.number for entry in found] == expected[:MAX_COMPARED_TURNS]
        history.add_turn(FinishedTurn(render_random_prompt(), (1,), ANSWER_ITEMS))
    assert sum(map(len, history._by_start.values())) == len(history._turns) < 60, "evicted turns are not found"
    assert all(history._by_start.values())
