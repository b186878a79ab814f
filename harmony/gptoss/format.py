"""The format of gpt-oss: its vocabulary and its prompts, both by `openai_harmony`.

The library renders, because the prompt's every blank was trained on; it does not read, because it gives up where a
model errs. What follows from an answer is not known here.
"""

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import openai_harmony as library  # type: ignore[import-untyped] # it says nothing of its types to mypy
from openai_harmony import Author, HarmonyEncoding, Role

from antiphon.events.inputs import (
    AnyInput,
    InputCustomCall,
    InputCustomOutput,
    InputFunctionCall,
    InputFunctionOutput,
    InputMessage,
    InputReasoning,
)
from antiphon.harmony import grammar
from antiphon.harmony.format import Conversation, Prompt, RenderError, asked_of
from antiphon.harmony.gptoss.reader import MARKERS, GptOssReader
from antiphon.harmony.prompt import messages as render
from antiphon.harmony.tokens.detokenizer import Alphabet
from antiphon.harmony.tokens.encode_cache import Memory
from antiphon.harmony.tools import Offered, ToolTable

_ELSEWHERE = "TIKTOKEN_ENCODINGS_BASE"
_EFFORTS = {
    "none": "LOW",
    "minimal": "LOW",
    "low": "LOW",
    "medium": "MEDIUM",
    "high": "HIGH",
    "xhigh": "HIGH",
    "max": "HIGH",
}
_FREEFORM = (
    "Freeform: the message to this tool is its raw input text, as it is, with content type code and without JSON."
)


@cache
def encoding() -> HarmonyEncoding:
    """The library's vocabulary: it takes half a second to set up, so once, and only when it is needed."""
    base = os.environ.get(_ELSEWHERE)
    astray = base is not None and not Path(base, "o200k_base.tiktoken").is_file()
    if astray:
        # The variable goes before the vocabulary that the library carries, also where it points to nothing.
        del os.environ[_ELSEWHERE]
    try:
        return library.load_harmony_encoding("HarmonyGptOss")
    finally:
        if astray and base is not None:
            os.environ[_ELSEWHERE] = base


class GptOssVocabulary:
    """See `Vocabulary`. All added tokens are control tokens."""

    def __init__(self) -> None:
        self._inner: Any = encoding()._inner  # the public face decodes to text only, not to bytes
        names = sorted(encoding().special_tokens_set)
        self.added: Mapping[str, int] = {name: self._inner.encode(name, [name])[0] for name in names}
        self.special = frozenset(self.added.values())

    def piece(self, token: int) -> bytes | None:
        """A token's bytes; None for an id that is no token."""
        try:
            raw: bytes = self._inner.decode_bytes([token])
        except (library.HarmonyError, OverflowError):
            return None
        return raw

    def pieces(self, tokens: Sequence[int]) -> bytes:
        """The bytes of all tokens together; ids that are no tokens have none."""
        try:
            raw: bytes = self._inner.decode_bytes(list(tokens))  # sixteen times as fast as one by one
        except (library.HarmonyError, OverflowError):
            return b"".join(self.piece(token) or b"" for token in tokens)
        return raw

    def encode(self, text: str) -> list[int]:
        """Text to ids; added tokens in it become their ids."""
        ids: list[int] = encoding().encode(text, allowed_special="all")
        return ids


class GptOssFormat:
    """See `Format`."""

    name = "gpt-oss"

    def __init__(self) -> None:
        self._vocabulary = GptOssVocabulary()
        self._alphabet = Alphabet(self._vocabulary, MARKERS)
        self.stop_ids = tuple(self._vocabulary.added[end] for end in ("<|return|>", "<|call|>"))
        self.end_ids = (*self.stop_ids, self._vocabulary.added["<|end|>"])
        self._opener = self._vocabulary.encode("<|start|>assistant")
        self._memory = Memory()

    def render(self, conversation: Conversation, *, now: datetime, owner: str = "") -> Prompt:
        """Lay the conversation out for the model. Raises `RenderError`."""
        try:
            head = library.Conversation.from_messages(_head(conversation, now))
            tokens = [*self._memory.ids(owner, head.to_json(), partial(encoding().render_conversation, head))]
            for message in _History(conversation).messages():
                tokens += self._memory.ids(owner, message.to_json(), partial(encoding().render, message))
            tokens += self._opener
        except (library.HarmonyError, ValueError, RecursionError) as error:
            raise RenderError(f"The conversation cannot be put to this model: {error}"[:300], "input") from error
        return Prompt(tuple(tokens), self.decode(tokens))

    def reader(self, prompt: Prompt, conversation: Conversation) -> GptOssReader:  # noqa: ARG002 - every prompt ends alike
        """A reader for the answer to this prompt."""
        return GptOssReader(self._alphabet, conversation)

    def grammar(self, prompt: Prompt, conversation: Conversation) -> str | None:  # noqa: ARG002 - every prompt ends alike
        """All answers that read well from this prompt on: thoughts and preambles, then an answer or a call."""
        rules = grammar.Grammar(self._vocabulary.added)
        start, end, message, channel, constrain, over, _ = map(rules.marker, MARKERS)
        text = f"{rules.free()}?"  # no text can hold a control token
        rules.rule("aside", *(f'{channel} "{name}" {message} {text} {end} {start} "assistant"' for name in _ASIDES))
        asked = asked_of(conversation)
        final = text if asked.answer is None else f"GAP {rules.json(asked.answer)}"
        sides = [] if asked.required else [f'{channel} "final" {message} {final} {over}?']
        for offer in conversation.callable:
            to = f'" to=functions.{offer.flat}"'
            kind, body = _typed(offer, rules, constrain)
            header = f'({to} {channel} "commentary" | {channel} "commentary{to[1:]})'
            sides.append(f"{header} {kind} {message} {body}")
        return rules.finish(*(f"aside* {side}" for side in sides)) if sides else None

    def encode(self, text: str) -> list[int]:
        """Text as the model would speak it: markers become their ids."""
        return self._vocabulary.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """All of the tokens' text, markers and control tokens included."""
        return self._vocabulary.pieces(tokens).decode("utf-8", "replace")

    def token(self, token: int) -> tuple[str, bytes]:
        """A token's text, with replacement characters where it holds part of one only, and its bytes."""
        raw = self._vocabulary.piece(token) or b""
        return raw.decode("utf-8", "replace"), raw


