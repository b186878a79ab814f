"""Skills that need no tool: greet, repeat, add, and decline what is none of these. One function per skill."""

from __future__ import annotations

from antiphon.engine.embedded import phrases, tool_definitions, wordings
from antiphon.engine.embedded.chat import Dialogue, Tool, answer_message, user_message
from antiphon.engine.embedded.fixed_texts import BEYOND, GREETING, IDENTITY
from antiphon.engine.embedded.word_sampler import VERBS, WordSampler


def pick_wording(words: WordSampler, forms: list[str]) -> str:
    """One of the wordings, with or without a capital."""
    form = words.random.choice(forms)
    return form[0].upper() + form[1:] if words.flip_coin(0.6) else form


def style_request(words: WordSampler, text: str, marks: str = "?.! ") -> str:
    """The same request as people type it: with or without a capital, closed by one of the marks."""
    text = text[0].upper() + text[1:] if words.flip_coin(0.6) else text
    return (text + words.random.choice(marks)).strip()


def draw_unneeded_tools(words: WordSampler, size: float) -> list[Tool]:
    """Tools that the dialogue does not need: none in half of the cases, about ten at most."""
    if words.flip_coin(0.5):
        return []
    offered = tool_definitions.make_distractors(words, words.random.randint(1, 1 + round(9 * size)), set())
    if words.flip_coin(0.4):
        offered.insert(0, tool_definitions.make_runner(words)[0])
    return offered


def make_greeting(words: WordSampler, size: float) -> Dialogue:
    """Greet, or say what one is."""
    if words.flip_coin(0.5):
        text = words.random.choice(wordings.HELLOS) + (", " + words.pick_name() if words.flip_coin(0.15) else "")
        text = f"say {words.random.choice(wordings.HELLOS[:3])}" if words.flip_coin(0.15) else text
        said = answer_message("A greeting.", GREETING)
    else:
        text = words.random.choice(wordings.WHO)
        said = answer_message("They ask about me.", IDENTITY)
    return Dialogue("greet", [user_message(style_request(words, text)), said], draw_unneeded_tools(words, size))


def make_repetition(words: WordSampler, size: float) -> Dialogue:
    """Repeat a phrase, byte for byte."""
    text = phrases.make_phrase(words, 1, round(3 + 7 * size))
    asked = pick_wording(words, wordings.REPEATS).replace("{}", text)
    return Dialogue(
        "repeat", [user_message(asked), answer_message("Repeat it.", text)], draw_unneeded_tools(words, size)
    )


def column_addition(a: int, b: int) -> str:
    """A sum done column by column from the right; every step is digit + digit + carry = two digits."""
    width = max(len(str(a)), len(str(b)))
    top, bottom, carry, steps = str(a).zfill(width), str(b).zfill(width), 0, []
    for up, down in zip(reversed(top), reversed(bottom), strict=True):
        column = int(up) + int(down) + carry
        steps.append(f"{up}+{down}+{carry}={column:02d}")
        carry = column // 10
    return "\n".join([f"{top}+{bottom}", *steps])


def make_sum(words: WordSampler, size: float) -> Dialogue:
    """Add two small numbers; pairs are split between training and evaluation as words are."""
    while True:
        a, b = (words.random.randrange(10 ** words.random.choice((1, 2, 2, 3))) for _ in range(2))
        if ((31 * a + 17 * b) % 8 == 0) == words.evaluation:
            break
    asked = pick_wording(words, wordings.SUMS).format(a, b)
    return Dialogue(
        "sum",
        [user_message(asked), answer_message(column_addition(a, b), f"{a} + {b} = {a + b}.")],
        draw_unneeded_tools(words, size),
    )


def make_refusal(words: WordSampler, size: float) -> Dialogue:
    """Anything else gets one fixed sentence."""
    if words.flip_coin(0.5):
        asked = style_request(words, phrases.fill_wording(words, words.random.choice(wordings.REQUESTS)), ". ")
        return Dialogue(
            "other", [user_message(asked), answer_message("Something else.", BEYOND)], draw_unneeded_tools(words, size)
        )
    text = words.random.choice(wordings.OTHERS)
    while "{}" in text:
        text = text.replace("{}", words.pick_word(VERBS) if words.flip_coin(0.15) else words.any_word(), 1)
    return Dialogue(
        "other",
        [user_message(style_request(words, text)), answer_message("Something else.", BEYOND)],
        draw_unneeded_tools(words, size),
    )
