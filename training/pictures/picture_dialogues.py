"""Dialogues with pictures: questions of a chat, and outputs of a tool that shows a file, as Codex's `view_image` does.

The model answers every question about a picture with the same full description. A picture stands in a message as
`{"type": "image"}`; what it shows is told beside the dialogue, in the order of the pictures in the prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from training import generator, phrases
from training.chat import ChatMessage, Dialogue, ToolDefinition, answer_message, call_message, user_message
from training.pictures.drawing import DIGIT_SHARE, OTHER_SHARE, Scene, draw_scene
from training.pictures.soft_words import describe_scene
from training.skills import codex_tools, text_skills
from training.tool_definitions import make_tool, mix_tools, tool_thought
from training.word_sampler import WordSampler

THOUGHT = "Report it."
QUESTIONS = (
    "what is in this picture?",
    "what is this?",
    "what do you see?",
    "what do you see in this picture?",
    "what does this image show?",
    "what does the picture show?",
    "describe the picture",
    "describe this image",
    "describe what you see",
    "tell me what is in the image",
    "what is shown here?",
    "which shape is this?",
    "what shape is it?",
    "which digit is this?",
    "what number is in the picture?",
    "what colour is it?",
    "what color is the background?",
    "what colour is the shape?",
    "read the digit",
    "name the shape and the colour",
    "can you see this picture?",
    "look at this",
    "please describe the image",
    "what's in the image?",
    "",
)
"""Requests that come with a picture. The last one is a picture alone."""
REQUESTS = (
    "look at {}",
    "look at {} and tell me what you see",
    "view {}",
    "view the image {}",
    "view the picture {}",
    "show me {}",
    "what is in {}?",
    "what does {} show?",
    "describe {}",
    "describe the image {}",
    "open {} and describe it",
    "use view_image with {}",
    "what is in the picture {}?",
    "use view_image to look at {}",
)
"""Requests about a file with a picture."""
ENDINGS = ("png", "png", "jpg", "webp", "gif")


@dataclass(frozen=True)
class PictureDialogue:
    """A dialogue, and what each of its pictures shows."""

    dialogue: Dialogue
    scenes: list[Scene]


def picture_message(text: str, first: bool = True) -> ChatMessage:
    """Returns a user message with a picture before or after its text."""
    parts: list[dict[str, Any]] = [{"type": "image"}, {"type": "text", "text": text}]
    return {"role": "user", "content": parts if first else parts[::-1]}


def make_question(words: WordSampler, scene: Scene) -> list[ChatMessage]:
    """Returns a chat's question about a picture and its answer."""
    text = words.random.choice(QUESTIONS)
    text = text_skills.style_request(words, text.rstrip("?"), "?. ") if text else ""
    message = picture_message(text, words.flip_coin(0.5))
    if words.flip_coin(0.15):
        # So the terminal interface of Codex sends a picture that was pasted.
        number = words.random.randint(1, 3)
        frame = [{"type": "text", "text": f"<image name=[Image #{number}]>"}, {"type": "image"}]
        message["content"] = [*frame, {"type": "text", "text": "</image>"}, {"type": "text", "text": text}]
    return [message, answer_message(THOUGHT, describe_scene(scene))]


def make_file_name(words: WordSampler) -> str:
    """Returns the path of a picture."""
    folder = f"{phrases.make_path(words).rstrip('/')}/" if words.flip_coin(0.3) else ""
    return f"{folder}{words.any_word()}.{words.random.choice(ENDINGS)}"


def make_view(words: WordSampler, scene: Scene) -> list[ChatMessage]:
    """Returns a request to look at a file, the call of the tool, its output with the picture, and the answer."""
    path, tool = make_file_name(words), make_tool("view_image", ["path"])
    request = text_skills.style_request(words, words.random.choice(REQUESTS).format(path).rstrip("?"), "?. ")
    call = call_message(tool_thought(tool, "view_image"), ("view_image", {"path": path}))
    if words.flip_coin(0.3):
        del call["reasoning_content"]
    content: list[dict[str, Any]] = [{"type": "image"}]
    if words.flip_coin(0.2):
        content.append({"type": "text", "text": words.random.choice((path, "attached local image path", "image"))})
    output = {"role": "tool", "tool_call_id": "call_0", "content": content}
    return [user_message(request), call, output, answer_message(THOUGHT, describe_scene(scene))]


def make_tools(words: WordSampler, crowd: float) -> list[ToolDefinition]:
    """Returns the tools of a client with `view_image`: mostly a few; with a chance of `crowd`, all of Codex's."""
    if words.flip_coin(crowd):
        return codex_tools.make_codex_tools(words)
    return mix_tools(words, [make_tool("view_image", ["path"])], words.random.randint(0, 4), set())


def make_picture_dialogue(
    seed: str,
    surroundings: float = 1.0,
    evaluation: bool = False,
    digits: float = DIGIT_SHARE,
    others: float = OTHER_SHARE,
) -> PictureDialogue:
    """Returns a dialogue whose last answer is learned: mostly a description, else another skill after a picture.

    `surroundings` is the share of dialogues with tools or a system text, `digits` that of digits among the
    pictures, `others` that of pictures without a known figure.
    """
    words = WordSampler(seed, evaluation=evaluation)
    random = np.random.default_rng(words.random.getrandbits(63))
    scenes = [draw_scene(random, digits, others)]
    make_messages = make_view if words.flip_coin(0.4) else make_question
    skill, messages = "view" if make_messages is make_view else "picture", make_messages(words, scenes[0])
    draw = words.random.random()
    if draw < 0.12:
        scenes.append(draw_scene(random, digits, others))
        messages += (make_view if words.flip_coin(0.4) else make_question)(words, scenes[1])
    elif draw < 0.25 and not evaluation:
        make_other = words.random.choice((text_skills.make_repetition, text_skills.make_sum, text_skills.make_greeting))
        skill, messages = "after picture", messages + make_other(words, 0.5).messages
    thinking, tools = skill == "after picture" or not words.flip_coin(0.08), []
    if words.flip_coin(surroundings):
        if words.flip_coin(0.5):
            messages = [generator.system_message(words), *messages]
        tools = make_tools(words, 0.25) if skill == "view" else text_skills.draw_unneeded_tools(words, 0.3)
    return PictureDialogue(Dialogue(skill, messages, tools, thinking), scenes)
