"""What the model spoke comes back as its own token ids, and only where it came back unchanged."""

from datetime import UTC, datetime

import pytest

from app.recall import Recall, Turn
from events.inputs import AnyInput, FunctionTool, InputFunctionCall, InputFunctionOutput, InputMessage, InputReasoning
from events.items import ReasoningText
from harmony.choose import bytes_format
from harmony.format import Conversation, Format, Prompt
from harmony.tools import ToolTable

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TOOLS = ToolTable.build([FunctionTool(name="add", parameters={"type": "object"})])
ASKED = InputMessage(role="user", content="Add.")
THOUGHT = InputReasoning(content=[ReasoningText(text="Hm.")])
CALLED = InputFunctionCall(call_id="call_1", name="add", arguments='{"a": 1}')
OUTPUT = InputFunctionOutput(call_id="call_1", output="2")
SPOKEN = {
    "hermes": '<think>\nHm.\n</think>\n\n<tool_call>\n{"name":"add","arguments":{"a":1}}\n</tool_call><|im_end|>',
    "gpt-oss": "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.add "
    '<|constrain|>json<|message|>{"a":  1}<|call|>',
}


def laid(form: Format, *items: AnyInput) -> Prompt:
    return form.render(Conversation(items=items, tools=TOOLS), now=NOW)


def turn(form: Format, spoken: str, *items: AnyInput, owner: str = "me", read: tuple[int, ...] = ()) -> Turn:
    prompt = laid(form, ASKED).tokens
    return Turn(
        format=form,
        owner=owner,
        conversation=Conversation(items=(ASKED,), tools=TOOLS),
        now=NOW,
        laid=prompt,
        read=read or prompt,
        spoken=tuple(form.encode(spoken)),
        items=items,
    )


@pytest.mark.parametrize("dialect", SPOKEN)
def test_a_call_comes_back_in_the_blanks_it_was_spoken_with(dialect: str) -> None:
    form, recall = bytes_format(dialect), Recall()
    recall.remember(turn(form, SPOKEN[dialect], THOUGHT, CALLED))
    said = (*laid(form, ASKED).tokens, *form.encode(SPOKEN[dialect]))
    following = laid(form, ASKED, THOUGHT, CALLED, OUTPUT)
    assert following.tokens[: len(said)] != said
    given = recall.prompt(form, "me", following)
    assert given.tokens[: len(said)] == said
    rest = form.decode(given.tokens[len(said) :])
    assert "2" in rest and following.text.endswith(rest)
    assert given.text == following.text


@pytest.mark.parametrize("dialect", SPOKEN)
def test_a_chain_of_turns_is_recalled_whole(dialect: str) -> None:
    form, recall = bytes_format(dialect), Recall()
    first = turn(form, SPOKEN[dialect], THOUGHT, CALLED)
    recall.remember(first)
    again = (ASKED, THOUGHT, CALLED, OUTPUT)
    given = recall.prompt(form, "me", laid(form, *again))
    second = Turn(
        format=form,
        owner="me",
        conversation=Conversation(items=again, tools=TOOLS),
        now=NOW,
        laid=laid(form, *again).tokens,
        read=given.tokens,
        spoken=first.spoken,
        items=(THOUGHT, CALLED),
    )
    recall.remember(second)
    third = recall.prompt(form, "me", laid(form, *again, THOUGHT, CALLED, OUTPUT))
    said = (*given.tokens, *first.spoken)
    assert third.tokens[: len(said)] == said


@pytest.mark.parametrize("dialect", SPOKEN)
def test_what_was_changed_is_read_as_it_came_back(dialect: str) -> None:
    form, recall = bytes_format(dialect), Recall()
    recall.remember(turn(form, SPOKEN[dialect], THOUGHT, CALLED))
    other = InputFunctionCall(call_id="call_1", name="add", arguments='{"a": 2}')
    for items in [(ASKED, THOUGHT, other, OUTPUT), (ASKED, CALLED, OUTPUT), (ASKED, OUTPUT, THOUGHT, CALLED)]:
        following = laid(form, *items)
        assert recall.prompt(form, "me", following) is following


def test_nobody_is_given_another_owners_words() -> None:
    form, recall = bytes_format("hermes"), Recall()
    recall.remember(turn(form, SPOKEN["hermes"], THOUGHT, CALLED))
    following = laid(form, ASKED, THOUGHT, CALLED, OUTPUT)
    assert recall.prompt(form, "you", following) is following
    assert recall.prompt(bytes_format("hermes"), "me", following) is following


def test_reasoning_that_history_drops_does_not_come_back() -> None:
    form, recall = bytes_format("gpt-oss"), Recall()
    spoken = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Two.<|return|>"
    answer = InputMessage(role="assistant", content="Two.")
    recall.remember(turn(form, spoken, THOUGHT, answer))
    following = laid(form, ASKED, THOUGHT, answer, ASKED)
    assert "Hm." not in following.text
    assert recall.prompt(form, "me", following) == following


def test_a_final_answer_ends_in_history_as_history_ends_it() -> None:
    form, recall = bytes_format("gpt-oss"), Recall()
    answer = InputMessage(role="assistant", content="Two.")
    recall.remember(turn(form, "<|channel|>final<|message|>Two.<|return|>", answer, read=(7, 7)))
    following = laid(form, ASKED, answer, ASKED)
    given = recall.prompt(form, "me", following)
    end = form.encode("<|end|>")[0]
    assert given.tokens[:2] == (7, 7) and end in given.tokens and form.stop_ids[0] not in given.tokens


def test_the_oldest_turns_are_forgotten() -> None:
    form = bytes_format("hermes")
    one = turn(form, SPOKEN["hermes"], THOUGHT, CALLED)
    recall = Recall(bound=3 * (2 * len(one.laid) + len(one.spoken)))
    following = laid(form, ASKED, THOUGHT, CALLED, OUTPUT)
    recall.remember(one)
    for _ in range(3):
        recall.remember(turn(form, "Two.<|im_end|>", InputMessage(role="assistant", content="Two.")))
    assert recall.prompt(form, "me", following) is following


def test_a_turn_that_was_cut_off_is_not_recalled() -> None:
    form, recall = bytes_format("hermes"), Recall()
    recall.remember(turn(form, "Tw", InputMessage(role="assistant", content="Tw")))
    following = laid(form, ASKED, InputMessage(role="assistant", content="Tw"), ASKED)
    assert recall.prompt(form, "me", following) is following
