"""Pictures in the messages of a conversation: marks in the texts of messages, which become parts for the template.

A message's text goes through many steps before the template gets it: it is joined with others, moved to another role,
or put behind its call. So a picture is a mark inside the text until then, and each mark says which picture it is.

A template may drop pictures, double them, or refuse them in some roles. So small conversations are rendered with none,
one and two pictures in each role, and a role has pictures only if the prompt has one placeholder for each of them.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Literal

from msgspec import Struct

from antiphon.events.inputs import (
    AnyInput,
    InputFunctionCall,
    InputFunctionOutput,
    InputImage,
    InputMessage,
    InputPart,
    InputText,
)
from antiphon.events.tools import FunctionTool
from antiphon.harmony.format import ImageRole, PromptInput
from antiphon.harmony.image_tokens import ImageTokens, PromptImage
from antiphon.harmony.tokens.special_tokens import SpecialTokenEscaper
from antiphon.harmony.tools import ToolTable

ImageKey = tuple[str, str | None]
ImagePart = Literal["image", "image_url"]
IMAGE_PARTS: Mapping[ImagePart, Mapping[str, Any]] = {
    "image": {"type": "image"},
    "image_url": {"type": "image_url", "image_url": {"url": ""}},
}
"""Forms in which templates take a picture, the most frequent one first."""

_PROBE_IMAGE_PART = InputImage(image_url="qhu:picture")
_IMAGES: Mapping[ImageKey, PromptImage] = {("qhu:picture", None): PromptImage(key=b"", rows=1, form="placeholder")}
_PROBE_WORDS = ("Qhufirst", "Qhusecond", "Qhuthird")
_CALL_ID = "call_0123456789abcdef"
_IMAGE_PROBE_TOOLS = ToolTable.from_request([FunctionTool(name="qhutool", description="Qhu.")])
_NEXT_TURN = (InputMessage(role="assistant", content="Qhu."), InputMessage(role="user", content="Qhu."))


class ImageShape(Struct, frozen=True, kw_only=True):
    """Form of pictures in a template. Without roles, it takes none; `refusal` is the reason, in one line."""

    part: ImagePart = "image"
    """Form of a picture in a list of parts."""
    roles: frozenset[ImageRole] = frozenset()
    placeholder: str = ""
    """The token that the template writes for each picture."""
    refusal: str = ""


ImageProbe = Callable[[PromptInput, ImageShape], str | None]
"""Renders a conversation with its pictures in a shape. Returns None if the template refuses it."""


TEXT_SHAPE = ImageShape(roles=frozenset(("user", "system", "tool")))
"""Shape for engines that take prompts with pictures as text: any template shows marks."""


class ImageSearch:
    """Search for the way in which a template takes pictures.

    `added_tokens` are the tokens that it may write. `has_tools`: it is used with tools only.
    """

    def __init__(
        self, render: ImageProbe, tokens: ImageTokens, added_tokens: Sequence[str], *, has_tools: bool
    ) -> None:
        self._render, self._tokens, self._added_tokens, self._has_tools = render, tokens, added_tokens, has_tools

    def find_shape(self) -> ImageShape:
        """Returns the shape of the first form that the template takes from the user."""
        for part in IMAGE_PARTS:
            shape = ImageShape(part=part, roles=frozenset[ImageRole](("user",)))
            for placeholder in self._list_placeholders(shape):
                shape = ImageShape(part=part, roles=shape.roles, placeholder=placeholder)
                if self._shows_all(shape, "user"):
                    return self._add_roles(shape)
        return ImageShape(refusal="its chat template does not write one placeholder for each image of the user")

    def _list_placeholders(self, shape: ImageShape) -> list[str]:
        """Returns the tokens that the template may have written for a picture, the likely ones first."""
        without, one = (self._render(self._converse("user", count), shape) or "" for count in (0, 1))
        written = [text for text in self._added_tokens if one.count(text) == without.count(text) + 1]
        named = [text for text in (self._tokens.soft_text, *self._tokens.names) if text in written]
        return named or (written if len(written) == 1 else [])

    def _add_roles(self, shape: ImageShape) -> ImageShape:
        for role in ("system", "tool"):
            wider = ImageShape(part=shape.part, roles=shape.roles | {role}, placeholder=shape.placeholder)
            if self._shows_all(wider, role):
                shape = wider
        return shape

    def _shows_all(self, shape: ImageShape, role: ImageRole) -> bool:
        """Tells whether the template writes one placeholder for each picture of a role, and all texts around them."""
        for count, is_over in product(range(3), (False, True)):
            rendered = self._render(self._converse(role, count, is_over=is_over), shape)
            if rendered is None or rendered.count(shape.placeholder) != count:
                return False
            if not all(word in rendered for word in _PROBE_WORDS[: count + 1]):
                return False
        return True

    def _converse(self, role: ImageRole, count: int, *, is_over: bool = False) -> PromptInput:
        """Returns a conversation with `count` pictures in a message of a role. `is_over`: another turn follows."""
        parts: list[InputText | InputImage] = [InputText(text=_PROBE_WORDS[0])]
        for word in _PROBE_WORDS[1 : count + 1]:
            parts += (_PROBE_IMAGE_PART, InputText(text=word))
        items = tuple(_list_items(role, tuple(parts)))
        tools = _IMAGE_PROBE_TOOLS if self._has_tools or role == "tool" else ToolTable()
        return PromptInput(items=(*items, *_NEXT_TURN) if is_over else items, tools=tools, images=_IMAGES)


def _list_items(role: ImageRole, parts: tuple[InputText | InputImage, ...]) -> Iterator[AnyInput]:
    if role == "system":
        yield InputMessage(role="system", content=parts)
        yield InputMessage(role="user", content="Qhu.")
        return
    yield InputMessage(role="user", content=parts if role == "user" else "Qhu.")
    if role == "tool":
        yield InputFunctionCall(call_id=_CALL_ID, name="qhutool", arguments="{}")
        yield InputFunctionOutput(call_id=_CALL_ID, output=parts)


def image_key(part: InputImage) -> ImageKey:
    """Returns what a picture is found by in `PromptInput.images`."""
    return part.image_url or part.file_id or "", part.detail


class ImageMarks:
    """Marks for the pictures of one conversation. `shown` are the pictures that have one, in order of their marks.

    `roles` are those whose messages may have pictures. `answers_outputs` puts an empty message of the assistant between
    outputs and the message with their pictures.
    """

    def __init__(
        self,
        escaper: SpecialTokenEscaper,
        images: Mapping[ImageKey, PromptImage] | None = None,
        roles: frozenset[ImageRole] = frozenset(),
        *,
        answers_outputs: bool = False,
    ) -> None:
        self.escaper, self.roles, self.answers_outputs = escaper, roles, answers_outputs
        self._images, self._mark = images if images and roles else {}, escaper.image_mark
        self._marks = re.compile(f"{self._mark}(\\d+){self._mark}")
        self.shown: list[PromptImage] = []

    def find_image(self, part: InputPart) -> PromptImage | None:
        """Returns the picture of a part; None for another part, and for a picture that the model does not see."""
        return self._images.get(image_key(part)) if self._images and isinstance(part, InputImage) else None

    def add_mark(self, image: PromptImage) -> str:
        """Returns a mark for a picture."""
        self.shown.append(image)
        return f"{self._mark}{len(self.shown) - 1}{self._mark}"

    def escape_text(self, text: str) -> str:
        """Returns a client's text with marks, escaped: each piece between marks by itself."""
        if self._mark not in text:
            return self.escaper.escape_text(text)
        pieces = self._marks.split(text)
        return "".join(
            f"{self._mark}{piece}{self._mark}" if index % 2 else self.escaper.escape_text(piece)
            for index, piece in enumerate(pieces)
        )

    def place_images(self, messages: Sequence[dict[str, Any]], form: ImagePart) -> tuple[PromptImage, ...]:
        """Gives each message with pictures its content in parts. Returns the pictures in the order of the messages.

        For engines that take text, a picture is a mark in the text.
        """
        placed: list[PromptImage] = []
        for message in messages if self.shown else ():
            content = message["content"]
            text = content[0]["text"] if isinstance(content, list) else content or ""
            pieces = self._marks.split(text)
            if len(pieces) == 1:
                continue
            placed += (self.shown[int(number)] for number in pieces[1::2])
            if self.shown[0].form == "text":
                text = self._mark.join(pieces[::2])
                message["content"] = [{"type": "text", "text": text}] if isinstance(content, list) else text
                continue
            message["content"] = [
                {**IMAGE_PARTS[form]} if index % 2 else {"type": "text", "text": piece}
                for index, piece in enumerate(pieces)
                if index % 2 or piece
            ]
        return tuple(placed)
