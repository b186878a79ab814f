"""Forms: the values of a JSON format whose names a grammar writes."""

from __future__ import annotations

import json
from typing import Any

from training import tool_definitions
from training.chat import Dialogue, answer_message, user_message
from training.skills import text_skills, tool_skills
from training.word_sampler import WordSampler

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
    "extract the {a} and the {b}: {} lives in {}.",
    "extract {a} and {b}: {} lives in {}.",
    "extract the {a} and the {b}: {} is {number} years old and lives in {}.",
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


def draw_fields(words: WordSampler) -> dict[str, str]:
    """Returns one to four fields of a form, with their types."""
    names: list[str] = []
    for _ in range(words.random.choice((1, 2, 2, 2, 3, 3, 4))):
        name = words.pick_noun() if words.flip_coin(0.5) else tool_definitions.make_parameter(words)
        if not words.evaluation and words.flip_coin(0.3):
            name = words.random.choice(("name", "city", "age", "answer", "title", "date", "sum", "result", "language"))
        names.append(name)
    kinds = (*("string",) * 6, "integer", "integer", "array", "boolean")
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
        if words.flip_coin(0.2):
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
            text_skills.make_repetition,
            text_skills.make_greeting,
            text_skills.make_refusal,
            text_skills.make_refusal,
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
    if draw < 0.4:
        text, values = list_values(words, fields)
    elif draw < 0.7:
        text, values = read_sentence(words, fields)
    else:
        text, thought, values = answer_skill(words, fields, size)
    answer = answer_message(thought, json.dumps(values, ensure_ascii=False))
    tools = text_skills.draw_unneeded_tools(words, size) if words.flip_coin(0.2) else []
    return Dialogue("form", [user_message(text), answer], tools, fields=fields)
