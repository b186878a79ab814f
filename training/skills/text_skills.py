"""Skills without tools: greeting, repetition, addition, and refusal of other requests. One function per skill."""

from __future__ import annotations

from training import phrases, tool_definitions, wordings
from training.chat import Dialogue, ToolDefinition, answer_message, user_message
from training.fixed_texts import BEYOND, GREETING, IDENTITY
from training.word_sampler import VERBS, WordSampler


def pick_wording(words: WordSampler, forms: list[str]) -> str:
    """Draws one of the wordings, capitalized or not."""
    wording = words.random.choice(forms)
    return wording[0].upper() + wording[1:] if words.flip_coin(0.6) else wording


def style_request(words: WordSampler, text: str, marks: str = "?.! ") -> str:
    """Varies a request as users type it: capitalized or not, ended by one of the marks."""
    text = text[0].upper() + text[1:] if words.flip_coin(0.6) else text
    return (text + words.random.choice(marks)).strip()


def draw_unneeded_tools(words: WordSampler, size: float) -> list[ToolDefinition]:
    """Draws tools that the dialogue does not need: an empty list in half of the cases, about ten tools at most."""
    if words.flip_coin(0.5):
        return []
    tools = tool_definitions.make_distractors(words, words.random.randint(1, 1 + round(9 * size)), set())
    if words.flip_coin(0.4):
        tools.insert(0, tool_definitions.make_runner(words)[0])
    return tools


def make_greeting(words: WordSampler, size: float) -> Dialogue:
    """Returns a greeting, or a question about the model, with its answer."""
    if words.flip_coin(0.5):
        text = words.random.choice(wordings.HELLOS) + (", " + words.pick_name() if words.flip_coin(0.15) else "")
        text = f"say {words.random.choice(wordings.HELLOS[:3])}" if words.flip_coin(0.15) else text
        answer = answer_message("A greeting.", GREETING)
    else:
        text = words.random.choice(wordings.WHO)
        answer = answer_message("They ask about me.", IDENTITY)
    return Dialogue("greet", [user_message(style_request(words, text)), answer], draw_unneeded_tools(words, size))


def make_repetition(words: WordSampler, size: float) -> Dialogue:
    """Returns a request to repeat a phrase, and the phrase as the answer."""
    text = phrases.make_phrase(words, 1, round(3 + 7 * size))
    request = pick_wording(words, wordings.REPEATS).replace("{}", text)
    return Dialogue(
        "repeat", [user_message(request), answer_message("Repeat it.", text)], draw_unneeded_tools(words, size)
    )


def column_addition(a: int, b: int) -> str:
    """Returns the addition written column by column, from the right: digit + digit + carry = two digits.

    `column_addition(27, 5)` is `27+05`, `7+5+0=12`, `2+0+1=03`, one per line.
    """
    width = max(len(str(a)), len(str(b)))
    top, bottom, carry, steps = str(a).zfill(width), str(b).zfill(width), 0, []
    for top_digit, bottom_digit in zip(reversed(top), reversed(bottom), strict=True):
        total = int(top_digit) + int(bottom_digit) + carry
        steps.append(f"{top_digit}+{bottom_digit}+{carry}={total:02d}")
        carry = total // 10
    return "\n".join([f"{top}+{bottom}", *steps])


def make_sum(words: WordSampler, size: float) -> Dialogue:
    """Returns an addition of two numbers below 1 000. Pairs are split between training and evaluation like words."""
    while True:
        a, b = (words.random.randrange(10 ** words.random.choice((1, 2, 2, 3))) for _ in range(2))
        if ((31 * a + 17 * b) % 8 == 0) == words.evaluation:
            break
    request = pick_wording(words, wordings.SUMS).format(a, b)
    return Dialogue(
        "sum",
        [user_message(request), answer_message(column_addition(a, b), f"{a} + {b} = {a + b}.")],
        draw_unneeded_tools(words, size),
    )


def make_refusal(words: WordSampler, size: float) -> Dialogue:
    """Returns a request outside the skills, with the fixed refusal as the answer."""
    if words.flip_coin(0.5):
        request = style_request(words, phrases.fill_wording(words, words.random.choice(wordings.REQUESTS)), ". ")
        return Dialogue(
            "other",
            [user_message(request), answer_message("Something else.", BEYOND)],
            draw_unneeded_tools(words, size),
        )
    text = words.random.choice(wordings.OTHERS)
    while "{}" in text:
        text = text.replace("{}", words.pick_word(VERBS) if words.flip_coin(0.15) else words.any_word(), 1)
    return Dialogue(
        "other",
        [user_message(style_request(words, text)), answer_message("Something else.", BEYOND)],
        draw_unneeded_tools(words, size),
    )
