"""The skills of the built-in tools `shell` and `apply_patch`: calls, and the answers to their outputs.

A call of `shell` has a list of commands. A patch creates, changes or deletes files, and is written as raw text.
"""

from __future__ import annotations

from training import file_requests, phrases, shell_commands, tool_definitions, wordings
from training.chat import (
    ChatMessage,
    Dialogue,
    ToolDefinition,
    answer_message,
    call_message,
    custom_call_message,
    tool_messages,
    user_message,
)
from training.fixed_texts import EMPTY, ERRORS, NO_TOOL
from training.skills import session_skills, shell_skills, text_skills, tool_skills
from training.word_sampler import WordSampler

SHELL = tool_definitions.make_tool("shell", ["commands"], ["timeout_ms:integer", "max_output_length:integer"])
"""The prompt lists only the name of a parameter that is a list."""
PATCH = tool_definitions.make_tool("apply_patch", ["input"])
"""The prompt lists a custom tool like this function."""
TWO_COMMANDS = [
    *wordings.BOTH,
    "run `{}` and then `{}`",
    "run `{}`, then `{}`",
    "first run `{}` and then `{}`",
    "run the commands `{}` and `{}`",
    "please run `{}` and `{}`",
]
"""Requests to run two commands in one call."""
OUTCOMES = ["created <path>", "deleted <path>", "updated <path>", "wrote <path>", "<path> is new", "ok"]
DONE = "Done."
SUCCESS = "completed"


def make_outcome(words: WordSampler, path: str) -> str:
    """Returns the outcome of an operation, as the server writes it."""
    draw = words.random.random()
    if draw < 0.55:
        return SUCCESS
    if draw < 0.75:
        return f"{SUCCESS}: {words.random.choice(OUTCOMES).replace('<path>', path)}"
    if draw < 0.8:
        return "failed"
    if words.flip_coin(0.5):
        return f"failed: {words.random.choice(ERRORS).replace('{}', path)}"
    return f"failed: {phrases.make_phrase(words, 2, 7)}"


def make_patch_exchange(words: WordSampler) -> list[ChatMessage]:
    """Returns a request to change files, the patch, its output and the answer."""
    text, operations = file_requests.make_file_request(words)
    thought = tool_definitions.tool_line(PATCH)
    call = custom_call_message(thought, tool_definitions.name_of(PATCH), file_requests.write_patch(operations))
    outcomes = [make_outcome(words, path) for path, _ in operations]
    output = outcomes[0]
    if len(operations) > 1:
        output = "\n".join(f"{path}: {outcome}" for (path, _), outcome in zip(operations, outcomes, strict=True))
    output = output[: session_skills.MAX_REPORT_CHARS]
    answer = answer_message("It worked.", DONE) if output == SUCCESS else answer_message("Report it.", output)
    return [user_message(text), call, *tool_messages(call, [output]), answer]


def make_command_output(words: WordSampler) -> str:
    """Returns what one command printed, as the server writes it: output, errors and the exit code."""
    lines = [phrases.make_output(words).strip("\n")]
    if words.flip_coin(0.15):
        lines += ["[stderr]", words.random.choice(ERRORS).replace("{}", phrases.make_path(words))]
    if words.flip_coin(0.2):
        lines.append(f"[exit code {words.random.choice((1, 1, 2, 127))}]")
    elif words.flip_coin(0.03):
        lines.append("[timed out]")
    return "\n".join(filter(None, lines))


def make_commands_exchange(words: WordSampler) -> list[ChatMessage]:
    """Returns a request to run one command or two, the call with a list of them, the output and the report."""
    thought, draw = tool_definitions.tool_line(SHELL), words.random.random()
    if draw < 0.25:
        commands = [shell_commands.make_shell_command(words), phrases.make_command(words)]
        text = text_skills.pick_wording(words, TWO_COMMANDS)
        for command in commands:
            text = text.replace("{}", command, 1)
        thought = f"{thought}\nBoth."
    elif draw < 0.45:
        text, command = shell_commands.make_implied_command(words)
        text, commands, thought = text_skills.style_request(words, text, "?. "), [command], f"{thought}\n{command}"
    else:
        text, command = shell_skills.make_command_request(words)
        commands = [command]
    call = call_message(thought, (tool_definitions.name_of(SHELL), {"commands": commands}))
    outputs = [make_command_output(words) for _ in commands]
    if len(commands) > 1:
        outputs = [f"$ {command}\n{output}".strip("\n") for command, output in zip(commands, outputs, strict=True)]
    output = "\n".join(outputs)[: session_skills.MAX_REPORT_CHARS].strip("\n")
    return [user_message(text), call, *tool_messages(call, [output]), answer_message("Report it.", output or EMPTY)]


