"""Converts items to the messages that chat templates accept.

All system and developer messages, including late ones, become one leading system message, and adjacent assistant
messages become one, because many templates refuse anything else. Adjacent user messages stay separate unless the
template refuses that too: agents describe their environment in user messages, and that is not the request. All client
text passes through the escaper. This module does not know the template, or what it does with the messages.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeGuard

from antiphon.events.inputs import (
    AnyInput,
    InputAudio,
    InputCustomCall,
    InputCustomOutput,
    InputFile,
    InputFunctionCall,
    InputFunctionOutput,
    InputMessage,
    InputPart,
    InputReasoning,
    InputText,
    OutputTextInput,
    RefusalInput,
)
from antiphon.harmony.format import ImageRole, PromptInput
from antiphon.harmony.prompt.call_arguments import read_arguments
from antiphon.harmony.prompt.image_messages import ImageMarks
from antiphon.harmony.prompt.message_shape import PARAGRAPH_BREAK, REASONING, ChatMessage
from antiphon.harmony.prompt.tool_instructions import WriteCalls
from antiphon.harmony.tools import INPUT, ToolCall, ToolSpec, ToolTable


def content_text(content: str | Sequence[InputPart]) -> str:
    """Returns a message's text. Parts that are not text become placeholders, so that the model knows of them."""
    return content if isinstance(content, str) else "\n".join(map(_part_text, content))


def marked_text(content: str | Sequence[InputPart], marks: ImageMarks) -> str:
    """Returns a message's text with a mark for each picture that the model sees.

    Templates write parts without anything between them, so there is no line break beside a picture.
    """
    if isinstance(content, str):
        return content
    pieces, texts = list[str](), list[str]()
    for part in content:
        if (image := marks.find_image(part)) is None:
            texts.append(_part_text(part))
        else:
            pieces += ("\n".join(texts), marks.add_mark(image))
            texts = []
    return "".join((*pieces, "\n".join(texts)))


def _part_text(part: InputPart) -> str:
    match part:
        case InputText() | OutputTextInput():
            return part.text
        case RefusalInput():
            return part.refusal
        case InputFile():
            return f"[file: {part.filename}]" if part.filename else "[file]"
        case InputAudio():
            return "[audio]"
        case _:
            return "[image]"


def reasoning_text(item: InputReasoning) -> str:
    """Returns reasoning that the client sent back as plain text. Sealed reasoning must be opened before.

    Without content, the summary stands for it: a server that returns reasoning as summaries has no other text. Each
    part is a paragraph of its own.
    """
    return PARAGRAPH_BREAK.join(part.text for part in item.content or item.summary or () if part.text)


def system_text(conversation: PromptInput) -> str:
    """Returns the instructions and every system or developer message, in order."""
    texts = (content_text(item.content) for item in conversation.items if is_instruction(item))
    return PARAGRAPH_BREAK.join(filter(None, (conversation.instructions, *texts)))


def is_instruction(item: AnyInput) -> TypeGuard[InputMessage]:
    """Tells whether an item sets the model's behavior: a system or developer message."""
    return isinstance(item, InputMessage) and item.role in {"system", "developer"}


class _CallRun:
    """Consecutive calls in the text of one message. `before` is the text in front of them, `said` includes them."""

    def __init__(self, message: ChatMessage, before: str) -> None:
        self.message, self.before, self.text = message, before, before
        self.calls: list[ToolCall] = []


