"""What the model spoke comes back as its own token ids, and only where it came back unchanged."""

from datetime import UTC, datetime
from random import Random

import pytest

from antiphon.app.turns.token_history import (
    MAX_COMPARED_TURNS,
    MAX_TURNS_PER_OWNER,
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
ASKED = InputMessage(role="user", content="Add.")
THOUGHT = InputReasoning(content=[ReasoningText(text="Hm.")])
CALLED = InputFunctionCall(call_id="call_1", name="add", arguments='{"a": 1}')
OUTPUT = InputFunctionOutput(call_id="call_1", output="2")
ANSWER = InputMessage(role="assistant", content="Two.")
HEARD = (
    Reasoning(id="rs_1", status="completed", content=(ReasoningText(text="Hm."),)),
    FunctionCall(id="fc_1", status="completed", call_id="call_1", name="add", arguments='{"a": 1}'),
)
TOLD = (Message(id="msg_1", status="completed", content=(OutputText(text="Two."),)),)
SPOKEN = {
    "hermes": '<think>\nHm.\n</think>\n\n<tool_call>\n{"name":"add","arguments":{"a":1}}\n</tool_call><|im_end|>',
    "gpt-oss": "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.add "
    '<|constrain|>json<|message|>{"a":  1}<|call|>',
}


def read(recall: TokenHistory, form: ModelFormat, *items: AnyInput, owner: str = "me") -> TurnPrompt:
    return recall.render(form, owner, PromptInput(items=items, tools=TOOLS), NOW)


def told(recall: TokenHistory, form: ModelFormat, spoken: str) -> TurnPrompt:
    layout = read(recall, form, ASKED)
    recall.add_turn(FinishedTurn(layout, tuple(form.encode(spoken)), TOLD))
    return layout


def called(dialect: str) -> tuple[ModelFormat, TokenHistory, tuple[int, ...]]:
    """A model that has called a tool, and all that it read and spoke."""
    form, recall = bytes_format(dialect), TokenHistory()
    layout, spoken = read(recall, form, ASKED), tuple(form.encode(SPOKEN[dialect]))
    recall.add_turn(FinishedTurn(layout, spoken, HEARD))
    return form, recall, layout.prompt.tokens + spoken


@pytest.mark.parametrize("dialect", SPOKEN)
def test_a_call_comes_back_in_the_blanks_it_was_spoken_with(dialect: str) -> None:
    form, recall, said = called(dialect)
    following = read(recall, form, ASKED, THOUGHT, CALLED, OUTPUT)
    assert following.rendered_tokens[: len(said)] != said
    assert following.prompt.tokens[: len(said)] == said
    rest = form.decode(following.prompt.tokens[len(said) :])
    assert "2" in rest and following.prompt.text.endswith(rest)


@pytest.mark.parametrize("dialect", SPOKEN)
def test_a_chain_of_turns_is_recalled_whole(dialect: str) -> None:
    form, recall, said = called(dialect)
    second = read(recall, form, ASKED, THOUGHT, CALLED, OUTPUT)
    spoken = tuple(form.encode(SPOKEN[dialect]))
    recall.add_turn(FinishedTurn(second, spoken, HEARD))
    third = read(recall, form, ASKED, *(THOUGHT, CALLED, OUTPUT) * 2)
    whole = second.prompt.tokens + spoken
    assert whole[: len(said)] == said
    assert third.prompt.tokens[: len(whole)] == whole


@pytest.mark.parametrize("dialect", SPOKEN)
def test_what_was_changed_is_read_as_it_came_back(dialect: str) -> None:
    form, recall, _ = called(dialect)
    other = InputFunctionCall(call_id="call_1", name="add", arguments='{"a": 2}')
    for items in [(ASKED, THOUGHT, other, OUTPUT), (ASKED, CALLED, OUTPUT), (ASKED, OUTPUT, THOUGHT, CALLED)]:
        following = read(recall, form, *items)
        assert following.prompt.tokens == following.rendered_tokens


def test_nobody_is_given_another_owners_or_models_words() -> None:
    form, recall, _ = called("hermes")
    for other, owner in [(form, "you"), (bytes_format("hermes"), "me")]:
        following = read(recall, other, ASKED, THOUGHT, CALLED, OUTPUT, owner=owner)
        assert following.prompt.tokens == following.rendered_tokens


def test_reasoning_that_history_drops_does_not_come_back() -> None:
    form, recall = bytes_format("gpt-oss"), TokenHistory()
    spoken = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Two.<|return|>"
    recall.add_turn(FinishedTurn(read(recall, form, ASKED), tuple(form.encode(spoken)), (HEARD[0], *TOLD)))
    following = read(recall, form, ASKED, THOUGHT, ANSWER, ASKED)
    assert "Hm." not in following.prompt.text
    assert following.prompt.tokens == following.rendered_tokens


def test_a_final_answer_ends_in_history_as_history_ends_it() -> None:
    form, recall = bytes_format("gpt-oss"), TokenHistory()
    told(recall, form, "<|channel|>final<|message|>Two. <|return|>")
    following = read(recall, form, ASKED, ANSWER, ASKED)
    assert "Two. <|end|>" in form.decode(following.prompt.tokens) and "Two.<|end|>" in form.decode(
        following.rendered_tokens
    )


def test_a_turn_that_the_model_did_not_end_is_ended_by_history() -> None:
    form, recall = bytes_format("hermes"), TokenHistory()
    told(recall, form, "Two. ")
    following = read(recall, form, ASKED, ANSWER, ASKED)
    assert "Two. <|im_end|>" in form.decode(following.prompt.tokens)


def test_the_oldest_turns_are_forgotten() -> None:
    form, recall, said = called("hermes")
    recall = TokenHistory(bound=3 * len(said) + MAX_TURNS_PER_OWNER)
    layout = read(recall, form, ASKED)
    recall.add_turn(FinishedTurn(layout, said[len(layout.rendered_tokens) :], HEARD))
    assert read(recall, form, ASKED, THOUGHT, CALLED, OUTPUT).prompt.tokens[: len(said)] == said
    for _ in range(3):
        told(recall, form, "Two.<|im_end|>")
    following = read(recall, form, ASKED, THOUGHT, CALLED, OUTPUT)
    assert following.prompt.tokens == following.rendered_tokens


def test_many_turns_of_few_tokens_take_a_bounded_place() -> None:
    form, recall = bytes_format("hermes"), TokenHistory(bound=10 * MAX_TURNS_PER_OWNER)
    for _ in range(20):
        told(recall, form, "Two.<|im_end|>")
    assert 0 < len(recall._turns) < 10


def test_turns_are_found_as_if_all_were_looked_through() -> None:
    chance, recall, forms = (
        Random(7),
        TokenHistory(bound=60 * MAX_TURNS_PER_OWNER),
        [bytes_format("hermes"), bytes_format("hermes")],
    )
    words = [InputMessage(role="user", content=text) for text in ("a", "b", "ab")]

    def some() -> TurnPrompt:
        items = [chance.choice(words) for _ in range(chance.randint(1, 4))]
        return read(recall, chance.choice(forms), *items, owner=chance.choice(["me", "you"]))

    for _ in range(200):
        asked = some()
        begun = [
            kept.number
            for kept in reversed(recall._turns)
            if (kept.turn.turn_prompt.owner, kept.turn.turn_prompt.format) == (asked.owner, asked.format)
            and asked.rendered_tokens[
                : (end := _last_message_end(asked.format, kept.turn.turn_prompt.rendered_tokens) + 1)
            ]
            == kept.turn.turn_prompt.rendered_tokens[:end]
        ]
        found = recall._find_candidates(_prefix_keys(asked.format, asked.owner, asked.rendered_tokens))
        assert [kept.number for kept in found] == begun[:MAX_COMPARED_TURNS]
        recall.add_turn(FinishedTurn(some(), (1,), TOLD))
    assert sum(map(len, recall._by_start.values())) == len(recall._turns) < 60, "what is forgotten is found no more"
    assert all(recall._by_start.values())
