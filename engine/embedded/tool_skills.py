"""Skills about tools: choose one and fill it, choose two, report what they gave, or say that none fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from antiphon.engine.embedded import phrases, tool_definitions, wordings
from antiphon.engine.embedded.chat import (
    Dialogue,
    Message,
    Tool,
    answer_message,
    call_message,
    tool_messages,
    user_message,
)
from antiphon.engine.embedded.fixed_texts import CODEX, EMPTY, NO_TOOL
from antiphon.engine.embedded.text_skills import pick_wording, style_request
from antiphon.engine.embedded.word_sampler import WordSampler

Request = tuple[str, list[Tool], Message]
"""What the user asks, the tools offered, the call that is right."""


def draw_distractor_count(words: WordSampler, size: float) -> int:
    """How many other tools are offered: often few, at most sixteen; `words.crowded`: mostly many."""
    most = round(3 + 13 * size)
    if words.crowded:
        return words.random.choice((2, words.random.randint(0, 6), *(words.random.randint(3, most) for _ in range(3))))
    return words.random.choice((0, 1, 2, words.random.randint(0, 5), words.random.randint(0, most)))


def fill_question(words: WordSampler, noun: str, about: str) -> str:
    """A question about a noun and a value."""
    form = pick_wording(words, wordings.TOPICS)
    closing = words.random.choice(("", "", ".")) if form[-1] == "}" and about[-1] not in ".,!" else ""
    return form.replace("{}", noun, 1).replace("{}", about, 1) + closing


def topic_request(words: WordSampler, size: float) -> Request:
    """A question that names the noun in a tool's name; the value is the tool's first parameter."""
    noun, params = words.pick_noun(), tool_definitions.make_parameters(words, words.random.choice((1, 1, 1, 1, 2)))
    one = tool_definitions.topic_tool(words, noun, params)
    offered = tool_definitions.mix_tools(words, [one], draw_distractor_count(words, size), {noun})
    name = tool_definitions.name_of(one)
    if words.flip_coin(0.08):
        one["function"]["parameters"] = {"type": "object", "properties": {}}
        form = words.random.choice(("what is the {}", "show the {}", "get the {}"))
        return (
            style_request(words, form.format(noun), "?."),
            offered,
            call_message(tool_definitions.tool_thought(one, noun), (name, {})),
        )
    about = phrases.make_value(words)
    return (
        fill_question(words, noun, about),
        offered,
        call_message(tool_definitions.tool_thought(one, noun), (name, {params[0]: about})),
    )


def simple_value(words: WordSampler) -> str:
    """A value without blanks, so that it is clear where it ends."""
    return words.random.choice(
        (words.any_word, words.pick_name, words.random_characters, lambda: phrases.make_path(words))
    )()


def named_request(words: WordSampler, size: float) -> Request:
    """A request that names the tool and sets one to three of its parameters, numbers among them."""
    params = tool_definitions.make_parameters(words, words.random.choice((1, 1, 2, 2, 3)))
    kinds = [":number" if words.flip_coin(0.2) else "" for _ in params]
    one = tool_definitions.topic_tool(words, words.pick_noun(), [p + k for p, k in zip(params, kinds, strict=True)])
    args: dict[str, Any] = {
        p: int(words.make_number(3)) if k else simple_value(words) for p, k in zip(params, kinds, strict=True)
    }
    setting = words.random.choice(wordings.SETTINGS)
    set_to = " and ".join(setting.replace("{}", p, 1).replace("{}", str(v), 1) for p, v in args.items())
    form, name = pick_wording(words, wordings.NAMED), tool_definitions.name_of(one)
    offered = tool_definitions.mix_tools(words, [one], draw_distractor_count(words, size), set())
    return (
        form.replace("{}", name, 1).replace("{}", set_to, 1),
        offered,
        call_message(tool_definitions.tool_line(one), (name, args)),
    )


def command_request(words: WordSampler, size: float) -> Request:
    """A command to run, copied exactly into the one tool that runs commands."""
    one, thought = tool_definitions.make_runner(words)
    line = phrases.make_command(words)
    form = pick_wording(words, wordings.RUNS)
    offered = tool_definitions.mix_tools(words, [one], draw_distractor_count(words, size), set())
    return (
        form.replace("{}", line),
        offered,
        call_message(thought, (tool_definitions.name_of(one), {tool_definitions.parameter_of(one): line})),
    )


def two_command_request(words: WordSampler, size: float) -> Request:
    """Two commands to run at once."""
    one, thought = tool_definitions.make_runner(words)
    first, second = phrases.make_command(words), phrases.make_command(words)
    form = words.random.choice(wordings.BOTH).replace("{}", first, 1).replace("{}", second, 1)
    text, name, param = (
        style_request(words, form, ". "),
        tool_definitions.name_of(one),
        tool_definitions.parameter_of(one),
    )
    offered = tool_definitions.mix_tools(words, [one], draw_distractor_count(words, size), set())
    return text, offered, call_message(f"{thought}\nTwice.", (name, {param: first}), (name, {param: second}))


def two_question_request(words: WordSampler, size: float, same: bool) -> Request:
    """One noun asked about two values, or two nouns about one value each."""
    nouns = [words.pick_noun(), words.pick_noun()]
    params = [tool_definitions.make_parameters(words, 1)[0] for _ in range(2)]
    made = [tool_definitions.topic_tool(words, noun, [param]) for noun, param in zip(nouns, params, strict=True)]
    values = [simple_value(words), simple_value(words)]
    where = words.random.choice(("in", "of", "for"))
    text = f"what is the {nouns[0]} {where} {values[0]} and "
    thought = tool_definitions.tool_thought(made[0], nouns[0])
    if same or nouns[0] == nouns[1]:
        made, params, thought = made[:1] * 2, params[:1] * 2, f"{thought}\nTwice."
    else:
        text += f"the {nouns[1]} "
        thought += "\n" + tool_definitions.tool_thought(made[1], nouns[1])
    text = style_request(words, f"{text}{where} {values[1]}", "?? ")
    needed = made[:1] if made[0] is made[1] else made
    offered = tool_definitions.mix_tools(words, needed, draw_distractor_count(words, size), set(nouns))
    wanted = [(tool_definitions.name_of(t), {p: v}) for t, p, v in zip(made, params, values, strict=True)]
    return text, offered, call_message(thought, *wanted)


def two_call_request(words: WordSampler, size: float) -> Request:
    """A request that takes two calls."""
    kind = words.random.choice(("commands", "values", "nouns"))
    return (
        two_command_request(words, size) if kind == "commands" else two_question_request(words, size, kind == "values")
    )


def make_one_call(words: WordSampler, size: float) -> Dialogue:
    """Call the tool that fits."""
    text, offered, said = (topic_request if words.flip_coin(0.65) else named_request)(words, size)
    return Dialogue("call", [user_message(text), said], offered)


def make_one_question(words: WordSampler, size: float) -> Dialogue:
    """Call the tool whose name holds what is asked about."""
    text, offered, said = topic_request(words, size)
    return Dialogue("call", [user_message(text), said], offered)


def make_command_call(words: WordSampler, size: float) -> Dialogue:
    """Run a command."""
    text, offered, said = command_request(words, size)
    return Dialogue("command", [user_message(text), said], offered)


def make_parallel_calls(words: WordSampler, size: float) -> Dialogue:
    """Make two calls in one answer."""
    text, offered, said = two_call_request(words, size)
    return Dialogue("parallel", [user_message(text), said], offered)


def make_parallel_questions(words: WordSampler, size: float) -> Dialogue:
    """Make two calls in one answer, neither of which runs a command."""
    text, offered, said = two_question_request(words, size, words.flip_coin(0.5))
    return Dialogue("parallel", [user_message(text), said], offered)


def drop_reasoning(words: WordSampler, said: Message) -> None:
    """Drop the reasoning of a call, sometimes: many clients do not send it back."""
    if words.flip_coin(0.4):
        said.pop("reasoning_content")


def report_messages(words: WordSampler, size: float, frame: bool) -> tuple[list[Message], list[Tool]]:
    """A call, its output, in Codex's frame if so, and the report of it."""
    ask_for: Callable[[WordSampler, float], Request] = (
        command_request if frame or words.flip_coin(0.4) else topic_request
    )
    text, offered, said = ask_for(words, size)
    out = phrases.make_output(words)[:300]
    shown = phrases.frame_output(words, out) if frame else out
    drop_reasoning(words, said)
    return [
        user_message(text),
        said,
        *tool_messages(said, [shown]),
        answer_message("Report it.", out or EMPTY),
    ], offered


