"""Skills that need no tool: greet, repeat, add, and decline what is none of these. One function per skill."""

from __future__ import annotations

from antiphon.engine.embedded import phrases, tools, wordings
from antiphon.engine.embedded.fixed import BEYOND, GREETING, IDENTITY
from antiphon.engine.embedded.messages import Dialogue, Tool, answer, user
from antiphon.engine.embedded.words import VERBS, Words


def worded(words: Words, forms: list[str]) -> str:
    """One of the wordings, with or without a capital."""
    form = words.random.choice(forms)
    return form[0].upper() + form[1:] if words.maybe(0.6) else form


def spoken(words: Words, text: str, marks: str = "?.! ") -> str:
    """The same request as people type it: with or without a capital, closed by one of the marks."""
    text = text[0].upper() + text[1:] if words.maybe(0.6) else text
    return (text + words.random.choice(marks)).strip()


def unneeded(words: Words, size: float) -> list[Tool]:
    """Tools that the dialogue does not need: none in half of the cases, about ten at most."""
    if words.maybe(0.5):
        return []
    offered = tools.distractors(words, words.random.randint(1, 1 + round(9 * size)), set())
    if words.maybe(0.4):
        offered.insert(0, tools.runner(words)[0])
    return offered


def greet(words: Words, size: float) -> Dialogue:
    """Greet, or say what one is."""
    if words.maybe(0.5):
        text = words.random.choice(wordings.HELLOS) + (", " + words.proper() if words.maybe(0.15) else "")
        text = f"say {words.random.choice(wordings.HELLOS[:3])}" if words.maybe(0.15) else text
        said = answer("A greeting.", GREETING)
    else:
        text = words.random.choice(wordings.WHO)
        said = answer("They ask about me.", IDENTITY)
    return Dialogue("greet", [user(spoken(words, text)), said], unneeded(words, size))


def repeat(words: Words, size: float) -> Dialogue:
    """Repeat a phrase, byte for byte."""
    text = phrases.phrase(words, 1, round(3 + 7 * size))
    asked = worded(words, wordings.REPEATS).replace("{}", text)
    return Dialogue("repeat", [user(asked), answer("Repeat it.", text)], unneeded(words, size))


def work(a: int, b: int) -> str:
    """A sum done column by column from the right; every step is digit + digit + carry = two digits."""
    width = max(len(str(a)), len(str(b)))
    top, bottom, carry, steps = str(a).zfill(width), str(b).zfill(width), 0, []
    for up, down in zip(reversed(top), reversed(bottom), strict=True):
        column = int(up) + int(down) + carry
        steps.append(f"{up}+{down}+{carry}={column:02d}")
        carry = column // 10
    return "\n".join([f"{top}+{bottom}", *steps])


def total(words: Words, size: float) -> Dialogue:
    """Add two small numbers; pairs are split between training and evaluation as words are."""
    while True:
        a, b = (words.random.randrange(10 ** words.random.choice((1, 2, 2, 3))) for _ in range(2))
        if ((31 * a + 17 * b) % 8 == 0) == words.evaluation:
            break
    asked = worded(words, wordings.SUMS).format(a, b)
    return Dialogue("sum", [user(asked), answer(work(a, b), f"{a} + {b} = {a + b}.")], unneeded(words, size))


def other(words: Words, size: float) -> Dialogue:
    """Anything else gets one fixed sentence."""
    if words.maybe(0.5):
        asked = spoken(words, phrases.filled(words, words.random.choice(wordings.REQUESTS)), ". ")
        return Dialogue("other", [user(asked), answer("Something else.", BEYOND)], unneeded(words, size))
    text = words.random.choice(wordings.OTHERS)
    while "{}" in text:
        text = text.replace("{}", words.pick(VERBS) if words.maybe(0.15) else words.any_word(), 1)
    return Dialogue("other", [user(spoken(words, text)), answer("Something else.", BEYOND)], unneeded(words, size))
