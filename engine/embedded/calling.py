"""Skills about tools: choose one and fill it, choose two, report what they gave, or say that none fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from antiphon.engine.embedded import phrases, tools, wordings
from antiphon.engine.embedded.fixed import CODEX, EMPTY, NO_TOOL
from antiphon.engine.embedded.messages import Dialogue, Message, Tool, answer, call, results, user
from antiphon.engine.embedded.talking import spoken, worded
from antiphon.engine.embedded.words import Words

Request = tuple[str, list[Tool], Message]
"""What the user asks, the tools offered, the call that is right."""


def crowd(words: Words, size: float) -> int:
    """How many other tools are offered: often few, at most sixteen; `words.crowded`: mostly many."""
    most = round(3 + 13 * size)
    if words.crowded:
        return words.random.choice((2, words.random.randint(0, 6), *(words.random.randint(3, most) for _ in range(3))))
    return words.random.choice((0, 1, 2, words.random.randint(0, 5), words.random.randint(0, most)))


def ask(words: Words, noun: str, about: str) -> str:
    """A question about a noun and a value."""
    form = worded(words, wordings.TOPICS)
    closing = words.random.choice(("", "", ".")) if form[-1] == "}" and about[-1] not in ".,!" else ""
    return form.replace("{}", noun, 1).replace("{}", about, 1) + closing


def topical(words: Words, size: float) -> Request:
    """A question that names the noun in a tool's name; the value is the tool's first parameter."""
    noun, params = words.noun(), tools.parameters(words, words.random.choice((1, 1, 1, 1, 2)))
    one = tools.topic_tool(words, noun, params)
    offered = tools.offer(words, [one], crowd(words, size), {noun})
    name = tools.name_of(one)
    if words.maybe(0.08):
        one["function"]["parameters"] = {"type": "object", "properties": {}}
        form = words.random.choice(("what is the {}", "show the {}", "get the {}"))
        return spoken(words, form.format(noun), "?."), offered, call(tools.thought(one, noun), (name, {}))
    about = phrases.value(words)
    return ask(words, noun, about), offered, call(tools.thought(one, noun), (name, {params[0]: about}))


def simple(words: Words) -> str:
    """A value without blanks, so that it is clear where it ends."""
    return words.random.choice((words.any_word, words.proper, words.scramble, lambda: phrases.path(words)))()


def named(words: Words, size: float) -> Request:
    """A request that names the tool and sets one to three of its parameters, numbers among them."""
    params = tools.parameters(words, words.random.choice((1, 1, 2, 2, 3)))
    kinds = [":number" if words.maybe(0.2) else "" for _ in params]
    one = tools.topic_tool(words, words.noun(), [p + k for p, k in zip(params, kinds, strict=True)])
    args: dict[str, Any] = {p: int(words.number(3)) if k else simple(words) for p, k in zip(params, kinds, strict=True)}
    setting = words.random.choice(wordings.SETTINGS)
    set_to = " and ".join(setting.replace("{}", p, 1).replace("{}", str(v), 1) for p, v in args.items())
    form, name = worded(words, wordings.NAMED), tools.name_of(one)
    offered = tools.offer(words, [one], crowd(words, size), set())
    return form.replace("{}", name, 1).replace("{}", set_to, 1), offered, call(tools.listed(one), (name, args))


def running(words: Words, size: float) -> Request:
    """A command to run, copied exactly into the one tool that runs commands."""
    one, thought = tools.runner(words)
    line = phrases.command(words)
    form = worded(words, wordings.RUNS)
    offered = tools.offer(words, [one], crowd(words, size), set())
    return form.replace("{}", line), offered, call(thought, (tools.name_of(one), {tools.parameter_of(one): line}))


def two_commands(words: Words, size: float) -> Request:
    """Two commands to run at once."""
    one, thought = tools.runner(words)
    first, second = phrases.command(words), phrases.command(words)
    form = words.random.choice(wordings.BOTH).replace("{}", first, 1).replace("{}", second, 1)
    text, name, param = spoken(words, form, ". "), tools.name_of(one), tools.parameter_of(one)
    offered = tools.offer(words, [one], crowd(words, size), set())
    return text, offered, call(f"{thought}\nTwice.", (name, {param: first}), (name, {param: second}))


def two_questions(words: Words, size: float, same: bool) -> Request:
    """One noun asked about two values, or two nouns about one value each."""
    nouns = [words.noun(), words.noun()]
    params = [tools.parameters(words, 1)[0] for _ in range(2)]
    made = [tools.topic_tool(words, noun, [param]) for noun, param in zip(nouns, params, strict=True)]
    values = [simple(words), simple(words)]
    where = words.random.choice(("in", "of", "for"))
    text = f"what is the {nouns[0]} {where} {values[0]} and "
    thought = tools.thought(made[0], nouns[0])
    if same or nouns[0] == nouns[1]:
        made, params, thought = made[:1] * 2, params[:1] * 2, f"{thought}\nTwice."
    else:
        text += f"the {nouns[1]} "
        thought += "\n" + tools.thought(made[1], nouns[1])
    text = spoken(words, f"{text}{where} {values[1]}", "?? ")
    needed = made[:1] if made[0] is made[1] else made
    offered = tools.offer(words, needed, crowd(words, size), set(nouns))
    wanted = [(tools.name_of(t), {p: v}) for t, p, v in zip(made, params, values, strict=True)]
    return text, offered, call(thought, *wanted)


def pair(words: Words, size: float) -> Request:
    """A request that takes two calls."""
    kind = words.random.choice(("commands", "values", "nouns"))
    return two_commands(words, size) if kind == "commands" else two_questions(words, size, kind == "values")


def one_call(words: Words, size: float) -> Dialogue:
    """Call the tool that fits."""
    text, offered, said = (topical if words.maybe(0.65) else named)(words, size)
    return Dialogue("call", [user(text), said], offered)


def one_question(words: Words, size: float) -> Dialogue:
    """Call the tool whose name holds what is asked about."""
    text, offered, said = topical(words, size)
    return Dialogue("call", [user(text), said], offered)


def command(words: Words, size: float) -> Dialogue:
    """Run a command."""
    text, offered, said = running(words, size)
    return Dialogue("command", [user(text), said], offered)


def parallel(words: Words, size: float) -> Dialogue:
    """Make two calls in one answer."""
    text, offered, said = pair(words, size)
    return Dialogue("parallel", [user(text), said], offered)


def two_answers(words: Words, size: float) -> Dialogue:
    """Make two calls in one answer, neither of which runs a command."""
    text, offered, said = two_questions(words, size, words.maybe(0.5))
    return Dialogue("parallel", [user(text), said], offered)


def forget(words: Words, said: Message) -> None:
    """Drop the reasoning of a call, sometimes: many clients do not send it back."""
    if words.maybe(0.4):
        said.pop("reasoning_content")


def reported(words: Words, size: float, frame: bool) -> tuple[list[Message], list[Tool]]:
    """A call, its output, in Codex's frame if so, and the report of it."""
    ask_for: Callable[[Words, float], Request] = running if frame or words.maybe(0.4) else topical
    text, offered, said = ask_for(words, size)
    out = phrases.output(words)[:300]
    shown = phrases.framed(words, out) if frame else out
    forget(words, said)
    return [user(text), said, *results(said, [shown]), answer("Report it.", out or EMPTY)], offered


