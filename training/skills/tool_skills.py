"""Skills with tools: one call, two calls, reports of tool outputs, and answers when no tool fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from training import phrases, tool_definitions, wordings
from training.chat import (
    ChatMessage,
    Dialogue,
    ToolDefinition,
    answer_message,
    call_message,
    tool_messages,
    user_message,
)
from training.fixed_texts import CODEX, EMPTY, NO_TOOL
from training.skills.text_skills import pick_wording, style_request
from training.word_sampler import WordSampler

Request = tuple[str, list[ToolDefinition], ChatMessage]
"""The user's request, the offered tools, and the assistant message with the correct calls."""


def draw_distractor_count(words: WordSampler, size: float) -> int:
    """Draws the number of distractor tools: often few, at most 16; mostly many if `words.crowded`."""
    max_count = round(3 + 13 * size)
    if words.crowded:
        return words.random.choice(
            (2, words.random.randint(0, 6), *(words.random.randint(3, max_count) for _ in range(3)))
        )
    return words.random.choice((0, 1, 2, words.random.randint(0, 5), words.random.randint(0, max_count)))


def fill_question(words: WordSampler, noun: str, about: str) -> str:
    """Returns a question about a noun and a value."""
    wording = pick_wording(words, wordings.TOPICS)
    closing = words.random.choice(("", "", ".")) if wording[-1] == "}" and about[-1] not in ".,!" else ""
    return wording.replace("{}", noun, 1).replace("{}", about, 1) + closing


def topic_request(words: WordSampler, size: float) -> Request:
    """Returns a question with the noun of a tool's name. Its value is the argument of the tool's first parameter."""
    noun, params = words.pick_noun(), tool_definitions.make_parameters(words, words.random.choice((1, 1, 1, 1, 2)))
    tool = tool_definitions.topic_tool(words, noun, params)
    tools = tool_definitions.mix_tools(words, [tool], draw_distractor_count(words, size), {noun})
    name = tool_definitions.name_of(tool)
    if words.flip_coin(0.08):
        tool["function"]["parameters"] = {"type": "object", "properties": {}}
        wording = words.random.choice(("what is the {}", "show the {}", "get the {}"))
        return (
            style_request(words, wording.format(noun), "?."),
            tools,
            call_message(tool_definitions.tool_thought(tool, noun), (name, {})),
        )
    value = phrases.make_value(words)
    return (
        fill_question(words, noun, value),
        tools,
        call_message(tool_definitions.tool_thought(tool, noun), (name, {params[0]: value})),
    )


def simple_value(words: WordSampler) -> str:
    """Returns a value without spaces, so that its end is clear."""
    return words.random.choice(
        (words.any_word, words.pick_name, words.random_characters, lambda: phrases.make_path(words))
    )()


def named_request(words: WordSampler, size: float) -> Request:
    """Returns a request that names the tool and sets one to three of its parameters; some values are numbers."""
    params = tool_definitions.make_parameters(words, words.random.choice((1, 1, 2, 2, 3)))
    kinds = [":number" if words.flip_coin(0.2) else "" for _ in params]
    tool = tool_definitions.topic_tool(
        words, words.pick_noun(), [param + kind for param, kind in zip(params, kinds, strict=True)]
    )
    args: dict[str, Any] = {
        param: int(words.make_number(3)) if kind else simple_value(words)
        for param, kind in zip(params, kinds, strict=True)
    }
    setting = words.random.choice(wordings.SETTINGS)
    set_to = " and ".join(setting.replace("{}", param, 1).replace("{}", str(value), 1) for param, value in args.items())
    wording, name = pick_wording(words, wordings.NAMED), tool_definitions.name_of(tool)
    tools = tool_definitions.mix_tools(words, [tool], draw_distractor_count(words, size), set())
    return (
        wording.replace("{}", name, 1).replace("{}", set_to, 1),
        tools,
        call_message(tool_definitions.tool_line(tool), (name, args)),
    )


