"""From items to the messages that chat templates know.

All system and developer messages, also late ones, become one leading system message, and neighbours of the assistant's
become one message, because many templates refuse anything else. Neighbours of the user's stay apart unless the template
refuses that, too: agents tell about their surroundings in the user's name, and that is not the request. Everything a
client wrote goes through the guard. Which template there is, and what it makes of the messages, is not known here.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

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
from antiphon.harmony.calls.base import INPUT
from antiphon.harmony.format import Conversation
from antiphon.harmony.tokens.special_tokens import Guard
from antiphon.harmony.tools import Offered, Sent, ToolTable

Message = dict[str, Any]
_APART = "\n\n"
NO_PARAMETERS = {"type": "object", "properties": {}}


def text_of(content: str | Sequence[InputPart]) -> str:
    """A message's text. What is no text is named, so that the model knows that something was there."""
    return content if isinstance(content, str) else "\n".join(map(_part, content))


def _part(part: InputPart) -> str:
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


def reasoning_of(item: InputReasoning) -> str:
    """Reasoning that came back in the open. What is sealed has to be opened before."""
    return "".join(part.text for part in item.content or ())


def system_of(conversation: Conversation) -> str:
    """The instructions and every system or developer message, in order."""
    said = (text_of(item.content) for item in conversation.items if instructs(item))
    return _APART.join(filter(None, (conversation.instructions, *said)))


def instructs(item: AnyInput) -> TypeGuard[InputMessage]:
    """Whether an item tells the model how to be, rather than what to answer."""
    return isinstance(item, InputMessage) and item.role in {"system", "developer"}


Spell = Callable[[Sequence[Sent]], str]
"""Writes calls as the model would."""


class _Run:
    """Calls in a row in the text of one message, which began with `before` and ends with them."""

    def __init__(self, message: Message, before: str) -> None:
        self.message, self.before, self.said = message, before, before
        self.calls: list[Sent] = []


class Messages:
    """Builds the messages of one conversation.

    `raw` writes a call of a custom tool into the text of the assistant's message, with `{name}` and `{input}`; without
    it such a call is written as a function's with one argument; `native` leaves it to the template. `objects`: also
    arguments that are no object become one. `joined`: neighbours of the user's become one message. `spell`: the
    template knows nothing of tools, so calls are written into the assistant's text by it, and the user tells outputs.
    """

    def __init__(
        self,
        guard: Guard,
        tools: ToolTable,
        *,
        raw: str = "",
        native: bool = False,
        objects: bool = False,
        joined: bool = False,
        spell: Spell | None = None,
    ) -> None:
        self._spell = spell
        self._guard, self._tools, self._raw, self._native = guard, tools, raw, native
        self._objects, self._joined = objects, joined
        self._messages: list[Message] = []
        self._names: dict[str, str] = {}
        self._thought = ""
        self._run: _Run | None = None

    def build(self, conversation: Conversation, lesson: str = "") -> list[Message]:
        """The messages. `lesson` is the dialect's own text and joins the system message as it is."""
        texts = [self._guard.text(system_of(conversation)), lesson]
        if any(texts):
            self._messages.append({"role": "system", "content": _APART.join(filter(None, texts))})
        for item in conversation.items:
            if not instructs(item):
                self._add(item)
        return self._messages

    def _add(self, item: AnyInput) -> None:
        match item:
            case InputMessage(role="user"):
                self._user(self._guard.text(text_of(item.content)))
            case InputMessage():
                self._say(self._guard.text(text_of(item.content)))
            case InputReasoning():
                self._thought = _APART.join(filter(None, (self._thought, self._guard.text(reasoning_of(item)))))
            case InputFunctionCall():
                self._call(item, {"name": self._name(item), "arguments": self._arguments(item.arguments)})
            case InputCustomCall():
                self._custom(item)
            case InputFunctionOutput() | InputCustomOutput():
                self._output(item)
            case _:
                pass  # items of tools that another server ran, and references that the app has resolved

    def _name(self, item: InputFunctionCall | InputCustomCall) -> str:
        name = self._names[item.call_id] = self._guard.text(self._tools.flat(item.name, item.namespace))
        return name

    def _user(self, text: str) -> None:
        self._thought = ""  # it led to nothing
        if self._joined and self._messages and (last := self._messages[-1])["role"] == "user":
            last["content"] += _APART + text
        else:
            self._messages.append({"role": "user", "content": text})

    def _assistant(self) -> Message:
        """The assistant's message that is being built: the last one, or one that begins with the reasoning held."""
        last = self._messages[-1] if self._messages else {"role": ""}
        if last["role"] != "assistant" or (self._thought and (last["content"] or "tool_calls" in last)):
            last = {"role": "assistant", "content": ""}
            self._messages.append(last)
        if self._thought:
            last["reasoning_content"] = self._thought
            self._thought = ""
        return last

    def _say(self, text: str, apart: str = _APART) -> None:
        message = self._assistant()
        if "tool_calls" in message:  # text after a call is another message: templates write text first
            message = {"role": "assistant", "content": ""}
            self._messages.append(message)
        message["content"] = apart.join(filter(None, (message["content"], text)))

    def _call(self, item: InputFunctionCall | InputCustomCall, function: Message, kind: str = "function") -> None:
        if self._spell is not None:
            custom = isinstance(item, InputCustomCall)
            offer = Offered(flat=function["name"], name=function["name"], kind="custom" if custom else "function")
            text = item.input if isinstance(item, InputCustomCall) else item.arguments
            self._spelled((offer, self._guard.text(text)), self._spell)
            return
        call = {"id": self._guard.text(item.call_id), "type": kind, kind: function}
        self._assistant().setdefault("tool_calls", []).append(call)

    def _spelled(self, call: Sent, spell: Spell) -> None:
        """Write a call into the text, together with those right before it: many models have one list for all."""
        message = self._assistant()
        if self._run is None or self._run.message is not message or message["content"] != self._run.said:
            self._run = _Run(message, message["content"])
        run = self._run
        run.calls.append(call)
        run.said = message["content"] = "\n".join(filter(None, (run.before, spell(run.calls))))

    def _custom(self, item: InputCustomCall) -> None:
        name, text = self._name(item), self._guard.text(item.input)
        if self._native:
            self._call(item, {"name": name, INPUT: text}, "custom")
        elif self._raw:
            self._say(self._raw.replace("{name}", name, 1).replace("{input}", text, 1), "\n")
        else:
            self._call(item, {"name": name, "arguments": {INPUT: text}})

    def _arguments(self, arguments: str) -> Any:
        """As an object where they are one: most templates put them into JSON themselves."""
        try:
            value = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            value = arguments
        value = value if isinstance(value, dict) else arguments
        return self._guard.value({"arguments": value} if self._objects and isinstance(value, str) else value)

    def _output(self, item: InputFunctionOutput | InputCustomOutput) -> None:
        if self._spell is not None:
            said = f"Output of {self._names.get(item.call_id, 'the tool')}:\n"
            self._user(said + self._guard.text(text_of(item.output)))
            return
        message = {"role": "tool", "content": self._guard.text(text_of(item.output))}
        message["tool_call_id"] = self._guard.text(item.call_id)
        if item.call_id in self._names:
            message["name"] = self._names[item.call_id]
        self._messages.append(message)


