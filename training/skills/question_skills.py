"""The skills of first questions: a clock's tool and its JSON, a picture that is not there, and a form to fill in.

The lists of wordings are shared by training and evaluation. Only the words in the braces are split.
"""

from __future__ import annotations

import json
from typing import Any

from training import phrases, tool_definitions
from training.chat import Dialogue, ToolDefinition, answer_message, call_message, tool_messages, user_message
from training.fixed_texts import NO_PICTURE, NO_TOOL
from training.skills import session_skills, text_skills, tool_skills
from training.word_sampler import KINDS, WordSampler

LOOKUPS = [
    *["what {noun} is it in {value}"] * 3,
    "which {noun} is it in {value}",
    "what {noun} is it now in {value}",
    "what is the {noun} in {value}",
    "what is the current {noun} in {value}",
    "tell me the {noun} in {value}",
    *["what {noun} is it in the {param} {value}"] * 2,
    *["what is the {noun} in the {param} {value}"] * 2,
    "what is the {noun} for the {param} {value}",
    "tell me the {noun} in the {param} {value}",
    "what is the current {noun} in the {param} {value}",
    "what is the {noun} in {param} {value}",
    "which {noun} is it for {param} {value}",
]
"""Questions for what a tool looks up; some name the parameter before its value."""
PICTURE_QUESTIONS = [
    *["what is in the picture"] * 3,
    *["what is in this picture"] * 2,
    "what is in the image",
    "what is in this image",
    "what's in the image",
    "what do you see in this picture",
    "what do you see in the image",
    "what does this image show",
    "what does the picture show",
    "describe the picture",
    "describe this image",
    "describe the image",
    "please describe the image",
    "tell me what is in the image",
    "can you see this picture",
    "which figure is in the picture",
    "what number is in the picture",
]
"""Questions about a picture, which does not come with them."""
SENTENCES = [
    "{} is {number} years old.",
    "{} is {number}.",
    "{} bought {number} {word}.",
    "{} lives in {}.",
    "{} lives in {}. Extract the {a} and the {b}.",
    "{} is {number} years old and lives in {}.",
    "{} and {} visit the {word} {word} together.",
    "{} met {} at {number}.",
    "{} sold the {word} to {} for {number}.",
    "extract the {a}: {} has {number}.",
]
"""Sentences with names and at most one number, from which a form is filled in."""
LEADS = [
    "",
    "",
    "",
    "fill in the form: ",
    "extract the {a}: ",
    "extract the {a} and the {b}: ",
    "read this: ",
]
"""Texts before the values of a form."""
UNKNOWN = "unknown"
"""Text of a form's field that the request has no value for."""
MISSING: dict[str, Any] = {"string": UNKNOWN, "integer": 0, "boolean": False, "array": []}
"""Value of a form's field that the request does not give, by type."""


def make_zone(words: WordSampler) -> str:
    """Returns a value such as a time zone's name; in a fourth of the cases, any other value."""
    draw = words.random.random()
    if draw < 0.45:
        return f"{words.pick_name()}/{words.pick_name()}"
    if draw < 0.6:
        return f"{words.pick_name()}/{words.pick_name()}_{words.pick_name()}"
    return words.pick_name() if draw < 0.75 else phrases.make_value(words)


def make_lookup_tools(words: WordSampler, noun: str, param: str) -> list[ToolDefinition]:
    """Returns the tools of a server: one that looks the noun up and, in most cases, one that converts it."""
    verb = words.pick_word(words.verbs)
    parts = [verb, words.pick_word(KINDS), noun] if words.flip_coin(0.6) else [verb, noun]
    prefix = ""
    if words.flip_coin(0.6):
        prefix = (noun if words.flip_coin(0.5) else words.made_up()) + "__"
    tools = [tool_definitions.make_tool(prefix + "_".join(parts), [param])]
    if words.flip_coin(0.6):
        other = "_".join([words.pick_word(words.verbs), noun])
        params = [f"source_{param}", noun, f"target_{param}"]
        tools.append(tool_definitions.make_tool(prefix + other, params))
    return tools


def make_lookup(words: WordSampler, size: float) -> tool_skills.Request:
    """Returns a question for what one of a server's tools looks up. The argument is the value alone."""
    noun, param = words.pick_noun(), tool_definitions.make_parameters(words, 1)[0]
    if not words.evaluation and words.flip_coin(0.15):
        noun, param = "time", "timezone"
    offered = make_lookup_tools(words, noun, param)
    value = make_zone(words)
    text = words.random.choice(LOOKUPS).replace("{noun}", noun).replace("{param}", param.replace("_", " "))
    text = text_skills.style_request(words, text.replace("{value}", value), "????. ")
    count = words.random.choice((0, 0, 1, 2, round(6 * size)))
    tools = tool_definitions.mix_tools(words, offered, count, {noun}) if count else offered
    thought = tool_definitions.tool_thought(offered[0], noun)
    return text, tools, call_message(thought, (tool_definitions.name_of(offered[0]), {param: value}))