def command_request(words: WordSampler, size: float) -> Request:
    """Returns a request to run a command. The call copies it exactly into the only tool that runs commands."""
    tool, thought = tool_definitions.make_runner(words)
    command = phrases.make_command(words)
    wording = pick_wording(words, wordings.RUNS)
    tools = tool_definitions.mix_tools(words, [tool], draw_distractor_count(words, size), set())
    return (
        wording.replace("{}", command),
        tools,
        call_message(thought, (tool_definitions.name_of(tool), {tool_definitions.parameter_of(tool): command})),
    )


def two_command_request(words: WordSampler, size: float) -> Request:
    """Returns a request to run two commands at once."""
    tool, thought = tool_definitions.make_runner(words)
    first, second = phrases.make_command(words), phrases.make_command(words)
    wording = words.random.choice(wordings.BOTH).replace("{}", first, 1).replace("{}", second, 1)
    text, name, param = (
        style_request(words, wording, ". "),
        tool_definitions.name_of(tool),
        tool_definitions.parameter_of(tool),
    )
    tools = tool_definitions.mix_tools(words, [tool], draw_distractor_count(words, size), set())
    return text, tools, call_message(f"{thought}\nTwice.", (name, {param: first}), (name, {param: second}))


def two_question_request(words: WordSampler, size: float, same: bool) -> Request:
    """Returns a question about two nouns with one value each, or with `same` about one noun and two values."""
    nouns = [words.pick_noun(), words.pick_noun()]
    params = [tool_definitions.make_parameters(words, 1)[0] for _ in range(2)]
    tools = [tool_definitions.topic_tool(words, noun, [param]) for noun, param in zip(nouns, params, strict=True)]
    values = [simple_value(words), simple_value(words)]
    preposition = words.random.choice(("in", "of", "for"))
    text = f"what is the {nouns[0]} {preposition} {values[0]} and "
    thought = tool_definitions.tool_thought(tools[0], nouns[0])
    if same or nouns[0] == nouns[1]:
        tools, params, thought = tools[:1] * 2, params[:1] * 2, f"{thought}\nTwice."
    else:
        text += f"the {nouns[1]} "
        thought += "\n" + tool_definitions.tool_thought(tools[1], nouns[1])
    text = style_request(words, f"{text}{preposition} {values[1]}", "?? ")
    needed = tools[:1] if tools[0] is tools[1] else tools
    offered_tools = tool_definitions.mix_tools(words, needed, draw_distractor_count(words, size), set(nouns))
    calls = [
        (tool_definitions.name_of(tool), {param: value})
        for tool, param, value in zip(tools, params, values, strict=True)
    ]
    return text, offered_tools, call_message(thought, *calls)


def two_call_request(words: WordSampler, size: float) -> Request:
    """Returns a request that needs two calls."""
    kind = words.random.choice(("commands", "values", "nouns"))
    return (
        two_command_request(words, size) if kind == "commands" else two_question_request(words, size, kind == "values")
    )


def make_one_call(words: WordSampler, size: float) -> Dialogue:
    """Returns a dialogue that calls the matching tool."""
    text, tools, call = (topic_request if words.flip_coin(0.65) else named_request)(words, size)
    return Dialogue("call", [user_message(text), call], tools)


def make_one_question(words: WordSampler, size: float) -> Dialogue:
    """Returns a dialogue that calls the tool whose name contains the noun of the question."""
    text, tools, call = topic_request(words, size)
    return Dialogue("call", [user_message(text), call], tools)


def make_command_call(words: WordSampler, size: float) -> Dialogue:
    """Returns a dialogue that runs a command."""
    text, tools, call = command_request(words, size)
    return Dialogue("command", [user_message(text), call], tools)


def make_parallel_calls(words: WordSampler, size: float) -> Dialogue:
    """Returns a dialogue with two calls in one answer."""
    text, tools, call = two_call_request(words, size)
    return Dialogue("parallel", [user_message(text), call], tools)


