"""Tools to offer: made-up names and parameters in every common dress, and the ones the Codex CLI brings.

Names and parameters come from a `Words`, so they lie on one side of the partition; only RUNNERS, the words which say
that a tool runs commands, are on both (they are grammar, as "what is the … in …" is), always beside one that is not.
"""

from __future__ import annotations

from typing import Any

from antiphon.engine.embedded.chat import Tool
from antiphon.engine.embedded.fixed_texts import CODEX, RUNNERS, WELL_KNOWN_RUNNERS
from antiphon.engine.embedded.word_sampler import WordSampler


def make_tool(name: str, parameters: list[str], optional: list[str] | None = None) -> Tool:
    """A function tool; a parameter is a string unless it is spelled `name:type`."""
    properties = {p.partition(":")[0]: {"type": p.partition(":")[2] or "string"} for p in parameters + (optional or [])}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if optional:
        schema["required"] = [p.partition(":")[0] for p in parameters]
    return {"type": "function", "function": {"name": name, "description": "", "parameters": schema}}


def name_of(offered: Tool) -> str:
    """The name of an offered tool."""
    return str(offered["function"]["name"])


def tool_line(offered: Tool) -> str:
    """The tool's line in the prompt, as the chat template writes it."""
    function = offered["function"]
    properties = function["parameters"]["properties"]
    names = function["parameters"].get("required") or list(properties)
    kinds = {name: properties[name]["type"] for name in names[:4]}
    shown = ", ".join(name if kind == "string" else f"{name}:{kind}" for name, kind in kinds.items())
    return f"{function['name']}({shown}): {function['name']}"


def tool_thought(offered: Tool, word: str) -> str:
    """What is thought before a call: the tool's line from the word on that pointed to it."""
    line = tool_line(offered)
    return line[max(0, line.lower().find(word.lower())) :]


def style_name(words: WordSampler, parts: list[str]) -> str:
    """Join the parts of a name as snake case, camel case, kebab case or under a namespace."""
    draw = words.random.random()
    if draw < 0.5:
        return "_".join(parts)
    if draw < 0.65:
        return parts[0] + "".join(p.capitalize() for p in parts[1:])
    if draw < 0.75:
        return "-".join(parts)
    if draw < 0.9:
        return words.made_up() + "__" + "_".join(parts)
    return "_".join([*parts, words.made_up()])


def make_parameter(words: WordSampler) -> str:
    """A parameter's name: a word, or two joined."""
    name = words.pick_word(words.params) if words.flip_coin(0.5) else words.made_up()
    while name in ("name", "arguments"):  # they would read like the frame of the call itself
        name = words.made_up()
    joined = name + "_" + words.pick_word(words.params)
    return joined if words.flip_coin(0.12) and joined != f"{name}_{name}" and joined.count("_") == 1 else name


def make_parameters(words: WordSampler, count: int) -> list[str]:
    """That many different parameter names."""
    names: list[str] = []
    while len(names) < count:
        if (name := make_parameter(words)) not in names:
            names.append(name)
    return names


def topic_tool(words: WordSampler, noun: str, params: list[str]) -> Tool:
    """A tool whose name holds the noun it is about."""
    verb = words.pick_word(words.verbs) if words.flip_coin(0.7) else words.made_up()
    parts = words.random.choice(([verb, noun], [verb, noun], [noun, verb], [noun], [verb, words.made_up(), noun]))
    optional = make_parameters(words, words.random.randint(1, 3)) if words.flip_coin(0.25) else None
    return make_tool(style_name(words, parts), params, [p for p in optional or [] if p not in params] or None)


def make_runner(words: WordSampler) -> tuple[Tool, str]:
    """A tool that runs commands, and the thought of it; a well-known one only in training."""
    if not words.evaluation and words.flip_coin(0.45):
        name, param = words.random.choice(WELL_KNOWN_RUNNERS)
        one = make_tool(name, [param], ["workdir", "timeout:number"] if words.flip_coin(0.4) else None)
        return one, tool_line(one)
    param = make_parameter(words)
    verb = words.random.choice(RUNNERS)
    parts = [verb, words.pick_noun()]
    words.random.shuffle(parts)
    one = make_tool(style_name(words, parts), [param], make_parameters(words, 2) if words.flip_coin(0.2) else None)
    return one, tool_thought(one, verb)


def parameter_of(offered: Tool) -> str:
    """The first parameter of a tool."""
    schema = offered["function"]["parameters"]
    return str((schema.get("required") or list(schema["properties"]))[0])


def make_distractors(words: WordSampler, count: int, taken: set[str]) -> list[Tool]:
    """Tools about other nouns than those taken; never one that runs commands."""
    offered: list[Tool] = []
    if not words.evaluation and count >= 4 and words.flip_coin(0.35):
        chosen = words.random.sample(CODEX, min(count, len(CODEX)))
        if words.flip_coin(0.5):
            chosen = [c for c in CODEX if c in chosen]
        offered = [make_tool(name, params) for name, params in chosen]
        count = 0 if words.flip_coin(0.6) else words.random.randint(0, 3)
    while count > 0:
        noun = words.pick_noun()
        if noun not in taken and noun not in RUNNERS:
            offered.append(topic_tool(words, noun, make_parameters(words, words.random.choice((0, 1, 1, 1, 2, 3)))))
            count -= 1
    return offered


def mix_tools(words: WordSampler, needed: list[Tool], others: int, taken: set[str]) -> list[Tool]:
    """The needed tools among that many others, in any order."""
    offered = make_distractors(words, others, taken)
    if words.flip_coin(0.3):
        return needed + offered
    for one in needed:
        offered.insert(words.random.randint(0, len(offered)), one)
    return offered