def make_lookup_call(words: WordSampler, size: float) -> Dialogue:
    """Returns a dialogue that calls the tool which looks something up."""
    text, tools, call = make_lookup(words, size)
    return Dialogue("lookup", [user_message(text), call], tools)


def make_lookup_refusal(words: WordSampler, size: float) -> Dialogue:
    """Returns a question that none of the tools, if any, can look up."""
    noun = words.pick_noun()
    text = words.random.choice(LOOKUPS).replace("{noun}", noun).replace("{param}", words.any_word())
    text = text_skills.style_request(words, text.replace("{value}", make_zone(words)), "????. ")
    tools = tool_definitions.make_distractors(words, words.random.randint(1, 1 + round(8 * size)), {noun})
    return Dialogue("no tool", [user_message(text), answer_message(f"{noun}: none", NO_TOOL)], tools)


def make_json_value(words: WordSampler) -> Any:
    """Returns a value of a tool's JSON: a time, a zone, a word, a phrase, a number, a boolean or null."""
    draw, number = words.random.random(), words.random.randrange
    if draw < 0.25:
        date = f"{number(1980, 2040)}-{number(1, 13):02d}-{number(1, 29):02d}"
        clock = f"{number(24):02d}:{number(60):02d}:{number(60):02d}"
        return f"{date}T{clock}{words.random.choice('+-')}{number(13):02d}:{words.random.choice(('00', '30'))}"
    if draw < 0.4:
        return make_zone(words)
    if draw < 0.65:
        return words.any_word() if words.flip_coin(0.6) else words.any_word().capitalize()
    if draw < 0.75:
        return phrases.make_phrase(words, 1, 3)
    if draw < 0.85:
        return words.random.choice((True, False, None))
    return number(10 ** words.random.randint(1, 4))


def make_json_output(words: WordSampler) -> str:
    """Returns a JSON object as a tool gives it: on several lines, or on one."""
    keys = [words.pick_noun() if words.flip_coin(0.4) else tool_definitions.make_parameter(words) for _ in range(5)]
    keys = list(dict.fromkeys(keys))[: words.random.randint(1, 5)]
    if not words.evaluation and words.flip_coin(0.2):
        keys = ["timezone", "datetime", "day_of_week", "is_dst"][: words.random.randint(2, 4)]
    value: dict[str, Any] = {key: make_json_value(words) for key in keys}
    if words.flip_coin(0.2):
        value = {words.pick_noun(): value, words.made_up(): make_json_value(words)}
    return json.dumps(value, indent=words.random.choice((2, 2, 2, 4, None)), ensure_ascii=False)


def make_json_report(words: WordSampler, size: float) -> Dialogue:
    """Returns a dialogue that repeats a tool's JSON exactly, as far as the template keeps it."""
    text, tools, call = make_lookup(words, size)
    output = make_json_output(words)
    tool_skills.drop_reasoning(words, call)
    cut = session_skills.CUT_MARK if len(output) > session_skills.MAX_REPORT_CHARS else ""
    report = answer_message("Report it.", output[: session_skills.MAX_REPORT_CHARS] + cut)
    return Dialogue("json report", [user_message(text), call, *tool_messages(call, [output]), report], tools)


def make_picture_refusal(words: WordSampler, size: float) -> Dialogue:
    """Returns a question about a picture that is not there."""
    text = text_skills.style_request(words, words.random.choice(PICTURE_QUESTIONS), "???. ")
    tools = text_skills.draw_unneeded_tools(words, size) if words.flip_coin(0.4) else []
    return Dialogue("no picture", [user_message(text), answer_message("No picture.", NO_PICTURE)], tools)


def draw_fields(words: WordSampler) -> dict[str, str]:
    """Returns one to four fields of a form, with their types."""
    names: list[str] = []
    for _ in range(words.random.choice((1, 2, 2, 2, 3, 3, 4))):
        name = words.pick_noun() if words.flip_coin(0.5) else tool_definitions.make_parameter(words)
        if not words.evaluation and words.flip_coin(0.15):
            name = words.random.choice(("name", "city", "age", "answer", "title", "date", "sum", "result", "language"))
        names.append(name)
    kinds = ("string", "string", "string", "string", "integer", "integer", "array", "boolean")
    return {name: words.random.choice(kinds) for name in dict.fromkeys(names)}


