"""The dialogue generator: the skills, their share of the training, and the context that clients add to a request.

All randomness comes from one `WordSampler`, so a seed always gives the same dialogues. Tokens and models are unknown
here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from training import phrases, wordings
from training.chat import ChatMessage, Dialogue, answer_message, tool_messages, user_message
from training.fixed_texts import EMPTY
from training.skills import (
    custom_skills,
    form_skills,
    memory_skills,
    patch_skills,
    question_skills,
    session_skills,
    shell_skills,
    text_skills,
    tool_skills,
)
from training.word_sampler import WordSampler

Maker = Callable[[WordSampler, float], Dialogue]

SKILLS: dict[str, Maker] = {
    "greet": text_skills.make_greeting,
    "repeat": text_skills.make_repetition,
    "sum": text_skills.make_sum,
    "call": tool_skills.make_one_call,
    "command": tool_skills.make_command_call,
    "parallel": tool_skills.make_parallel_calls,
    "report": tool_skills.make_report,
    "framed report": tool_skills.make_framed_report,
    "second turn": memory_skills.make_second_turn,
    "no tool": tool_skills.make_no_tool_answer,
    "other": text_skills.make_refusal,
    "codex": tool_skills.make_codex_turn,
    "codex terminal": session_skills.make_terminal_turn,
    "session": session_skills.make_session,
    "after tools": session_skills.make_later_skill,
    "many tools": session_skills.make_many_tools_call,
    "title": session_skills.make_title,
    "shell": shell_skills.make_shell_turn,
    "built-in shell": patch_skills.make_commands_turn,
    "apply patch": patch_skills.make_patch_turn,
    "custom": custom_skills.make_custom_call,
    "lookup": question_skills.make_lookup_call,
    "json report": question_skills.make_json_report,
    "no picture": question_skills.make_picture_refusal,
}
"""Evaluated skills, by name."""

MIXTURE: dict[Maker, float] = {
    text_skills.make_greeting: 3,
    text_skills.make_repetition: 9,
    text_skills.make_sum: 15,
    tool_skills.make_one_call: 20,
    tool_skills.make_command_call: 12,
    tool_skills.make_parallel_calls: 16,
    tool_skills.make_report: 8,
    tool_skills.make_framed_report: 4,
    memory_skills.make_second_turn: 7,
    memory_skills.make_first_turn: 3,
    tool_skills.make_no_tool_answer: 10,
    text_skills.make_refusal: 6,
    tool_skills.make_codex_turn: 3,
}
"""Sampling weights of the first course. Hard skills are drawn more often than easy ones."""

CHOOSING: dict[Maker, float] = {
    **dict.fromkeys(MIXTURE, 4),
    tool_skills.make_one_call: 28,
    tool_skills.make_parallel_calls: 22,
    tool_skills.make_no_tool_answer: 16,
    tool_skills.make_command_call: 8,
}
"""Sampling weights of the second course, which mainly trains finding a tool by a word never seen before."""

TELLING_APART: dict[Maker, float] = {
    **dict.fromkeys(MIXTURE, 3),
    tool_skills.make_one_call: 30,
    tool_skills.make_parallel_calls: 26,
    tool_skills.make_no_tool_answer: 12,
    tool_skills.make_command_call: 6,
}
"""Sampling weights of the third course: tools that share verbs and parameters, none of them seen before."""

CROWDED: dict[Maker, float] = {
    **dict.fromkeys(MIXTURE, 3),
    text_skills.make_sum: 8,
    tool_skills.make_one_question: 22,
    tool_skills.make_parallel_questions: 30,
    tool_skills.make_one_call: 8,
    tool_skills.make_parallel_calls: 6,
    tool_skills.make_no_tool_answer: 12,
}
"""Sampling weights of the fourth course: the same among many tools, and two tools for one request."""

SESSIONS: dict[Maker, float] = {
    **dict.fromkeys(MIXTURE, 2),
    text_skills.make_sum: 6,
    tool_skills.make_one_question: 6,
    tool_skills.make_parallel_questions: 6,
    tool_skills.make_one_call: 4,
    session_skills.make_session: 32,
    session_skills.make_later_skill: 18,
    session_skills.make_terminal_turn: 8,
    session_skills.make_many_tools_call: 16,
    session_skills.make_many_tools_refusal: 3,
    session_skills.make_title: 4,
    session_skills.make_long_request: 2,
}
"""Sampling weights of the fifth course: several commands in a session, other skills after them, and thirty tools."""

REFINEMENT: dict[Maker, float] = {
    **dict.fromkeys(MIXTURE, 2),
    text_skills.make_sum: 5,
    tool_skills.make_one_question: 14,
    tool_skills.make_parallel_questions: 14,
    tool_skills.make_one_call: 8,
    tool_skills.make_parallel_calls: 8,
    tool_skills.make_no_tool_answer: 8,
    session_skills.make_session: 14,
    session_skills.make_later_skill: 6,
    session_skills.make_terminal_turn: 4,
    session_skills.make_many_tools_call: 22,
    session_skills.make_many_tools_refusal: 2,
    session_skills.make_title: 6,
}
"""Sampling weights of the sixth course: all of it, above all tools that are hard to tell apart among many."""

POLISH: dict[Maker, float] = {
    **REFINEMENT,
    text_skills.make_sum: 8,
    session_skills.make_many_tools_call: 28,
    session_skills.make_title: 12,
}
"""Sampling weights of the seventh course: the sixth's, with more of the skills in which errors remained."""

