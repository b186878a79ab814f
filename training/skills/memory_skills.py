"""The skill that needs memory: a first turn, then a question about it. One function per kind of first turn."""

from __future__ import annotations

from collections.abc import Callable

from training import phrases, wordings
from training.chat import ChatMessage, Dialogue, ToolDefinition, answer_message, user_message
from training.fixed_texts import MET, NAMED, NOTED, RECALLED_FACT, REMEMBERED
from training.skills import text_skills
from training.skills.tool_skills import report_messages
from training.word_sampler import WordSampler

RememberedTurn = tuple[list[ChatMessage], str, str, list[ToolDefinition]]
"""Messages of the first turn, the question about it, its answer, and the tools if the first turn called one."""


def recall_name(words: WordSampler, _size: float) -> RememberedTurn:
    """Returns a turn in which the user states a name, and the question for it."""
    name = words.pick_name()
    messages = [user_message(words.random.choice(wordings.MY_NAME).format(name)), answer_message("", MET.format(name))]
    return messages, words.random.choice(wordings.ASK_NAME), NAMED.format(name), []


def recall_word(words: WordSampler, _size: float) -> RememberedTurn:
    """Returns a turn with a word to remember, and the question for it."""
    choose = words.random.choice
    word = choose(
        (
            words.any_word,
            words.random_characters,
            words.make_number,
            lambda: f"{words.any_word()}-{words.make_number()}",
        )
    )()
    messages = [user_message(choose(wordings.REMEMBER).format(word)), answer_message("", REMEMBERED)]
    return messages, choose(wordings.ASK_WORD), word, []


def recall_fact(words: WordSampler, _size: float) -> RememberedTurn:
    """Returns a turn in which the user states a fact, and the question for it."""
    noun, value = words.pick_noun(), phrases.make_value(words)
    messages = [user_message(f"my {noun} is {value}"), answer_message("", NOTED.format(noun, value))]
    return messages, f"what is my {noun}?", RECALLED_FACT.format(noun, value), []


def recall_output(words: WordSampler, size: float) -> RememberedTurn:
    """Returns a turn that reports a tool's output, and the question for it."""
    messages, tools = report_messages(words, size, frame=words.flip_coin(0.5))
    return messages, words.random.choice(wordings.ASK_OUTPUT), messages[-1]["content"], tools


def recall_sum(words: WordSampler, size: float) -> RememberedTurn:
    """Returns a turn that adds two numbers, and the question for the sum."""
    messages = text_skills.make_sum(words, size).messages
    return messages, words.random.choice(wordings.ASK_SUM), messages[-1]["content"], []


def recall_phrase(words: WordSampler, size: float) -> RememberedTurn:
    """Returns a turn that repeats a phrase, and the request to repeat it again."""
    messages = text_skills.make_repetition(words, size).messages
    return messages, words.random.choice(wordings.AGAIN), messages[-1]["content"], []


KINDS: tuple[Callable[[WordSampler, float], RememberedTurn], ...] = (
    recall_name,
    recall_word,
    recall_fact,
    recall_output,
    recall_sum,
    recall_phrase,
)
"""Functions that make a first turn; one is drawn per dialogue."""
KINDS_WITHOUT_TOOLS = tuple(kind for kind in KINDS if kind is not recall_output)


def make_second_turn(words: WordSampler, size: float) -> Dialogue:
    """Returns a dialogue that answers a question about the previous turn."""
    make_first = words.random.choice(KINDS)
    unneeded_tools = text_skills.draw_unneeded_tools(words, size)
    messages, question, expected, tools = make_first(words, size)
    # The template keeps 200 characters of an earlier answer.
    answer = answer_message("From the turn before.", expected[:200])
    return Dialogue(
        "second turn",
        [*messages, user_message(text_skills.style_request(words, question, " ")), answer],
        tools or unneeded_tools,
    )


def make_first_turn(words: WordSampler, size: float) -> Dialogue:
    """Returns the first turn of `make_second_turn` as a dialogue with its answer to learn."""
    dialogue = make_second_turn(words, size)
    index = next(
        (
            number
            for number, message in enumerate(dialogue.messages)
            if message["role"] == "assistant" and message.get("content")
        ),
        1,
    )
    answer = dict(dialogue.messages[index])
    answer["reasoning_content"] = answer.get("reasoning_content") or "Note it."
    return Dialogue("first turn", [*dialogue.messages[:index], answer], dialogue.tools)
