"""The skill that needs memory: a first turn, then a question about it. One function per kind of first turn."""

from __future__ import annotations

from collections.abc import Callable

from antiphon.engine.embedded import phrases, text_skills, wordings
from antiphon.engine.embedded.chat import Dialogue, Message, Tool, answer_message, user_message
from antiphon.engine.embedded.fixed_texts import MET, NAMED, NOTED, REMEMBERED, TOLD
from antiphon.engine.embedded.tool_skills import report_messages
from antiphon.engine.embedded.word_sampler import WordSampler

RememberedTurn = tuple[list[Message], str, str, list[Tool]]
"""The first turn, the question about it, its answer, and the tools offered where the turn needs its own."""


def recall_name(words: WordSampler, _size: float) -> RememberedTurn:
    """The user's name."""
    who = words.pick_name()
    first = [user_message(words.random.choice(wordings.MY_NAME).format(who)), answer_message("", MET.format(who))]
    return first, words.random.choice(wordings.ASK_NAME), NAMED.format(who), []


def recall_word(words: WordSampler, _size: float) -> RememberedTurn:
    """A word to remember."""
    choose = words.random.choice
    made = choose(
        (
            words.any_word,
            words.random_characters,
            words.make_number,
            lambda: f"{words.any_word()}-{words.make_number()}",
        )
    )()
    first = [user_message(choose(wordings.REMEMBER).format(made)), answer_message("", REMEMBERED)]
    return first, choose(wordings.ASK_WORD), made, []


def recall_fact(words: WordSampler, _size: float) -> RememberedTurn:
    """Something about the user."""
    noun, about = words.pick_noun(), phrases.make_value(words)
    first = [user_message(f"my {noun} is {about}"), answer_message("", NOTED.format(noun, about))]
    return first, f"what is my {noun}?", TOLD.format(noun, about), []


def recall_output(words: WordSampler, size: float) -> RememberedTurn:
    """A tool's output."""
    first, offered = report_messages(words, size, frame=words.flip_coin(0.5))
    return first, words.random.choice(wordings.ASK_OUTPUT), first[-1]["content"], offered


def recall_sum(words: WordSampler, size: float) -> RememberedTurn:
    """A sum."""
    first = text_skills.make_sum(words, size).messages
    return first, words.random.choice(wordings.ASK_SUM), first[-1]["content"], []


def recall_phrase(words: WordSampler, size: float) -> RememberedTurn:
    """A repeated phrase."""
    first = text_skills.make_repetition(words, size).messages
    return first, words.random.choice(wordings.AGAIN), first[-1]["content"], []


KINDS: tuple[Callable[[WordSampler, float], RememberedTurn], ...] = (
    recall_name,
    recall_word,
    recall_fact,
    recall_output,
    recall_sum,
    recall_phrase,
)


def make_second_turn(words: WordSampler, size: float) -> Dialogue:
    """Answer a question about the turn before."""
    kind = words.random.choice(KINDS)
    around = text_skills.draw_unneeded_tools(words, size)
    first, asked, said, offered = kind(words, size)
    # The template shows so much of an earlier answer.
    told = answer_message("From the turn before.", said[:200])
    return Dialogue(
        "second turn", [*first, user_message(text_skills.style_request(words, asked, " ")), told], offered or around
    )


def make_first_turn(words: WordSampler, size: float) -> Dialogue:
    """The first turn of `second_turn`, learned as an answer of its own."""
    whole = make_second_turn(words, size)
    turn = next((n for n, m in enumerate(whole.messages) if m["role"] == "assistant" and m.get("content")), 1)
    said = dict(whole.messages[turn])
    said["reasoning_content"] = said.get("reasoning_content") or "Note it."
    return Dialogue("first turn", [*whole.messages[:turn], said], whole.tools)
