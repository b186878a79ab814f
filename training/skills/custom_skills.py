"""Custom tools, which the prompt lists like functions of one text, `input`: their calls are JSON, too."""

from __future__ import annotations

from training import phrases, tool_definitions
from training.chat import Dialogue, call_message, user_message
from training.skills import tool_skills
from training.word_sampler import WordSampler

CUSTOM_REQUESTS = [
    "{verb} the {noun}: {text}",
    "{verb} the {noun}: {text}",
    "{verb} a {noun}: {text}",
    "{verb} this {noun}: {text}",
    "{verb} the {noun} `{text}`",
    "use {name} with `{text}`",
    "call {name} with the text: {text}",
]
CUSTOM_VERBS = ["write", "send", "add", "make", "post", "create", "draw"]
"""Verbs of requests, which are words of both sides."""


def make_custom_call(words: WordSampler, size: float) -> Dialogue:
    """Returns a request that names a custom tool or its noun, and the call, whose input is the request's text."""
    noun = words.pick_noun()
    verb = words.random.choice(CUSTOM_VERBS)
    parts = words.random.choice(([verb, noun], [words.pick_word(words.verbs), noun], [noun], [noun, words.made_up()]))
    if words.evaluation and parts[0] == verb:  # tool names of the evaluation have words of its own side
        parts[0] = words.pick_word(words.verbs)
    tool = tool_definitions.make_tool(tool_definitions.style_name(words, parts), ["input"])
    name, text = tool_definitions.name_of(tool), phrases.make_phrase(words, 1, 1 + round(8 * size))
    wording = words.random.choice(CUSTOM_REQUESTS)
    if not wording.endswith("`") and words.flip_coin(0.5):
        text += "."
    request = wording.format(verb=verb, noun=noun, name=name, text=text)
    request = request[0].upper() + request[1:] if words.flip_coin(0.6) else request
    thought = tool_definitions.tool_line(tool) if "{name}" in wording else tool_definitions.tool_thought(tool, noun)
    tools = tool_definitions.mix_tools(words, [tool], tool_skills.draw_distractor_count(words, size), {noun})
    return Dialogue("custom", [user_message(request), call_message(thought, (name, {"input": text}))], tools)
