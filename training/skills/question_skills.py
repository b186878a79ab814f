"""The skills of first questions: a clock's tool and its JSON, and a picture that is not there.

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


def make_zone(words: WordSampler) -> str:
    """Returns a value such as a time zone's name; in a fourth of the cases, any other value."""
    draw = words.random.random()
    if draw < 0.45:
        return f"{words.pick_name()}/{words.pick_name()}"
    if draw < 0.6:
        return f"{words.pick_name()}/{words.pick_name()}_{words.pick_name()}"
    return words.pick_name() if draw < 0.75 else phrases.make_value(words)


def make_clock_tools(words: WordSampler) -> list[ToolDefinition]:
    """Returns the two tools of `mcp-server-time`, behind the label that the operator gave to the server, if any."""
    prefix = words.random.choice(("time__", "time__", "", f"{words.made_up()}__"))
    return [
        tool_definitions.make_tool(f"{prefix}get_current_time", ["timezone"]),
        tool_definitions.make_tool(f"{prefix}convert_time", ["source_timezone", "time", "target_timezone"]),
    ]


def make_lookup_tools(words: WordSampler, noun: str, param: str) -> list[ToolDefinition]:
    """Returns the tools of a server: one that looks the noun up and, in most cases, one that converts it."""
    if not words.evaluation and (noun, param) == ("time", "timezone") and words.flip_coin(0.6):
        return make_clock_tools(words)
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
    shown = "time zone" if param == "timezone" and words.flip_coin(0.4) else param.replace("_", " ")
    text = words.random.choice(LOOKUPS).replace("{noun}", noun).replace("{param}", shown)
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


def make_clock_output(words: WordSampler) -> dict[str, Any]:
    """Returns what `mcp-server-time` returns as the current time."""
    year, month, day = (words.random.randrange(*bounds) for bounds in ((2000, 2040), (1, 13), (1, 29)))
    clock = ":".join(f"{words.random.randrange(60):02d}" for _ in range(2))
    offset = f"{words.random.choice('+-')}{words.random.randrange(13):02d}:{words.random.choice(('00', '00', '30'))}"
    return {
        "timezone": make_zone(words),
        "datetime": f"{year}-{month:02d}-{day:02d}T{words.random.randrange(24):02d}:{clock}{offset}",
        "day_of_week": words.any_word().capitalize(),
        "is_dst": words.flip_coin(0.4),
    }


def make_json_output(words: WordSampler) -> str:
    """Returns a JSON object as a tool gives it: on several lines, or on one."""
    if not words.evaluation and words.flip_coin(0.2):
        value = make_clock_output(words)
        if words.flip_coin(0.15):
            value = {"source": value, "target": make_clock_output(words), "time_difference": "+1.0h"}
        return json.dumps(value, indent=2, ensure_ascii=False)
    keys = [words.pick_noun() if words.flip_coin(0.4) else tool_definitions.make_parameter(words) for _ in range(5)]
    keys = list(dict.fromkeys(keys))[: words.random.randint(1, 5)]
    value = {key: make_json_value(words) for key in keys}
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
