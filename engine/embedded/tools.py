"""Tools to offer: made-up names and parameters in every common dress, and the ones the Codex CLI brings.

Names and parameters come from a `Words`, so they lie on one side of the partition; only RUNNERS, the words which say
that a tool runs commands, are on both (they are grammar, as "what is the … in …" is), always beside one that is not.
"""

from __future__ import annotations

from typing import Any

from antiphon.engine.embedded.fixed import CODEX, RUNNERS, WELL_KNOWN_RUNNERS
from antiphon.engine.embedded.messages import Tool
from antiphon.engine.embedded.words import Words


def tool(name: str, parameters: list[str], optional: list[str] | None = None) -> Tool:
    """A function tool; a parameter is a string unless it is spelled `name:type`."""
    properties = {p.partition(":")[0]: {"type": p.partition(":")[2] or "string"} for p in parameters + (optional or [])}
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if optional:
        schema["required"] = [p.partition(":")[0] for p in parameters]
    return {"type": "function", "function": {"name": name, "description": "", "parameters": schema}}


def name_of(offered: Tool) -> str:
    """The name of an offered tool."""
    return str(offered["function"]["name"])


def listed(offered: Tool) -> str:
    """The tool's line in the prompt, as the chat template writes it."""
    function = offered["function"]
    properties = function["parameters"]["properties"]
    names = function["parameters"].get("required") or list(properties)
    kinds = {name: properties[name]["type"] for name in names[:4]}
    shown = ", ".join(name if kind == "string" else f"{name}:{kind}" for name, kind in kinds.items())
    return f"{function['name']}({shown}): {function['name']}"


def thought(offered: Tool, word: str) -> str:
    """What is thought before a call: the tool's line from the word on that pointed to it."""
    line = listed(offered)
    return line[max(0, line.lower().find(word.lower())) :]


def dress(words: Words, parts: list[str]) -> str:
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


def parameter(words: Words) -> str:
    """A parameter's name: a word, or two joined."""
    name = words.pick(words.params) if words.maybe(0.5) else words.made_up()
    while name in ("name", "arguments"):  # they would read like the frame of the call itself
        name = words.made_up()
    joined = name + "_" + words.pick(words.params)
    return joined if words.maybe(0.12) and joined != f"{name}_{name}" and joined.count("_") == 1 else name


def parameters(words: Words, count: int) -> list[str]:
    """That many different parameter names."""
    names: list[str] = []
    while len(names) < count:
        if (name := parameter(words)) not in names:
            names.append(name)
    return names


def topic_tool(words: Words, noun: str, params: list[str]) -> Tool:
    """A tool whose name holds the noun it is about."""
    verb = words.pick(words.verbs) if words.maybe(0.7) else words.made_up()
    parts = words.random.choice(([verb, noun], [verb, noun], [noun, verb], [noun], [verb, words.made_up(), noun]))
    optional = parameters(words, words.random.randint(1, 3)) if words.maybe(0.25) else None
    return tool(dress(words, parts), params, [p for p in optional or [] if p not in params] or None)


def runner(words: Words) -> tuple[Tool, str]:
    """A tool that runs commands, and the thought of it; a well-known one only in training."""
    if not words.evaluation and words.maybe(0.45):
        name, param = words.random.choice(WELL_KNOWN_RUNNERS)
        one = tool(name, [param], ["workdir", "timeout:number"] if words.maybe(0.4) else None)
        return one, listed(one)
    param = parameter(words)
    verb = words.random.choice(RUNNERS)
    parts = [verb, words.noun()]
    words.random.shuffle(parts)
    one = tool(dress(words, parts), [param], parameters(words, 2) if words.maybe(0.2) else None)
    return one, thought(one, verb)


def parameter_of(offered: Tool) -> str:
    """The first parameter of a tool."""
    schema = offered["function"]["parameters"]
    return str((schema.get("required") or list(schema["properties"]))[0])


def distractors(words: Words, count: int, taken: set[str]) -> list[Tool]:
    """Tools about other nouns than those taken; never one that runs commands."""
    offered: list[Tool] = []
    if not words.evaluation and count >= 4 and words.maybe(0.35):
        chosen = words.random.sample(CODEX, min(count, len(CODEX)))
        if words.maybe(0.5):
            chosen = [c for c in CODEX if c in chosen]
        offered = [tool(name, params) for name, params in chosen]
        count = 0 if words.maybe(0.6) else words.random.randint(0, 3)
    while count > 0:
        noun = words.noun()
        if noun not in taken and noun not in RUNNERS:
            offered.append(topic_tool(words, noun, parameters(words, words.random.choice((0, 1, 1, 1, 2, 3)))))
            count -= 1
    return offered


def offer(words: Words, needed: list[Tool], others: int, taken: set[str]) -> list[Tool]:
    """The needed tools among that many others, in any order."""
    offered = distractors(words, others, taken)
    if words.maybe(0.3):
        return needed + offered
    for one in needed:
        offered.insert(words.random.randint(0, len(offered)), one)
    return offered