def taught(tools: ToolTable, guard: Guard, spell: Spell, *, custom: bool) -> str:
    """What a model is told of its tools where its template has no place for them; empty if there are none.

    `custom`: of tools that take raw text, too.
    """
    offered = [schema["function"] for schema in schemas(tools, guard, custom=custom, native=False)]
    if not offered:
        return ""
    listed = "\n".join(json.dumps(function, ensure_ascii=False) for function in offered)
    example = spell([(Offered(flat="NAME", name="NAME"), '{"PARAMETER": "VALUE"}')])
    told = f"You may call these tools:\n\n{listed}\n\nTo call one, write its name and its arguments so:\n{example}"
    return f"# Tools\n\n{told}"


def as_function(offer: Offered, text: str) -> str:
    """The arguments of a call; a custom tool's text as the one parameter of a function."""
    return json.dumps({INPUT: text}, ensure_ascii=False) if offer.kind == "custom" else text


def schemas(tools: ToolTable, guard: Guard, *, custom: bool, native: bool) -> list[Message]:
    """The tools as templates know them. `custom`: tools that take raw text, too, as functions unless `native`."""
    return [_schema(offer, guard, native=native) for offer in tools if custom or offer.kind == "function"]


def _schema(offer: Offered, guard: Guard, *, native: bool) -> Message:
    named = {"name": guard.text(offer.flat), "description": guard.text(offer.description)}
    if offer.kind == "custom" and native:
        return {"type": "custom", "custom": named}
    if offer.kind == "custom":
        properties = {INPUT: {"type": "string", "description": "The raw text."}}
        return {
            "type": "function",
            "function": {**named, "parameters": {"type": "object", "properties": properties, "required": [INPUT]}},
        }
    parameters = NO_PARAMETERS if offer.parameters is None else guard.value(offer.parameters)
    return {"type": "function", "function": {**named, "parameters": parameters}}


def lesson(text: str, tools: ToolTable, guard: Guard) -> str:
    """How to call the offered custom tools, in the dialect's own words; empty if there are none."""
    lines = [f"- {guard.text(offer.flat)}: {guard.text(_about(offer))}" for offer in tools if offer.kind == "custom"]
    return text.replace("{tools}", "\n".join(lines), 1) if lines else ""


def _about(offer: Offered) -> str:
    definition = getattr(offer.format, "definition", "")
    rules = f"\nIts text must match this grammar:\n{definition}" if definition else ""
    return f"{offer.description or 'no description'}{rules}"
