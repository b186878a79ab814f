"""Tool definitions for the dialogues: generated names and parameters in common naming styles, and the Codex CLI's.

A `WordSampler` draws names and parameters, so they belong to one side of the train/evaluation split. Only RUNNERS, the
words that mark a tool as one that runs commands, are on both sides: like "what is the … in …", they are grammar. A
generated tool name combines one of them with a word of one side.
"""

from __future__ import annotations

from typing import Any

from training.chat import ToolDefinition
from training.fixed_texts import CODEX, RUNNERS, WELL_KNOWN_RUNNERS
from training.word_sampler import WordSampler


def make_tool(name: str, parameters: list[str], optional: list[str] | None = None) -> ToolDefinition:
    """Returns a function tool. A parameter is a string unless it is written as `name:type`."""
    properties = {
        param.partition(":")[0]: {"type": param.partition(":")[2] or "string"}
        for param in parameters + (optional or [])
    }
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if optional:
        schema["required"] = [param.partition(":")[0] for param in parameters]
    return {"type": "function", "function": {"name": name, "description": "", "parameters": schema}}


def name_of(offered: ToolDefinition) -> str:
    """Returns the name of a tool."""
    return str(offered["function"]["name"])


def tool_line(offered: ToolDefinition) -> str:
    """Returns the tool's line in the prompt, as the chat template renders it."""
    function = offered["function"]
    properties = function["parameters"]["properties"]
    names = function["parameters"].get("required") or list(properties)
    types = {name: properties[name]["type"] for name in names[:4]}
    signature = ", ".join(name if type_name == "string" else f"{name}:{type_name}" for name, type_name in types.items())
    return f"{function['name']}({signature}): {function['name']}"


def tool_thought(offered: ToolDefinition, word: str) -> str:
    """Returns the reasoning before a call: the tool's line, from the word that identified the tool to its end.

    For the tool `get_weather(city)` and the word "weather" it is `weather(city): get_weather`.
    """
    line = tool_line(offered)
    return line[max(0, line.lower().find(word.lower())) :]


def style_name(words: WordSampler, parts: list[str]) -> str:
    """Joins the parts of a name in snake case, camel case, kebab case or with a namespace."""
    draw = words.random.random()
    if draw < 0.5:
        return "_".join(parts)
    if draw < 0.65:
        return parts[0] + "".join(part.capitalize() for part in parts[1:])
    if draw < 0.75:
        return "-".join(parts)
    if draw < 0.9:
        return words.made_up() + "__" + "_".join(parts)
    return "_".join([*parts, words.made_up()])


def make_parameter(words: WordSampler) -> str:
    """Returns a parameter name: one word, or two joined."""
    name = words.pick_word(words.params) if words.flip_coin(0.5) else words.made_up()
    while name in ("name", "arguments"):  # they occur in the JSON of the call itself
        name = words.made_up()
    compound = name + "_" + words.pick_word(words.params)
    return compound if words.flip_coin(0.12) and compound != f"{name}_{name}" and compound.count("_") == 1 else name


def make_parameters(words: WordSampler, count: int) -> list[str]:
    """Returns `count` different parameter names."""
    names: list[str] = []
    while len(names) < count:
        if (name := make_parameter(words)) not in names:
            names.append(name)
    return names


def topic_tool(words: WordSampler, noun: str, params: list[str]) -> ToolDefinition:
    """Returns a tool whose name contains the noun it is about."""
    verb = words.pick_word(words.verbs) if words.flip_coin(0.7) else words.made_up()
    parts = words.random.choice(([verb, noun], [verb, noun], [noun, verb], [noun], [verb, words.made_up(), noun]))
    optional = make_parameters(words, words.random.randint(1, 3)) if words.flip_coin(0.25) else None
    return make_tool(
        style_name(words, parts), params, [param for param in optional or [] if param not in params] or None
    )


def make_runner(words: WordSampler) -> tuple[ToolDefinition, str]:
    """Returns a tool that runs commands, and the reasoning for a call of it. Only training uses well-known tools."""
    if not words.evaluation and words.flip_coin(0.45):
        name, param = words.random.choice(WELL_KNOWN_RUNNERS)
        tool = make_tool(name, [param], ["workdir", "timeout:number"] if words.flip_coin(0.4) else None)
        return tool, tool_line(tool)
    param = make_parameter(words)
    verb = words.random.choice(RUNNERS)
    parts = [verb, words.pick_noun()]
    words.random.shuffle(parts)
    tool = make_tool(style_name(words, parts), [param], make_parameters(words, 2) if words.flip_coin(0.2) else None)
    return tool, tool_thought(tool, verb)


def parameter_of(offered: ToolDefinition) -> str:
    """Returns the name of a tool's first parameter."""
    schema = offered["function"]["parameters"]
    return str((schema.get("required") or list(schema["properties"]))[0])


def make_distractors(words: WordSampler, count: int, taken: set[str]) -> list[ToolDefinition]:
    """Returns about `count` tools for nouns not in `taken`, or, in training, some of Codex's. None runs commands."""
    tools: list[ToolDefinition] = []
    if not words.evaluation and count >= 4 and words.flip_coin(0.35):
        sample = words.random.sample(CODEX, min(count, len(CODEX)))
        if words.flip_coin(0.5):
            sample = [entry for entry in CODEX if entry in sample]
        tools = [make_tool(name, params) for name, params in sample]
        count = 0 if words.flip_coin(0.6) else words.random.randint(0, 3)
    while count > 0:
        noun = words.pick_noun()
        if noun not in taken and noun not in RUNNERS:
            tools.append(topic_tool(words, noun, make_parameters(words, words.random.choice((0, 1, 1, 1, 2, 3)))))
            count -= 1
    return tools


def mix_tools(
    words: WordSampler, needed: list[ToolDefinition], distractor_count: int, taken: set[str]
) -> list[ToolDefinition]:
    """Returns the needed tools and `distractor_count` distractors, in random order."""
    tools = make_distractors(words, distractor_count, taken)
    if words.flip_coin(0.3):
        return needed + tools
    for tool in needed:
        tools.insert(words.random.randint(0, len(tools)), tool)
    return tools
