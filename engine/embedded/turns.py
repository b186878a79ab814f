"""The skill that needs memory: a first turn, then a question about it. One function per kind of first turn."""

from __future__ import annotations

from collections.abc import Callable

from antiphon.engine.embedded import phrases, talking, wordings
from antiphon.engine.embedded.calling import reported
from antiphon.engine.embedded.fixed import MET, NAMED, NOTED, REMEMBERED, TOLD
from antiphon.engine.embedded.messages import Dialogue, Message, Tool, answer, user
from antiphon.engine.embedded.words import Words

Memory = tuple[list[Message], str, str, list[Tool]]
"""The first turn, the question about it, its answer, and the tools offered where the turn needs its own."""


def name(words: Words, _size: float) -> Memory:
    """The user's name."""
    who = words.proper()
    first = [user(words.random.choice(wordings.MY_NAME).format(who)), answer("", MET.format(who))]
    return first, words.random.choice(wordings.ASK_NAME), NAMED.format(who), []


def word(words: Words, _size: float) -> Memory:
    """A word to remember."""
    choose = words.random.choice
    made = choose((words.any_word, words.scramble, words.number, lambda: f"{words.any_word()}-{words.number()}"))()
    first = [user(choose(wordings.REMEMBER).format(made)), answer("", REMEMBERED)]
    return first, choose(wordings.ASK_WORD), made, []


def fact(words: Words, _size: float) -> Memory:
    """Something about the user."""
    noun, about = words.noun(), phrases.value(words)
    first = [user(f"my {noun} is {about}"), answer("", NOTED.format(noun, about))]
    return first, f"what is my {noun}?", TOLD.format(noun, about), []


def output(words: Words, size: float) -> Memory:
    """A tool's output."""
    first, offered = reported(words, size, frame=words.maybe(0.5))
    return first, words.random.choice(wordings.ASK_OUTPUT), first[-1]["content"], offered


def result(words: Words, size: float) -> Memory:
    """A sum."""
    first = talking.total(words, size).messages
    return first, words.random.choice(wordings.ASK_SUM), first[-1]["content"], []


def phrase(words: Words, size: float) -> Memory:
    """A repeated phrase."""
    first = talking.repeat(words, size).messages
    return first, words.random.choice(wordings.AGAIN), first[-1]["content"], []


KINDS: tuple[Callable[[Words, float], Memory], ...] = (name, word, fact, output, result, phrase)


def second_turn(words: Words, size: float) -> Dialogue:
    """Answer a question about the turn before."""
    kind = words.random.choice(KINDS)
    around = talking.unneeded(words, size)
    first, asked, said, offered = kind(words, size)
    # The template shows so much of an earlier answer.
    told = answer("From the turn before.", said[:200])
    return Dialogue("second turn", [*first, user(talking.spoken(words, asked, " ")), told], offered or around)


def first_turn(words: Words, size: float) -> Dialogue:
    """The first turn of `second_turn`, learned as an answer of its own."""
    whole = second_turn(words, size)
    turn = next((n for n, m in enumerate(whole.messages) if m["role"] == "assistant" and m.get("content")), 1)
    said = dict(whole.messages[turn])
    said["reasoning_content"] = said.get("reasoning_content") or "Note it."
    return Dialogue("first turn", [*whole.messages[:turn], said], whole.tools)