def make_parallel_questions(words: WordSampler, size: float) -> Dialogue:
    """Returns a dialogue with two calls in one answer, neither of which runs a command."""
    text, tools, call = two_question_request(words, size, words.flip_coin(0.5))
    return Dialogue("parallel", [user_message(text), call], tools)


def drop_reasoning(words: WordSampler, call_message: ChatMessage) -> None:
    """Removes the reasoning of a call in 40 % of dialogues, since many clients do not send it back."""
    if words.flip_coin(0.4):
        call_message.pop("reasoning_content")


def report_messages(words: WordSampler, size: float, frame: bool) -> tuple[list[ChatMessage], list[ToolDefinition]]:
    """Returns a request, its call, the tool output (framed as by Codex if `frame`) and the report; and the tools."""
    make_request: Callable[[WordSampler, float], Request] = (
        command_request if frame or words.flip_coin(0.4) else topic_request
    )
    text, tools, call = make_request(words, size)
    output = phrases.make_output(words)[:300]
    tool_output = phrases.frame_output(words, output) if frame else output
    drop_reasoning(words, call)
    return [
        user_message(text),
        call,
        *tool_messages(call, [tool_output]),
        answer_message("Report it.", output or EMPTY),
    ], tools


def make_report(words: WordSampler, size: float) -> Dialogue:
    """Returns a dialogue that repeats a tool's output exactly, or two outputs on separate lines."""
    if words.flip_coin(0.2):
        text, tools, call = two_call_request(words, size)
        outputs = [phrases.make_output(words), phrases.make_output(words)]
        drop_reasoning(words, call)
        answer = answer_message("Report them.", "\n".join(output or EMPTY for output in outputs))
        return Dialogue("report", [user_message(text), call, *tool_messages(call, outputs), answer], tools)
    messages, tools = report_messages(words, size, frame=False)
    return Dialogue("report", messages, tools)


def make_framed_report(words: WordSampler, size: float) -> Dialogue:
    """Returns a dialogue that repeats a command's output without Codex's frame."""
    messages, tools = report_messages(words, size, frame=True)
    return Dialogue("framed report", messages, tools)


def make_no_tool_answer(words: WordSampler, size: float) -> Dialogue:
    """Returns a dialogue that answers in text because no tool fits."""
    max_count = words.random.choice((1, 3, 1 + round(11 * size)))
    if words.flip_coin(0.3):
        text, _, _ = command_request(words, size)
        tools, thought = (
            tool_definitions.make_distractors(words, words.random.randint(0, max_count), set()),
            "command: none",
        )
    else:
        noun = words.pick_noun()
        text, thought = fill_question(words, noun, phrases.make_value(words)), f"{noun}: none"
        tools = tool_definitions.make_distractors(words, words.random.randint(0, max_count), {noun})
        if words.flip_coin(0.3):
            tools.append(tool_definitions.make_runner(words)[0])
    return Dialogue("no tool", [user_message(text), answer_message(thought, NO_TOOL)], tools)


def make_codex_turn(words: WordSampler, _size: float) -> Dialogue:
    """Returns a turn with Codex's own tools; half of the time also the framed output and its report.

    Only the words of the command and its output are split between training and evaluation, not the tools.
    """
    tools = [tool_definitions.make_tool("exec_command", ["cmd"], ["workdir", "yield_time_ms:number"])]
    tools += [tool_definitions.make_tool(name, params) for name, params in CODEX[:11]]
    command, wording = phrases.make_command(words), words.random.choice(wordings.RUNS)
    call = call_message(tool_definitions.tool_line(tools[0]), ("exec_command", {"cmd": command}))
    messages = [user_message(wording.replace("{}", command)), call]
    if words.flip_coin(0.5):
        output = phrases.make_output(words)
        messages += [
            *tool_messages(call, [phrases.frame_output(words, output)]),
            answer_message("Report it.", output or EMPTY),
        ]
    return Dialogue("codex", messages, tools)
