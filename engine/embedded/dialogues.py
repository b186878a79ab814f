"""The generator of dialogues: which skills there are, how often each is taught, and what clients put around them.

Everything random comes from one `Words`, so a seed gives the same dialogues for ever. Knows no token and no model.
"""

from __future__ import annotations

from collections.abc import Callable

from antiphon.engine.embedded import calling, phrases, talking, turns, wordings
from antiphon.engine.embedded.fixed import EMPTY
from antiphon.engine.embedded.messages import Dialogue, Message, answer, results, user
from antiphon.engine.embedded.words import Words

Maker = Callable[[Words, float], Dialogue]

SKILLS: dict[str, Maker] = {
    "greet": talking.greet,
    "repeat": talking.repeat,
    "sum": talking.total,
    "call": calling.one_call,
    "command": calling.command,
    "parallel": calling.parallel,
    "report": calling.report,
    "framed report": calling.framed_report,
    "second turn": turns.second_turn,
    "no tool": calling.no_tool,
    "other": talking.other,
    "codex": calling.codex,
}
"""What is evaluated."""

MIXTURE: dict[Maker, float] = {
    talking.greet: 3,
    talking.repeat: 9,
    talking.total: 15,
    calling.one_call: 20,
    calling.command: 12,
    calling.parallel: 16,
    calling.report: 8,
    calling.framed_report: 4,
    turns.second_turn: 7,
    turns.first_turn: 3,
    calling.no_tool: 10,
    talking.other: 6,
    calling.codex: 3,
}
"""What is taught, and how often: the hard skills more often than the easy ones."""

CHOOSING: dict[Maker, float] = {
    **dict.fromkeys(MIXTURE, 4),
    calling.one_call: 28,
    calling.parallel: 22,
    calling.no_tool: 16,
    calling.command: 8,
}
"""What is taught when the rest is known: above all, to find the tool by a word that was never seen before."""

TELLING_APART: dict[Maker, float] = {
    **dict.fromkeys(MIXTURE, 3),
    calling.one_call: 30,
    calling.parallel: 26,
    calling.no_tool: 12,
    calling.command: 6,
}
"""What is taught then: to tell tools apart that share their verbs and parameters, none of them seen before."""

CROWDED: dict[Maker, float] = {
    **dict.fromkeys(MIXTURE, 3),
    talking.total: 8,
    calling.one_question: 22,
    calling.two_answers: 30,
    calling.one_call: 8,
    calling.parallel: 6,
    calling.no_tool: 12,
}
"""What is taught last: the same among many tools, and to find two of them at once."""

COURSES = {"everything": MIXTURE, "choosing": CHOOSING, "telling apart": TELLING_APART, "crowded": CROWDED}
"""In the order in which they are taught."""


def earlier(words: Words) -> list[Message]:
    """A whole exchange before the one that counts."""
    maker = words.random.choice((talking.greet, talking.repeat, talking.total, talking.other, calling.one_call))
    messages = maker(words, 0.3).messages
    if not messages[-1].get("tool_calls"):
        return messages
    out = phrases.output(words)
    return [*messages, *results(messages[-1], [out]), answer("", out or EMPTY)]


def context(words: Words) -> Message:
    """What agents tell about where they run, in the user's name."""
    if words.maybe(0.5):
        return user(phrases.filled(words, words.random.choice(wordings.NOTES)))
    if words.maybe(0.5):
        cwd = f"<cwd>{phrases.path(words)}</cwd>"
        return user(f"<environment_context>\n  {cwd}\n  <shell>bash</shell>\n</environment_context>")
    return user(f"<{words.any_word()}_context>\n{phrases.phrase(words, 4, 16)}")


def system(words: Words) -> Message:
    """A system text: random words, or sentences that hold words of tools and commands."""
    long = words.random.choice((3, 6, 14))
    text = "You are a helpful assistant." if words.maybe(0.3) else phrases.phrase(words, 1, long)
    if words.maybe(0.6):
        text = phrases.filled(words, " ".join(words.random.sample(wordings.SYSTEMS, 2)))
    return {"role": words.random.choice(("system", "developer")), "content": text}


def surround(words: Words, dialogue: Dialogue) -> Dialogue:
    """Put what clients put around a dialogue: a system text, context, an earlier exchange; and, rarely, no thinking."""
    before: list[Message] = []
    if words.maybe(0.5):
        before.append(system(words))
    if words.maybe(0.12):
        before += [context(words) for _ in range(words.random.randint(1, 2))]
    if words.maybe(0.1) and dialogue.skill != "second turn":
        before += earlier(words)
    # Sums need their reasoning, so they are always taught with it.
    thinking = dialogue.skill == "sum" or not words.maybe(0.08)
    return Dialogue(dialogue.skill, before + dialogue.messages, dialogue.tools, thinking)


def training(seed: int | str, size: float = 1.0, course: str = "everything") -> Dialogue:
    """One dialogue of a course to learn from; `size` from 0 to 1 grows phrases, tool lists and surroundings."""
    sharing, crowded = course in ("telling apart", "crowded"), course == "crowded"
    words = Words(seed, strange=course != "everything", sharing=sharing, crowded=crowded)
    mixture = COURSES[course]
    maker = words.random.choices(list(mixture), list(mixture.values()))[0]
    dialogue = maker(words, size)
    return surround(words, dialogue) if words.maybe(0.7 * size) else dialogue


def evaluation(skill: str, number: int) -> Dialogue:
    """The numbered evaluation dialogue of a skill: every word from the held-out side, always thinking."""
    words = Words(f"evaluation {skill} {number}", evaluation=True)
    dialogue = surround(words, SKILLS[skill](words, 1.0))
    return Dialogue(dialogue.skill, dialogue.messages, dialogue.tools)
