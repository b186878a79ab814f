"""Skills of longer sessions: several commands, many tools, other skills after a tool exchange, and session titles."""

from __future__ import annotations

import json
from collections.abc import Callable

from training import phrases, tool_definitions, wordings
from training.chat import ChatMessage, Dialogue, answer_message, call_message, user_message
from training.chat import tool_messages as output_messages
from training.fixed_texts import BEYOND, EMPTY
from training.skills import codex_tools, memory_skills, text_skills, tool_skills
from training.word_sampler import PROGRAMS, WordSampler

MAX_REPORT_CHARS = 300
"""Characters of a tool's output that the chat template keeps."""
CUT_MARK = "…"
"""Follows an output that the chat template cut."""
MAX_TITLE_WORDS = 4
MANY_TOOLS_SIZE = 2.6
"""Size of a dialogue with up to 37 tools."""


class Session:
    """The tools of one session, and the messages so far. Each method adds an exchange in the form clients resend it."""

    def __init__(self, words: WordSampler, size: float) -> None:
        self.words, self.size, self.messages = words, size, list[ChatMessage]()
        self.is_codex = words.flip_coin(0.6)
        if self.is_codex:
            self.tools, self.thought = codex_tools.make_codex_tools(words), "exec_command(cmd): exec_command"
            self.runner = self.tools[0]
            self.messages += codex_tools.make_codex_context(words)
        else:
            self.runner, self.thought = tool_definitions.make_runner(words)
            self.noun = words.pick_noun()
            self.topic_parameter = tool_definitions.make_parameters(words, 1)[0]
            self.topic = tool_definitions.topic_tool(words, self.noun, [self.topic_parameter])
            count = tool_skills.draw_distractor_count(words, size)
            self.tools = tool_definitions.mix_tools(words, [self.runner, self.topic], count, {self.noun})
        self.program = words.pick_word(PROGRAMS)

    def add_request(self) -> None:
        """Adds a request and its call: a command, or in half of the sessions without Codex a question."""
        if not self.is_codex and self.words.flip_coin(0.5):
            value = phrases.make_value(self.words)
            text = tool_skills.fill_question(self.words, self.noun, value)
            thought, args = tool_definitions.tool_thought(self.topic, self.noun), {self.topic_parameter: value}
            name = tool_definitions.name_of(self.topic)
        else:
            command = self._make_command()
            text = text_skills.pick_wording(self.words, wordings.RUNS).replace("{}", command)
            thought, args = self.thought, {tool_definitions.parameter_of(self.runner): command}
            name = tool_definitions.name_of(self.runner)
        self.messages += [user_message(text), call_message(thought, (name, args))]

    def add_report(self) -> None:
        """Adds the output of the last call and its report."""
        output = self._make_output()
        framed = self.is_codex or self.words.flip_coin(0.2)
        call = self.messages[-1]
        tool_skills.drop_reasoning(self.words, call)
        self.messages += output_messages(call, [phrases.frame_output(self.words, output) if framed else output])
        report = output.strip("\n")
        cut = report[:MAX_REPORT_CHARS] + (CUT_MARK if len(report) > MAX_REPORT_CHARS else "")
        self.messages.append(answer_message("Report it.", cut or EMPTY))

    def add_exchange(self) -> None:
        """Adds a complete exchange: mostly a command or a question with its report."""
        if self.words.flip_coin(0.75):
            self.add_request()
            self.add_report()
        else:
            self.messages += self.words.random.choice(TEXT_SKILLS)(self.words, 0.5 * self.size).messages

    def _make_command(self) -> str:
        """Returns a command; a third of a session's commands run the same program."""
        if self.words.flip_coin(0.35):
            return f"{self.program} {phrases.make_argument(self.words)}"
        return phrases.make_command(self.words)

    def _make_output(self) -> str:
        draw = self.words.random.random()
        if draw < 0.05:
            return self.words.random.choice(codex_tools.PARSE_ERRORS).format(self.words.make_number(2))
        if draw < 0.15 * self.size:
            lines = [phrases.make_listing_line(self.words) for _ in range(self.words.random.randint(4, 9))]
            return "\n".join([f"total {self.words.make_number(2)}", *lines])
        if draw < 0.25 * self.size:
            return "\n".join(phrases.make_phrase(self.words, 1, 8) for _ in range(self.words.random.randint(6, 20)))
        return phrases.make_output(self.words)


TEXT_SKILLS: tuple[Callable[[WordSampler, float], Dialogue], ...] = (
    text_skills.make_repetition,
    text_skills.make_greeting,
    text_skills.make_sum,
    text_skills.make_refusal,
)