def report(words: Words, size: float) -> Dialogue:
    """Report a tool's output exactly; two outputs, line after line."""
    if words.maybe(0.2):
        text, offered, said = pair(words, size)
        outs = [phrases.output(words), phrases.output(words)]
        forget(words, said)
        told = answer("Report them.", "\n".join(out or EMPTY for out in outs))
        return Dialogue("report", [user(text), said, *results(said, outs), told], offered)
    messages, offered = reported(words, size, frame=False)
    return Dialogue("report", messages, offered)


def framed_report(words: Words, size: float) -> Dialogue:
    """Report a command's output out of Codex's frame."""
    messages, offered = reported(words, size, frame=True)
    return Dialogue("framed report", messages, offered)


def no_tool(words: Words, size: float) -> Dialogue:
    """Answer in text when nothing offered fits."""
    most = words.random.choice((1, 3, 1 + round(11 * size)))
    if words.maybe(0.3):
        text, _, _ = running(words, size)
        offered, thought = tools.distractors(words, words.random.randint(0, most), set()), "command: none"
    else:
        noun = words.noun()
        text, thought = ask(words, noun, phrases.value(words)), f"{noun}: none"
        offered = tools.distractors(words, words.random.randint(0, most), {noun})
        if words.maybe(0.3):
            offered.append(tools.runner(words)[0])
    return Dialogue("no tool", [user(text), answer(thought, NO_TOOL)], offered)


def codex(words: Words, _size: float) -> Dialogue:
    """A Codex turn: its own tools, so only the command's words are partitioned; in half, its framed output too."""
    offered = [tools.tool("exec_command", ["cmd"], ["workdir", "yield_time_ms:number"])]
    offered += [tools.tool(name, params) for name, params in CODEX[:11]]
    line, form = phrases.command(words), words.random.choice(wordings.RUNS)
    said = call(tools.listed(offered[0]), ("exec_command", {"cmd": line}))
    messages = [user(form.replace("{}", line)), said]
    if words.maybe(0.5):
        out = phrases.output(words)
        messages += [*results(said, [phrases.framed(words, out)]), answer("Report it.", out or EMPTY)]
    return Dialogue("codex", messages, offered)