SHELL: dict[Maker, float] = {
    **POLISH,
    shell_skills.make_shell_turn: 80,
    shell_skills.make_shell_refusal: 4,
}
"""Sampling weights of the eighth course: the seventh's, and as often the first requests of coding agents' users."""

PATCH: dict[Maker, float] = {
    **POLISH,
    text_skills.make_refusal: 16,
    tool_skills.make_parallel_calls: 16,
    session_skills.make_later_skill: 10,
    shell_skills.make_shell_turn: 24,
    shell_skills.make_shell_refusal: 3,
    patch_skills.make_patch_turn: 70,
    patch_skills.make_commands_turn: 26,
    patch_skills.make_file_refusal: 6,
    patch_skills.make_other_skill: 8,
}
"""Sampling weights of the ninth course: the built-in tools `shell` and `apply_patch`, and as often all before."""

QUESTIONS: dict[Maker, float] = {
    **PATCH,
    text_skills.make_repetition: 8,
    text_skills.make_sum: 12,
    tool_skills.make_one_call: 18,
    tool_skills.make_parallel_calls: 24,
    tool_skills.make_report: 8,
    question_skills.make_lookup_call: 45,
    question_skills.make_lookup_refusal: 10,
    question_skills.make_json_report: 40,
    question_skills.make_picture_refusal: 16,
    form_skills.make_form: 70,
}
"""Sampling weights of the tenth course: what newcomers ask first, and twice as often all before."""

FIRST_QUESTIONS: dict[Maker, float] = {
    **{maker: weight for maker, weight in QUESTIONS.items() if maker is not form_skills.make_form},
    tool_skills.make_one_call: 40,
    question_skills.make_picture_refusal: 32,
}
"""Sampling weights of the tenth course's end: the same without forms, and more of the skills with errors left."""

CUSTOM: dict[Maker, float] = {
    **FIRST_QUESTIONS,
    text_skills.make_refusal: 60,
    tool_skills.make_one_call: 55,
    tool_skills.make_parallel_calls: 32,
    session_skills.make_many_tools_call: 40,
    custom_skills.make_custom_call: 60,
}
"""Sampling weights of the eleventh course: custom tools, and nine times as often all before."""

CUSTOM_END: dict[Maker, float] = {**CUSTOM, question_skills.make_lookup_call: 110}
"""Sampling weights of the eleventh course's end: the same, with more of the skill that lost most."""