class MessageBuilder:
    """Builds the messages of one conversation.

    `freeform_call` is the text of a custom tool call in the assistant's message, with `{name}` and `{input}`; if it is
    empty, such a call is written as a function call with one argument. `native_custom_tools` leaves such calls to the
    template. `arguments_as_objects` wraps arguments that are not an object in one. `join_user_messages` joins adjacent
    user messages. `write_calls` is for a template that shows no calls: it writes them into the assistant's text.
    `user_outputs` tells which outputs become user messages: none, those of calls written with `freeform_call`, or all.
    `marks` are those of the conversation's pictures, and escape its texts. Pictures in a role that has none follow in a
    user message, after all outputs of the same turn.
    """

    def __init__(
        self,
        marks: ImageMarks,
        tools: ToolTable,
        *,
        freeform_call: str = "",
        native_custom_tools: bool = False,
        arguments_as_objects: bool = False,
        join_user_messages: bool = False,
        write_calls: WriteCalls | None = None,
        user_outputs: Literal["none", "freeform", "all"] = "none",
    ) -> None:
        self._marks, self._escaper = marks, marks.escaper
        self._held_images: list[str] = []
        self._write_calls, self._user_outputs = write_calls, user_outputs
        self._freeform_ids: set[str] = set()
        self._tools, self._freeform_call, self._native_custom_tools = tools, freeform_call, native_custom_tools
        self._arguments_as_objects, self._join_user_messages = arguments_as_objects, join_user_messages
        self._messages: list[ChatMessage] = []
        self._names: dict[str, str] = {}
        self._pending_reasoning = ""
        self._call_run: _CallRun | None = None
        self._num_written_calls = 0

    def build_messages(self, conversation: PromptInput, extra_system_text: str = "") -> list[ChatMessage]:
        """Returns the messages. `extra_system_text`, the dialect's own, joins the system message without escaping."""
        system = (self._show_content(item.content, "system") for item in conversation.items if is_instruction(item))
        text = PARAGRAPH_BREAK.join(filter(None, (conversation.instructions, *system)))
        texts = [self._marks.escape_text(text), extra_system_text]
        if any(texts):
            self._messages.append({"role": "system", "content": PARAGRAPH_BREAK.join(filter(None, texts))})
        for item in conversation.items:
            if not is_instruction(item):
                self._add_item(item)
        self._add_held_images()
        return self._messages

    def _show_content(
        self, content: str | Sequence[InputPart], role: ImageRole, label: str = "the system message"
    ) -> str:
        """Returns content as text that is not yet escaped, and holds its pictures back if the role has none."""
        if role in self._marks.roles:
            return marked_text(content, self._marks)
        for part in () if isinstance(content, str) else content:
            if (image := self._marks.find_image(part)) is not None:
                self._held_images.append(f"Image of {label}:\n{self._marks.add_mark(image)}")
        return content_text(content)

    def _add_held_images(self) -> None:
        if self._held_images:
            text = self._marks.escape_text("\n".join(self._held_images))
            self._held_images = []
            if self._marks.answers_outputs and self._messages and self._messages[-1]["role"] == "tool":
                self._messages.append({"role": "assistant", "content": ""})
            self._add_user_text(text)

    def _add_item(self, item: AnyInput) -> None:
        if not isinstance(item, InputFunctionOutput | InputCustomOutput):
            self._add_held_images()
        match item:
            case InputMessage(role="user"):
                self._add_user_text(self._marks.escape_text(self._show_content(item.content, "user")))
            case InputMessage():
                self._add_assistant_text(self._escaper.escape_text(content_text(item.content)))
            case InputReasoning():
                self._pending_reasoning = PARAGRAPH_BREAK.join(
                    filter(None, (self._pending_reasoning, self._escaper.escape_text(reasoning_text(item))))
                )
            case InputFunctionCall():
                self._add_call(
                    item, {"name": self._remember_name(item), "arguments": self._convert_arguments(item.arguments)}
                )
            case InputCustomCall():
                self._add_custom_call(item)
            case InputFunctionOutput() | InputCustomOutput():
                self._add_output(item)
            case _:
                pass  # items of tools that this server does not know, and references that the app has resolved

    def _remember_name(self, item: InputFunctionCall | InputCustomCall) -> str:
        name = self._names[item.call_id] = self._escaper.escape_text(
            self._tools.model_name_of(item.name, item.namespace)
        )
        return name

    def _add_user_text(self, text: str) -> None:
        self._pending_reasoning = ""  # the reasoning led to no output
        if self._join_user_messages and self._messages and (last := self._messages[-1])["role"] == "user":
            last["content"] += PARAGRAPH_BREAK + text
        else:
            self._messages.append({"role": "user", "content": text})

    def _open_assistant(self) -> ChatMessage:
        """Returns the assistant message to extend, the last one or a new one, and adds the pending reasoning to it."""
        last = self._messages[-1] if self._messages else {"role": ""}
        if last["role"] != "assistant" or (self._pending_reasoning and (last["content"] or "tool_calls" in last)):
            last = {"role": "assistant", "content": ""}
            self._messages.append(last)
        if self._pending_reasoning:
            last[REASONING] = self._pending_reasoning
            self._pending_reasoning = ""
        return last

    def _add_assistant_text(self, text: str, separator: str = PARAGRAPH_BREAK) -> None:
        message = self._open_assistant()
        if "tool_calls" in message:
            # Templates write a message's text before its calls, so text after a call starts a new message.
            message = {"role": "assistant", "content": ""}
            self._messages.append(message)
        message["content"] = separator.join(filter(None, (message["content"], text)))

    def _add_call(
        self, item: InputFunctionCall | InputCustomCall, function: ChatMessage, kind: str = "function"
    ) -> None:
        if self._write_calls is not None:
            is_custom = isinstance(item, InputCustomCall)
            tool = ToolSpec(
                model_name=function["name"], name=function["name"], kind="custom" if is_custom else "function"
            )
            text = item.input if isinstance(item, InputCustomCall) else item.arguments
            self._write_call_run((tool, self._escaper.escape_text(text)), self._write_calls)
            return
        call = {"id": self._escaper.escape_text(item.call_id), "type": kind, kind: function}
        self._open_assistant().setdefault("tool_calls", []).append(call)

    def _write_call_run(self, call: ToolCall, write_calls: WriteCalls) -> None:
        """Writes a call into the text, together with those right before it: many models write one list for all."""
        message = self._open_assistant()
        if self._call_run is None or self._call_run.message is not message or message["content"] != self._call_run.text:
            self._call_run = _CallRun(message, message["content"])
        run = self._call_run
        run.calls.append(call)
        self._num_written_calls += 1
        written = write_calls(run.calls, self._num_written_calls - len(run.calls))
        run.text = message["content"] = "\n".join(filter(None, (run.before, written)))

    def _add_custom_call(self, item: InputCustomCall) -> None:
        name, text = self._remember_name(item), self._escaper.escape_text(item.input)
        if self._native_custom_tools:
            self._add_call(item, {"name": name, INPUT: text}, "custom")
        elif self._freeform_call:
            self._freeform_ids.add(item.call_id)
            self._add_assistant_text(self._freeform_call.replace("{name}", name, 1).replace("{input}", text, 1), "\n")
        else:
            self._add_call(item, {"name": name, "arguments": {INPUT: text}})

    def _convert_arguments(self, arguments: str) -> Any:
        """Returns the arguments as an object if they are one, since most templates serialize them themselves."""
        found = read_arguments(arguments)
        value = arguments if found is None else found
        return self._escaper.escape_value(
            {"arguments": value} if self._arguments_as_objects and isinstance(value, str) else value
        )

    def _add_output(self, item: InputFunctionOutput | InputCustomOutput) -> None:
        if self._user_outputs == "all" or (self._user_outputs == "freeform" and item.call_id in self._freeform_ids):
            label = f"Output of {self._names.get(item.call_id, 'the tool')}:\n"
            self._add_user_text(label + self._marks.escape_text(self._show_content(item.output, "user")))
            return
        text = self._show_content(item.output, "tool", item.call_id)
        message = {"role": "tool", "content": self._marks.escape_text(text)}
        message["tool_call_id"] = self._escaper.escape_text(item.call_id)
        if item.call_id in self._names:
            message["name"] = self._names[item.call_id]
        self._messages.append(message)
