"""Finds the shape in which a chat template takes messages, by rendering small conversations.

A template that does not take a shape raises an error, or, worse, leaves a part of the conversation out. So every probe
holds rare words, and a shape fits only if the rendered prompt holds them in order.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import product

from msgspec.structs import replace

from antiphon.events.inputs import (
    AnyInput,
    InputCustomCall,
    InputCustomOutput,
    InputFunctionCall,
    InputFunctionOutput,
    InputMessage,
    InputReasoning,
)
from antiphon.events.items import ReasoningText
from antiphon.events.tools import FunctionTool
from antiphon.harmony.format import PromptInput
from antiphon.harmony.prompt.message_shape import MessageShape
from antiphon.harmony.tools import ToolTable

RenderProbe = Callable[[PromptInput, MessageShape], str | None]
"""Renders a conversation in a shape. Returns None if the template refuses it."""
_SYSTEM, USER, _ASSISTANT, THOUGHT = "Qhusystem", "Qhuuser", "Qhutext", "Qhuthought"
NAME, _OTHER_NAME = "qhutool", "qhuother"
_VALUES = ("Qhuvalue", "Qhuother")
_OUTPUTS = ("Qhuresult", "Qhuoutcome")
_IDS = ("call_0123456789abcdef", "call_fedcba9876543210")
VALUE, OUTPUT = _VALUES[0], _OUTPUTS[0]
_PARAMETERS = {"type": "object", "properties": {"qhukey": {"type": "string"}}}
_TOOLS = ToolTable.from_request(
    [FunctionTool(name=name, description="Qhu.", parameters=_PARAMETERS) for name in (NAME, _OTHER_NAME)]
)
_USER_MESSAGE = InputMessage(role="user", content=USER)
_REASONING = InputReasoning(content=(ReasoningText(text=THOUGHT),))
_ASSISTANT_MESSAGE = InputMessage(role="assistant", content=_ASSISTANT)


def _call(index: int) -> InputFunctionCall:
    name = (NAME, _OTHER_NAME)[index]
    return InputFunctionCall(call_id=_IDS[index], name=name, arguments=f'{{"qhukey": "{_VALUES[index]}"}}')


def _output(index: int) -> InputFunctionOutput:
    return InputFunctionOutput(call_id=_IDS[index], output=_OUTPUTS[index])


QUESTION = PromptInput(items=(_USER_MESSAGE,), tools=_TOOLS)
CALL_CONVERSATION = PromptInput(items=(_USER_MESSAGE, _call(0), _output(0)), tools=_TOOLS)
REASONING_CONVERSATION = PromptInput(
    items=(_USER_MESSAGE, _REASONING, _call(0), _output(0)), tools=_TOOLS, effort="high"
)


class ShapeSearch:
    """Search for the shape that a template takes.

    `think`: pairs of markers around the model's reasoning. `has_tools`: the template is used with tools only.
    `names_tool_role`: it names the role of outputs.
    """

    def __init__(
        self,
        render: RenderProbe,
        think: Sequence[tuple[str, str]] = (),
        *,
        has_tools: bool,
        names_tool_role: bool,
    ) -> None:
        self._render, self._think = render, think
        self._tools = _TOOLS if has_tools else ToolTable()
        self._names_tool_role = names_tool_role
        self._shape = MessageShape()

    def find_shape(self) -> MessageShape:
        """Returns the shape. Where nothing fits, tools, calls and outputs become text."""
        self._find_text_shape()
        self._find_tool_place()
        self._find_call_shape()
        if self._think:
            self._find_reasoning_place()
        return self._shape

    def _find_text_shape(self) -> None:
        shape = self._shape
        plain = [
            replace(shape, content_parts=parts, omits_missing_tools=omits)
            for parts, omits in product((False, True), repeat=2)
        ]
        self._choose(plain, PromptInput(items=(_USER_MESSAGE,), tools=self._tools), (USER,))
        with_system = [self._shape, replace(self._shape, system_in_user=True)]
        conversation = PromptInput(instructions=_SYSTEM, items=(_USER_MESSAGE,), tools=self._tools)
        self._choose(with_system, conversation, (_SYSTEM, USER), ordered=False)

    def _find_tool_place(self) -> None:
        places = ("tools", "system", "xml_tools", "words")
        candidates = [replace(self._shape, tools_in=place) for place in places]
        conversation = PromptInput(instructions=_SYSTEM, items=(_USER_MESSAGE,), tools=_TOOLS)
        if not self._choose(candidates, conversation, (NAME, _OTHER_NAME), ordered=False):
            self._shape = replace(self._shape, tools_in="words")

    def _find_call_shape(self) -> None:
        one = (_USER_MESSAGE, _call(0), _output(0))
        parts = (USER, NAME, _VALUES[0], _OUTPUTS[0])
        if not self._choose(self._list_call_shapes(), self._with_tools(one), parts):
            self._shape = replace(self._shape, written_calls=True, user_outputs="all")
        self._prefer_null_content(self._with_tools(one), parts)
        text_and_call = (_USER_MESSAGE, _ASSISTANT_MESSAGE, _call(0), _output(0))
        self._choose(
            [self._shape, replace(self._shape, separate_calls=True)],
            self._with_tools(text_and_call),
            (USER, _ASSISTANT, _VALUES[0], _OUTPUTS[0]),
            ordered=False,
        )
        two = (_USER_MESSAGE, _call(0), _call(1), _output(0), _output(1))
        self._choose(
            [self._shape, replace(self._shape, single_call=True)],
            self._with_tools(two),
            (NAME, _VALUES[0], _OTHER_NAME, _VALUES[1], *_OUTPUTS),
            ordered=False,
        )
        custom_call = InputCustomCall(call_id=_IDS[0], name=NAME, input=_VALUES[0])
        custom_output = InputCustomOutput(call_id=_IDS[0], output=_OUTPUTS[0])
        self._choose(  # some templates refuse an output that follows no call of theirs
            [self._shape, replace(self._shape, user_outputs="freeform")],
            self._with_tools((_USER_MESSAGE, custom_call, custom_output)),
            (USER, _VALUES[0], _OUTPUTS[0]),
        )
        self._choose(  # some templates write the system text only before a user message at the end
            [self._shape, replace(self._shape, system_in_user=True)],
            replace(self._with_tools(one), instructions=_SYSTEM),
            (_SYSTEM, *parts),
            ordered=False,
        )

    def _find_reasoning_place(self) -> None:
        """Takes the first place from which the template shows reasoning between a question and a call."""
        places = ("reasoning_content", "reasoning", "thinking", "thought", "part", "text")
        for place in places:
            shape = replace(self._shape, reasoning_in=place)
            rendered = self._render(REASONING_CONVERSATION, shape)
            if rendered is None or not _holds(rendered, (USER, THOUGHT, _VALUES[0], _OUTPUTS[0]), ordered=True):
                continue
            # A template that writes any content may write a list as Python does.
            if place != "part" or follows_opener(rendered, self._think):
                self._shape = shape
                return

    def _prefer_null_content(self, conversation: PromptInput, parts: Sequence[str]) -> None:
        """Takes None as the text of calls if the template writes an empty message for an empty text."""
        with_null = replace(self._shape, null_content=True)
        rendered, shorter = self._render(conversation, self._shape), self._render(conversation, with_null)
        if rendered and shorter and len(shorter) < len(rendered) and _holds(shorter, parts, ordered=True):
            self._shape = with_null

    def _list_call_shapes(self) -> list[MessageShape]:
        """Returns the forms of calls and outputs: the template's own ones first, then text."""
        native = [
            replace(self._shape, null_content=null, short_ids=short, text_arguments=text)
            for null, short, text in product((False, True), repeat=3)
        ]
        written = replace(self._shape, written_calls=True)
        # A template that writes any role may write one that its model has never seen.
        knows_outputs = self._names_tool_role or self._shape.tools_in != "words"
        return [
            *native,
            *(replace(shape, user_outputs="all") for shape in native),
            *([written] if knows_outputs else []),
            replace(written, user_outputs="all"),
        ]

    def _with_tools(self, items: Sequence[AnyInput]) -> PromptInput:
        return PromptInput(items=tuple(items), tools=_TOOLS)

    def _choose(
        self,
        candidates: Iterable[MessageShape],
        conversation: PromptInput,
        parts: Sequence[str],
        *,
        ordered: bool = True,
    ) -> bool:
        """Takes the first candidate whose prompt holds the parts. Tells whether there is one."""
        for shape in candidates:
            rendered = self._render(conversation, shape)
            if rendered is not None and _holds(rendered, parts, ordered=ordered):
                self._shape = shape
                return True
        return False


def follows_opener(rendered: str, think: Sequence[tuple[str, str]]) -> bool:
    """Tells whether the reasoning in a prompt follows a marker that opens it."""
    before = rendered[: rendered.index(THOUGHT)].rstrip()
    return any(before.endswith(opener.rstrip()) for opener, _ in think)


def _holds(rendered: str, parts: Sequence[str], *, ordered: bool) -> bool:
    """Tells whether a prompt holds the parts, in order if `ordered`."""
    if not ordered:
        return all(part in rendered for part in parts)
    index = 0
    for part in parts:
        index = rendered.find(part, index)
        if index < 0:
            return False
        index += len(part)
    return True
