"""The skill of coding agents' first requests: commands with the shell's punctuation, and requests that imply one."""

from __future__ import annotations

from training import phrases, shell_commands, tool_definitions, wordings
from training.chat import (
    ChatMessage,
    Dialogue,
    ToolDefinition,
    answer_message,
    call_message,
    tool_messages,
    user_message,
)
from training.fixed_texts import EMPTY, NO_TOOL
from training.skills import claude_code_tools, codex_tools, text_skills, tool_skills
from training.word_sampler import WordSampler

QUOTED_REQUESTS = [
    *wordings.RUNS,
    "`{}`",
    "please run the following command: `{}`",
    "run the following: `{}`",
    "use the Bash tool to run `{}`",
    "use Bash: `{}`",
    "run `{}` for me",
    "now run `{}`",
    "first run `{}`",
]
"""Requests to run a command, most with the command in backticks."""
PLAIN_REQUESTS = [
    *["run {}"] * 4,
    *["please run {}"] * 3,
    "execute {}",
    "please execute {}",
    "please execute: {}",
    "please run: {}",
    "run: {}",
    "run the command {}",
    "run the command: {}",
    "run this command: {}",
    "now run {}",
    "first run {}",
]
"""Requests whose command is not quoted; it is the rest of the text."""


def make_command_request(words: WordSampler) -> tuple[str, str]:
    """Returns a request as users of coding agents type it, and its command."""
    command = shell_commands.make_shell_command(words)
    if words.flip_coin(0.7):
        return text_skills.pick_wording(words, QUOTED_REQUESTS).replace("{}", command), command
    text = text_skills.pick_wording(words, PLAIN_REQUESTS).replace("{}", command)
    return text + ("." if command.isalpha() and words.flip_coin(0.2) else ""), command


def make_agent(words: WordSampler, size: float) -> tuple[list[ChatMessage], list[ToolDefinition], ToolDefinition, str]:
    """Returns an agent's first messages, its tools, the tool that runs commands and the reasoning for its call."""
    draw = words.random.random()
    if draw < 0.4:
        tools, runner = claude_code_tools.make_claude_code_tools(words)
        return claude_code_tools.make_claude_code_context(words), tools, runner, tool_definitions.tool_line(runner)
    if draw < 0.8:
        tools = codex_tools.make_codex_tools(words)
        return codex_tools.make_codex_context(words), tools, tools[0], tool_definitions.tool_line(tools[0])
    runner, thought = tool_definitions.make_runner(words)
    count = tool_skills.draw_distractor_count(words, size)
    return [], tool_definitions.mix_tools(words, [runner], count, set()), runner, thought


def make_shell_turn(words: WordSampler, size: float) -> Dialogue:
    """Returns a turn of an agent: the call of its tool for commands, sometimes with the report of the output."""
    messages, tools, runner, thought = make_agent(words, size)
    has_earlier, has_report = words.flip_coin(0.12), words.flip_coin(0.15)
    if has_earlier:
        messages = [*messages, *make_exchange(words, runner, thought)]
    exchange = make_exchange(words, runner, thought)
    return Dialogue("shell", messages + (exchange if has_report else exchange[:2]), tools)


def make_exchange(words: WordSampler, runner: ToolDefinition, thought: str) -> list[ChatMessage]:
    """Returns a request, its call, the output and the report.

    The reasoning names a command that the request implies, so that a command in a request is only ever copied.
    """
    if words.flip_coin(0.3):
        text, command = shell_commands.make_implied_command(words)
        text, thought = text_skills.style_request(words, text, "?. "), f"{thought}\n{command}"
    else:
        text, command = make_command_request(words)
    call = call_message(thought, (tool_definitions.name_of(runner), {tool_definitions.parameter_of(runner): command}))
    output = phrases.make_output(words)[:300]
    report = [*tool_messages(call, [output]), answer_message("Report it.", output or EMPTY)]
    return [user_message(text), call, *report]


def make_shell_refusal(words: WordSampler, size: float) -> Dialogue:
    """Returns an implied command that no tool can run."""
    text, _ = shell_commands.make_implied_command(words)
    tools = tool_definitions.make_distractors(words, words.random.randint(0, 1 + round(8 * size)), set())
    request = user_message(text_skills.style_request(words, text, "?. "))
    return Dialogue("no tool", [request, answer_message("command: none", NO_TOOL)], tools)