_ASIDES = ("analysis", "commentary")


def _typed(offer: Offered, rules: grammar.Grammar, constrain: str) -> tuple[str, str]:
    """A call's content type and body, as a grammar's right-hand sides."""
    if offer.kind == "custom":
        return f'(" "? {constrain}? " "? "code")?', rules.raw(offer, "<|call|>")
    return f'(" "? {constrain}? " "? "json")?', f"{rules.json(offer.parameters)} {rules.marker('<|call|>')}"


def _offered(conversation: Conversation) -> ToolTable:
    return conversation.tools if conversation.tool_choice != "none" else ToolTable()


def _head(conversation: Conversation, now: datetime) -> list[library.Message]:
    """What stands before the history. How its first message is laid out depends on the second."""
    effort = getattr(library.ReasoningEffort, _EFFORTS.get(conversation.effort or "medium", "MEDIUM"))
    system = library.SystemContent.new().with_reasoning_effort(effort)
    messages = [
        library.Message.from_role_and_content(Role.SYSTEM, system.with_conversation_start_date(f"{now:%Y-%m-%d}"))
    ]
    instructions, tools = render.system_of(conversation), [_described(offer) for offer in _offered(conversation)]
    if instructions or tools:
        developer = library.DeveloperContent.new()
        developer = developer.with_instructions(instructions) if instructions else developer
        developer = developer.with_function_tools(tools) if tools else developer
        messages.append(library.Message.from_role_and_content(Role.DEVELOPER, developer))
    return messages


def _described(offer: Offered) -> library.ToolDescription:
    description = f"{offer.description}\n{_FREEFORM}".strip() if offer.kind == "custom" else offer.description
    if definition := getattr(offer.format, "definition", ""):
        description = f"{description}\nIts text must match this grammar:\n{definition}"
    return library.ToolDescription.new(offer.flat, description, _tidy(offer.parameters))


def _tidy(schema: Any) -> Any:
    """The schema without line ends in its keys, which the library pastes into the prompt as they are."""
    if isinstance(schema, dict):
        return {" ".join(str(key).split()): _tidy(part) for key, part in schema.items()}
    return [_tidy(part) for part in schema] if isinstance(schema, list) else schema


class _History:
    """Earlier items as messages of the library."""

    def __init__(self, conversation: Conversation) -> None:
        self._items = [item for item in conversation.items if not render.instructs(item)]
        self._names = {
            item.call_id: f"functions.{conversation.tools.flat(item.name, item.namespace)}"
            for item in self._items
            if isinstance(item, InputFunctionCall | InputCustomCall)
        }

    def messages(self) -> list[library.Message]:
        """All that the model is shown: not the reasoning from before the last final answer, as it was trained."""
        channels = [self._channel(place) for place in range(len(self._items))]
        last = max((place for place, channel in enumerate(channels) if channel == "final"), default=-1)
        shown = (
            self._message(item, channel)
            for place, (item, channel) in enumerate(zip(self._items, channels, strict=True))
            if place > last or channel != "analysis"
        )
        return [message for message in shown if message is not None]

    def _channel(self, place: int) -> str:
        """Where the model wrote an item; text before a call is a preamble, where the client did not keep its phase."""
        item = self._items[place]
        if isinstance(item, InputReasoning):
            return "analysis"
        if not (isinstance(item, InputMessage) and item.role == "assistant"):
            return "commentary"
        later = (item for item in self._items[place + 1 :] if not isinstance(item, InputReasoning))
        called = isinstance(next(later, None), InputFunctionCall | InputCustomCall)
        return "commentary" if item.phase == "commentary" or (item.phase is None and called) else "final"

    def _message(self, item: AnyInput, channel: str) -> library.Message | None:
        match item:
            case InputMessage(role="user"):
                return library.Message.from_role_and_content(Role.USER, render.text_of(item.content))
            case InputMessage():
                return _assistant(render.text_of(item.content), channel)
            case InputReasoning():
                text = render.reasoning_of(item)
                return _assistant(text, channel) if text else None
            case InputFunctionCall():
                return self._call(item.call_id, item.arguments, "<|constrain|>json")
            case InputCustomCall():
                return self._call(item.call_id, item.input, "code")
            case InputFunctionOutput() | InputCustomOutput():
                author = Author.new(Role.TOOL, self._names.get(item.call_id, "functions.unknown"))
                message = library.Message.from_author_and_content(author, render.text_of(item.output))
                return message.with_channel(channel).with_recipient("assistant")
        return None

    def _call(self, call_id: str, text: str, kind: str) -> library.Message:
        return _assistant(text, "commentary").with_recipient(self._names[call_id]).with_content_type(kind)


def _assistant(text: str, channel: str) -> library.Message:
    return library.Message.from_role_and_content(Role.ASSISTANT, text).with_channel(channel)
