"""The skills of first questions: what a tool looks up, its JSON, a picture that is not there, and forms."""

import json
import re
from typing import Any

from tokenizers import Tokenizer

from training import chat, generator
from training.chat import Dialogue
from training.fixed_texts import NO_PICTURE
from training.skills import form_skills
from training.tool_definitions import name_of
from training.word_sampler import WordSampler, is_held_out

NUM_DIALOGUES = 150


def make_dialogues(skill: str) -> list[Dialogue]:
    return [generator.SKILLS[skill](WordSampler(f"questions {number}"), 1.0) for number in range(NUM_DIALOGUES)]


def called_function(message: chat.ChatMessage) -> tuple[str, dict[str, Any]]:
    (call,) = message["tool_calls"]
    arguments = call["function"]["arguments"]
    return call["function"]["name"], json.loads(arguments) if isinstance(arguments, str) else arguments


def test_lookup_calls_an_offered_tool_with_the_value_alone() -> None:
    for dialogue in make_dialogues("lookup"):
        name, arguments = called_function(dialogue.messages[-1])
        (tool,) = [tool for tool in dialogue.tools if name_of(tool) == name]
        ((parameter, value),) = arguments.items()
        assert list(tool["function"]["parameters"]["properties"]) == [parameter]
        text = dialogue.messages[0]["content"].rstrip("?. ")
        assert text.endswith(value) and not value.startswith(("the ", parameter.replace("_", " ") + " "))


def test_json_of_a_tool_is_repeated_as_the_template_shows_it() -> None:
    for dialogue in make_dialogues("json report"):
        output, report = dialogue.messages[-2]["content"], dialogue.messages[-1]["content"]
        json.loads(output)
        assert report == output or (report.endswith("…") and output.startswith(report[:-1]))
        assert report in chat.render_prompt(dialogue.messages[:-1], dialogue.tools)


def test_question_about_a_missing_picture_is_told_so() -> None:
    assert {dialogue.messages[-1]["content"] for dialogue in make_dialogues("no picture")} == {NO_PICTURE}
    assert not [word for word in re.findall("[A-Za-z]+", NO_PICTURE) if is_held_out(word)]


def test_form_is_json_with_its_fields_in_order() -> None:
    kinds = {"string": str, "integer": int, "boolean": bool, "array": list}
    for number in range(NUM_DIALOGUES):
        dialogue = form_skills.make_form(WordSampler(f"questions {number}"), 1.0)
        values = json.loads(dialogue.messages[-1]["content"])
        assert list(values) == list(dialogue.fields)
        assert all(type(values[name]) is kinds[kind] for name, kind in dialogue.fields.items())


def test_only_the_values_of_a_form_are_learned(tokenizer: Tokenizer) -> None:
    for number in range(NUM_DIALOGUES):
        dialogue = form_skills.make_form(WordSampler(f"questions {number}"), 1.0)
        ids, mask = chat.encode_dialogue(tokenizer, dialogue)
        context = tokenizer.encode(
            chat.render_prompt(dialogue.messages[:-1], dialogue.tools, dialogue.thinking), add_special_tokens=False
        ).ids
        learned = tokenizer.decode(
            [token for token, is_learned in list(zip(ids, mask, strict=True))[len(context) :] if is_learned],
            skip_special_tokens=False,
        )
        values = json.loads(dialogue.messages[-1]["content"])
        assert "</think>" not in learned and learned.endswith("}<|im_end|>")
        for value in values.values():
            assert json.dumps(value, ensure_ascii=False) in learned
        assert not any(f'"{name}": ' in learned for name in values if name not in dialogue.messages[0]["content"])


def test_call_of_a_custom_tool_has_the_text_of_the_request() -> None:
    for dialogue in make_dialogues("custom"):
        name, arguments = called_function(dialogue.messages[-1])
        (tool,) = [tool for tool in dialogue.tools if name_of(tool) == name]
        assert list(tool["function"]["parameters"]["properties"]) == list(arguments) == ["input"]
        assert dialogue.messages[0]["content"].rstrip("`").endswith(arguments["input"])