def draw_builtin_tools(words: WordSampler, size: float, needed: ToolDefinition) -> list[ToolDefinition]:
    """Returns the needed tool: alone, beside the other built-in tool, or among functions."""
    draw = words.random.random()
    tools = [needed] if draw < 0.4 else [SHELL, PATCH]
    if draw > 0.7:
        tools.reverse()
    if words.flip_coin(0.2):
        others = tool_definitions.make_distractors(words, words.random.randint(1, 1 + round(8 * size)), set())
        tools = tools + [tool for tool in others if tool_definitions.name_of(tool) not in ("shell", "apply_patch")]
        words.random.shuffle(tools)
    return tools


def _end_exchange(
    words: WordSampler, exchange: list[ChatMessage], tools: list[ToolDefinition], report: float
) -> list[ChatMessage]:
    """Returns the exchange up to its call, or with the chance `report` all; after an earlier exchange in some cases."""
    earlier: list[ChatMessage] = []
    if words.flip_coin(0.12):
        makers = {"shell": make_commands_exchange, "apply_patch": make_patch_exchange}
        offered = [makers[name] for tool in tools if (name := tool_definitions.name_of(tool)) in makers]
        earlier = words.random.choice(offered)(words)
    if not words.flip_coin(report):
        return [*earlier, *exchange[:2]]
    tool_skills.drop_reasoning(words, exchange[1])
    return [*earlier, *exchange]


def make_patch_turn(words: WordSampler, size: float) -> Dialogue:
    """Returns a turn that changes files: the patch, or the answer to its output."""
    tools = draw_builtin_tools(words, size, PATCH)
    return Dialogue("apply patch", _end_exchange(words, make_patch_exchange(words), tools, 0.25), tools)


def make_commands_turn(words: WordSampler, size: float) -> Dialogue:
    """Returns a turn that runs one command or two by the built-in `shell`, or the report of the output."""
    tools = draw_builtin_tools(words, size, SHELL)
    return Dialogue("built-in shell", _end_exchange(words, make_commands_exchange(words), tools, 0.3), tools)


def make_file_refusal(words: WordSampler, size: float) -> Dialogue:
    """Returns a request to change a file, which no tool can."""
    text, _ = file_requests.make_file_request(words)
    tools = tool_definitions.make_distractors(words, words.random.randint(0, 1 + round(6 * size)), set())
    tools = [tool for tool in tools if tool_definitions.name_of(tool) != tool_definitions.name_of(PATCH)]
    if words.flip_coin(0.3):
        tools.append(SHELL if words.flip_coin(0.6) else tool_definitions.make_runner(words)[0])
    return Dialogue("no tool", [user_message(text), answer_message("file: none", NO_TOOL)], tools)


def make_other_skill(words: WordSampler, size: float) -> Dialogue:
    """Returns a skill without tools, or a question that no tool answers, where the built-in tools are offered."""
    tools = draw_builtin_tools(words, size * 0.5, words.random.choice((SHELL, PATCH)))
    if words.flip_coin(0.2):
        noun = words.pick_noun()
        messages = [
            user_message(tool_skills.fill_question(words, noun, phrases.make_value(words))),
            answer_message(f"{noun}: none", NO_TOOL),
        ]
        return Dialogue("no tool", messages, [tool for tool in tools if tool in (SHELL, PATCH)])
    dialogue = words.random.choice(session_skills.TEXT_SKILLS)(words, size)
    return Dialogue(dialogue.skill, dialogue.messages, tools)