def make_report(words: WordSampler, size: float) -> Dialogue:
    """Report a tool's output exactly; two outputs, line after line."""
    if words.flip_coin(0.2):
        text, offered, said = two_call_request(words, size)
        outs = [phrases.make_output(words), phrases.make_output(words)]
        drop_reasoning(words, said)
        told = answer_message("Report them.", "\n".join(out or EMPTY for out in outs))
        return Dialogue("report", [user_message(text), said, *tool_messages(said, outs), told], offered)
    messages, offered = report_messages(words, size, frame=False)
    return Dialogue("report", messages, offered)


def make_framed_report(words: WordSampler, size: float) -> Dialogue:
    """Report a command's output out of Codex's frame."""
    messages, offered = report_messages(words, size, frame=True)
    return Dialogue("framed report", messages, offered)


def make_no_tool_answer(words: WordSampler, size: float) -> Dialogue:
    """Answer in text when nothing offered fits."""
    most = words.random.choice((1, 3, 1 + round(11 * size)))
    if words.flip_coin(0.3):
        text, _, _ = command_request(words, size)
        offered, thought = (
            tool_definitions.make_distractors(words, words.random.randint(0, most), set()),
            "command: none",
        )
    else:
        noun = words.pick_noun()
        text, thought = fill_question(words, noun, phrases.make_value(words)), f"{noun}: none"
        offered = tool_definitions.make_distractors(words, words.random.randint(0, most), {noun})
        if words.flip_coin(0.3):
            offered.append(tool_definitions.make_runner(words)[0])
    return Dialogue("no tool", [user_message(text), answer_message(thought, NO_TOOL)], offered)


def make_codex_turn(words: WordSampler, _size: float) -> Dialogue:
    """A Codex turn: its own tools, so only the command's words are partitioned; in half, its framed output too."""
    offered = [tool_definitions.make_tool("exec_command", ["cmd"], ["workdir", "yield_time_ms:number"])]
    offered += [tool_definitions.make_tool(name, params) for name, params in CODEX[:11]]
    line, form = phrases.make_command(words), words.random.choice(wordings.RUNS)
    said = call_message(tool_definitions.tool_line(offered[0]), ("exec_command", {"cmd": line}))
    messages = [user_message(form.replace("{}", line)), said]
    if words.flip_coin(0.5):
        out = phrases.make_output(words)
        messages += [
            *tool_messages(said, [phrases.frame_output(words, out)]),
            answer_message("Report it.", out or EMPTY),
        ]
    return Dialogue("codex", messages, offered)