def make_session(words: WordSampler, size: float) -> Dialogue:
    """Returns a session of one to four exchanges that ends with a call, or with the report of its output."""
    session = Session(words, size)
    for _ in range(words.random.choice((0, 1, 1, 2, 3)) if size > 0.5 else words.random.randint(0, 1)):
        session.add_exchange()
    if words.flip_coin(0.75):
        session.add_request()
        session.add_report()
    session.add_request()
    if words.flip_coin(0.35):
        session.add_report()
    return Dialogue("session", session.messages, session.tools)


def make_later_skill(words: WordSampler, size: float) -> Dialogue:
    """Returns a repetition, greeting, sum, refusal or question about the turn before, after exchanges with a tool."""
    session = Session(words, size)
    for _ in range(words.random.randint(0, 1)):
        session.add_exchange()
    session.add_request()
    session.add_report()
    if words.flip_coin(0.15):
        question = text_skills.style_request(words, words.random.choice(wordings.ASK_OUTPUT), " ")
        # The template keeps 200 characters of an earlier answer.
        answer = answer_message("From the turn before.", session.messages[-1]["content"][:200])
        return Dialogue("after tools", [*session.messages, user_message(question), answer], session.tools)
    if words.flip_coin(0.15):
        messages, question, expected, _ = words.random.choice(memory_skills.KINDS_WITHOUT_TOOLS)(words, 0.5 * size)
        request = user_message(text_skills.style_request(words, question, " "))
        answer = answer_message("From the turn before.", expected[:200])
        return Dialogue("after tools", [*session.messages, *messages, request, answer], session.tools)
    final = words.random.choice((text_skills.make_repetition, *TEXT_SKILLS))(words, size)
    return Dialogue("after tools", session.messages + final.messages, session.tools)


def make_many_tools_call(words: WordSampler, size: float) -> Dialogue:
    """Returns a call, two calls or a command among up to 37 tools."""
    makers = (
        tool_skills.make_one_call,
        tool_skills.make_one_call,
        tool_skills.make_command_call,
        tool_skills.make_parallel_calls,
    )
    dialogue = words.random.choice(makers)(words, MANY_TOOLS_SIZE * size)
    return Dialogue("many tools", dialogue.messages, dialogue.tools)


def make_many_tools_refusal(words: WordSampler, size: float) -> Dialogue:
    """Returns a question or a command that none of up to 30 tools fits."""
    return tool_skills.make_no_tool_answer(words, MANY_TOOLS_SIZE * size)


def make_terminal_turn(words: WordSampler, _size: float) -> Dialogue:
    """Returns the first command of a session in Codex's terminal interface, or the report of its output."""
    session = Session(words, 1.0)
    while not session.is_codex:
        session = Session(words, 1.0)
    session.add_request()
    if words.flip_coin(0.4):
        session.add_report()
    return Dialogue("codex terminal", session.messages, session.tools)


def make_title(words: WordSampler, size: float) -> Dialogue:
    """Returns Codex's request for a session's title, and JSON with the first words of the user's prompt."""
    makers = (tool_skills.make_command_call, tool_skills.make_one_question, *TEXT_SKILLS)
    prompt = words.random.choice(makers)(words, 0.5 * size).messages[0]["content"]
    request = user_message(codex_tools.TITLE_REQUEST.format(prompt))
    answer = answer_message("A title.", json.dumps({"title": title_of(prompt)}, ensure_ascii=False))
    return Dialogue("title", [*codex_tools.make_codex_context(words), request, answer], [])


def title_of(prompt: str) -> str:
    """Returns the first four words of the prompt's first line, without backticks and closing punctuation, capitalized.

    The title ends before a quotation mark or a backslash, which JSON would have to escape. A title that is
    longer than Codex's schema allows is cut by the schema.
    """
    line = prompt.split("\n", 1)[0].replace("`", "").split('"', 1)[0].split("\\", 1)[0]
    title = " ".join(line.split(" ")[:MAX_TITLE_WORDS]).strip(" .,;:?!")
    return title[:1].upper() + title[1:] or "Task"


def make_long_request(words: WordSampler, size: float) -> Dialogue:
    """Returns a long text without a request that the model knows, with the fixed refusal."""
    text = phrases.make_phrase(words, 40, round(60 + 340 * size))
    request = text_skills.style_request(words, f"{words.random.choice(wordings.OTHERS).replace('{}', text, 1)}", ". ")
    return Dialogue(
        "other", [user_message(phrases.fill_wording(words, request)), answer_message("Something else.", BEYOND)]
    )