def list_values(words: WordSampler, fields: dict[str, str]) -> tuple[str, dict[str, Any]]:
    """Returns a request that gives the values of most fields by name, and all values."""
    values: dict[str, Any] = {}
    parts: list[str] = []
    setting, joint = words.random.choice(
        (
            ("{}: {}", ", "),
            ("{}: {}", "\n"),
            ("the {} is {}", " and "),
            ("the {} is {}", ", "),
            ("{} {}", ", "),
            ("{}={}", ", "),
        )
    )
    for name, kind in fields.items():
        values[name] = MISSING[kind]
        if words.flip_coin(0.3):
            continue
        written = ""
        match kind:
            case "string":
                values[name] = written = words.random.choice(
                    (
                        tool_skills.simple_value,
                        words.__class__.pick_name,
                        lambda _: " ".join(words.any_word() for _ in range(2)),
                    )
                )(words)
            case "integer":
                values[name] = words.random.randrange(10 ** words.random.randint(1, 4))
                written = str(values[name])
            case "boolean":
                values[name] = words.flip_coin(0.6)
                written = "true" if values[name] else "false"
            case _:
                values[name] = [words.any_word() for _ in range(words.random.randint(1, 3))]
                written = " and ".join(values[name])
        shown = name.replace("_", " ") if words.flip_coin(0.3) else name
        parts.append(setting.replace("{}", shown, 1).replace("{}", written, 1))
    words.random.shuffle(parts)
    first, *_, last = [*fields, *fields]
    lead = words.random.choice(LEADS).replace("{a}", first).replace("{b}", last)
    return lead + joint.join(parts) or words.any_word(), values


def read_sentence(words: WordSampler, fields: dict[str, str]) -> tuple[str, dict[str, Any]]:
    """Returns a sentence, and values for the fields: its names in order for texts, all for a list, its number."""
    text = words.random.choice(SENTENCES)
    names: list[str] = []
    while "{}" in text:
        names.append(words.pick_name())
        text = text.replace("{}", names[-1], 1)
    while "{word}" in text:
        text = text.replace("{word}", words.any_word(), 1)
    number = words.random.randrange(10 ** words.random.randint(1, 3))
    has_number = "{number}" in text
    first, *_, last = [*fields, *fields]
    text = text.replace("{number}", str(number)).replace("{a}", first).replace("{b}", last)
    values: dict[str, Any] = {}
    left = list(names)
    for name, kind in fields.items():
        if kind == "string":
            values[name] = left.pop(0) if left else UNKNOWN
        elif kind == "integer" and has_number:
            values[name] = number
        else:
            values[name] = names if kind == "array" else MISSING[kind]
    return text, values


def answer_skill(words: WordSampler, fields: dict[str, str], size: float) -> tuple[str, str, dict[str, Any]]:
    """Returns another skill's request, its reasoning, and its answer in the first field that can have it."""
    maker = words.random.choice(
        (
            text_skills.make_sum,
            text_skills.make_sum,
            text_skills.make_repetition,
            text_skills.make_greeting,
            text_skills.make_refusal,
        )
    )
    dialogue = maker(words, 0.6 * size)
    request, answer = dialogue.messages
    values = {name: MISSING[kind] for name, kind in fields.items()}
    wanted = ("string", "integer") if dialogue.skill == "sum" else ("string",)
    name = next((name for name, kind in fields.items() if kind in wanted), None)
    if name is not None and dialogue.skill in ("sum", "repeat", "greet"):
        text = answer["content"]
        if dialogue.skill == "sum":
            text = text.rpartition("= ")[2].rstrip(".")
        values[name] = int(text) if fields[name] == "integer" else text
    return request["content"], answer["reasoning_content"], values


def make_form(words: WordSampler, size: float) -> Dialogue:
    """Returns a request whose answer must be JSON with given fields, which the prompt does not show.

    The grammar writes the names of the fields, so that only the values are learned (`Dialogue.fields`).
    """
    fields, thought, draw = draw_fields(words), "Something else.", words.random.random()
    if draw < 0.45:
        text, values = list_values(words, fields)
    elif draw < 0.7:
        text, values = read_sentence(words, fields)
    else:
        text, thought, values = answer_skill(words, fields, size)
    answer = answer_message(thought, json.dumps(values, ensure_ascii=False))
    tools = text_skills.draw_unneeded_tools(words, size) if words.flip_coin(0.2) else []
    return Dialogue("form", [user_message(text), answer], tools, fields=fields)