COURSES = {
    "everything": MIXTURE,
    "choosing": CHOOSING,
    "telling apart": TELLING_APART,
    "crowded": CROWDED,
    "sessions": SESSIONS,
    "refinement": REFINEMENT,
    "polish": POLISH,
    "shell": SHELL,
    "patch": PATCH,
    "questions": QUESTIONS,
    "first questions": FIRST_QUESTIONS,
    "custom": CUSTOM,
    "custom end": CUSTOM_END,
}
"""Sampling weights by course, in training order."""


def earlier_exchange(words: WordSampler) -> list[ChatMessage]:
    """Returns a complete earlier exchange, to precede the one that is learned."""
    make_dialogue = words.random.choice(
        (
            text_skills.make_greeting,
            text_skills.make_repetition,
            text_skills.make_sum,
            text_skills.make_refusal,
            tool_skills.make_one_call,
        )
    )
    messages = make_dialogue(words, 0.3).messages
    if not messages[-1].get("tool_calls"):
        return messages
    output = phrases.make_output(words)
    return [*messages, *tool_messages(messages[-1], [output]), answer_message("", output or EMPTY)]


def context_message(words: WordSampler) -> ChatMessage:
    """Returns a user message with the environment context that coding agents send."""
    if words.flip_coin(0.5):
        return user_message(phrases.fill_wording(words, words.random.choice(wordings.NOTES)))
    if words.flip_coin(0.5):
        cwd = f"<cwd>{phrases.make_path(words)}</cwd>"
        return user_message(f"<environment_context>\n  {cwd}\n  <shell>bash</shell>\n</environment_context>")
    return user_message(f"<{words.any_word()}_context>\n{phrases.make_phrase(words, 4, 16)}")


def system_message(words: WordSampler) -> ChatMessage:
    """Returns a system or developer message: a default, random words, or sentences about tools and commands."""
    max_terms = words.random.choice((3, 6, 14))
    text = "You are a helpful assistant." if words.flip_coin(0.3) else phrases.make_phrase(words, 1, max_terms)
    if words.flip_coin(0.6):
        text = phrases.fill_wording(words, " ".join(words.random.sample(wordings.SYSTEMS, 2)))
    return {"role": words.random.choice(("system", "developer")), "content": text}


def add_surroundings(words: WordSampler, dialogue: Dialogue) -> Dialogue:
    """Adds what clients send with a request: a system text, context, an earlier exchange. Rarely disables thinking."""
    context: list[ChatMessage] = []
    if words.flip_coin(0.5):
        context.append(system_message(words))
    if words.flip_coin(0.12):
        context += [context_message(words) for _ in range(words.random.randint(1, 2))]
    if words.flip_coin(0.1) and dialogue.skill != "second turn":
        context += earlier_exchange(words)
    # Sums need the column addition in their reasoning, so they always have it.
    thinking = dialogue.skill == "sum" or not words.flip_coin(0.08)
    return replace(dialogue, messages=context + dialogue.messages, thinking=thinking)


def training_dialogue(seed: int | str, size: float = 1.0, course: str = "everything") -> Dialogue:
    """Returns a training dialogue of a course. `size`, from 0 to 1, scales phrases, tool lists and added context."""
    crowded = course in (
        "crowded",
        "sessions",
        "refinement",
        "polish",
        "shell",
        "patch",
        "questions",
        "first questions",
        "custom",
        "custom end",
    )
    sharing = crowded or course == "telling apart"
    words = WordSampler(seed, strange=course != "everything", sharing=sharing, crowded=crowded)
    mixture = COURSES[course]
    make_dialogue = words.random.choices(list(mixture), list(mixture.values()))[0]
    dialogue = make_dialogue(words, size)
    return add_surroundings(words, dialogue) if words.flip_coin(0.7 * size) else dialogue


def evaluation_dialogue(skill: str, number: int) -> Dialogue:
    """Returns the numbered evaluation dialogue of a skill: words of the held-out side only, always with thinking."""
    words = WordSampler(f"evaluation {skill} {number}", evaluation=True)
    dialogue = add_surroundings(words, SKILLS[skill](words, 1.0))
    return replace(dialogue, thinking=True)
