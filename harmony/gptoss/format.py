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
from antiphon.harmony.format import PromptInput, RenderedPrompt, RenderError, answer_requirements
from antiphon.harmony.gptoss.reader import MARKERS, GptOssReader
from antiphon.harmony.prompt.messages import content_text, is_instruction, reasoning_text, system_text
from antiphon.harmony.tokens.detokenizer import MarkerAlphabet
from antiphon.harmony.tokens.encode_cache import EncodingCache
from antiphon.harmony.tools import ToolSpec, ToolTable

_ENCODINGS_VARIABLE = "TIKTOKEN_ENCODINGS_BASE"
_EFFORTS = {
    "none": "LOW",
    "minimal": "LOW",
    "low": "LOW",
    "medium": "MEDIUM",
    "high": "HIGH",
    "xhigh": "HIGH",
    "max": "HIGH",
}
_FREEFORM_NOTE = (
    "Freeform: the message to this tool is its raw input text, as it is, with content type code and without JSON."
)


@cache
def load_encoding() -> HarmonyEncoding:
    """The library's vocabulary: it takes half a second to set up, so once, and only when it is needed."""
    base = os.environ.get(_ENCODINGS_VARIABLE)
    astray = base is not None and not Path(base, "o200k_base.tiktoken").is_file()
    if astray:
        # The variable goes before the vocabulary that the library carries, also where it points to nothing.
        del os.environ[_ENCODINGS_VARIABLE]
    try:
        return library.load_harmony_encoding("HarmonyGptOss")
    finally:
        if astray and base is not None:
            os.environ[_ENCODINGS_VARIABLE] = base


class GptOssVocabulary:
    """See `Vocabulary`. All added tokens are control tokens."""

    def __init__(self) -> None:
        self._inner: Any = load_encoding()._inner  # the public face decodes to text only, not to bytes
        names = sorted(load_encoding().special_tokens_set)
        self.added_tokens: Mapping[str, int] = {name: self._inner.encode(name, [name])[0] for name in names}
        self.special_ids = frozenset(self.added_tokens.values())

    def token_bytes(self, token: int) -> bytes | None:
        """A token's bytes; None for an id that is no token."""
        try:
            raw: bytes = self._inner.decode_bytes([token])
        except (library.HarmonyError, OverflowError):
            return None
        return raw

    def join_bytes(self, tokens: Sequence[int]) -> bytes:
        """The bytes of all tokens together; ids that are no tokens have none."""
        try:
            raw: bytes = self._inner.decode_bytes(list(tokens))  # sixteen times as fast as one by one
        except (library.HarmonyError, OverflowError):
            return b"".join(self.token_bytes(token) or b"" for token in tokens)
        return raw

    def encode(self, text: str) -> list[int]:
        """Text to ids; added tokens in it become their ids."""
        ids: list[int] = load_encoding().encode(text, allowed_special="all")
        return ids


class GptOssFormat:
    """See `Format`."""

    name = "gpt-oss"

    def __init__(self) -> None:
        self._vocabulary = GptOssVocabulary()
        self._alphabet = MarkerAlphabet(self._vocabulary, MARKERS)
        self.stop_ids = tuple(self._vocabulary.added_tokens[end] for end in ("<|return|>", "<|call|>"))
        self.end_ids = (*self.stop_ids, self._vocabulary.added_tokens["<|end|>"])
        self._opener = self._vocabulary.encode("<|start|>assistant")
        self._memory = EncodingCache()

    def render_prompt(self, prompt_input: PromptInput, *, now: datetime, owner: str = "") -> RenderedPrompt:
        """Lay the conversation out for the model. Raises `RenderError`."""
        try:
            head = library.Conversation.from_messages(_head_messages(prompt_input, now))
            tokens = [*self._memory.get_ids(owner, head.to_json(), partial(load_encoding().render_conversation, head))]
            for message in _HistoryMessages(prompt_input).build_messages():
                tokens += self._memory.get_ids(owner, message.to_json(), partial(load_encoding().render, message))
            tokens += self._opener
        except (library.HarmonyError, ValueError, RecursionError) as error:
            raise RenderError(f"The conversation cannot be put to this model: {error}"[:300], "input") from error
        return RenderedPrompt(tuple(tokens), self.decode(tokens))

    def create_reader(self, prompt: RenderedPrompt, prompt_input: PromptInput) -> GptOssReader:  # noqa: ARG002 - every prompt ends alike
        """A reader for the answer to this prompt."""
        return GptOssReader(self._alphabet, prompt_input)

    def build_grammar(self, prompt: RenderedPrompt, prompt_input: PromptInput) -> str | None:  # noqa: ARG002 - every prompt ends alike
        """All answers that read well from this prompt on: thoughts and preambles, then an answer or a call."""
        rules = grammar.GrammarBuilder(self._vocabulary.added_tokens)
        start, end, message, channel, constrain, over, _ = map(rules.marker_symbol, MARKERS)
        text = f"{rules.free_text()}?"  # no text can hold a control token
        rules.add_rule(
            "aside", *(f'{channel} "{name}" {message} {text} {end} {start} "assistant"' for name in _ASIDE_CHANNELS)
        )
        asked = answer_requirements(prompt_input)
        final = text if asked.text_schema is None else f"GAP {rules.json_value(asked.text_schema)}"
        sides = [] if asked.call_required else [f'{channel} "final" {message} {final} {over}?']
        for offer in prompt_input.callable_tools:
            to = f'" to=functions.{offer.model_name}"'
            kind, body = _call_body(offer, rules, constrain)
            header = f'({to} {channel} "commentary" | {channel} "commentary{to[1:]})'
            sides.append(f"{header} {kind} {message} {body}")
        return rules.build(*(f"aside* {side}" for side in sides)) if sides else None

    def encode(self, text: str) -> list[int]:
        """Text as the model would speak it: markers become their ids."""
        return self._vocabulary.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """All of the tokens' text, markers and control tokens included."""
        return self._vocabulary.join_bytes(tokens).decode("utf-8", "replace")

    def decode_token(self, token: int) -> tuple[str, bytes]:
        """A token's text, with replacement characters where it holds part of one only, and its bytes."""
        raw = self._vocabulary.token_bytes(token) or b""
        return raw.decode("utf-8", "replace"), raw


_ASIDE_CHANNELS = ("analysis", "commentary")


def _call_body(offer: ToolSpec, rules: grammar.GrammarBuilder, constrain: str) -> tuple[str, str]:
    """A call's content type and body, as a grammar's right-hand sides."""
    if offer.kind == "custom":
        return f'(" "? {constrain}? " "? "code")?', rules.custom_input(offer, "<|call|>")
    return (
        f'(" "? {constrain}? " "? "json")?',
        f"{rules.json_value(offer.parameters)} {rules.marker_symbol('<|call|>')}",
    )


def _shown_tools(conversation: PromptInput) -> ToolTable:
    return conversation.tools if conversation.tool_choice != "none" else ToolTable()


def _head_messages(conversation: PromptInput, now: datetime) -> list[library.Message]:
    """What stands before the history. How its first message is laid out depends on the second."""
    effort = getattr(library.ReasoningEffort, _EFFORTS.get(conversation.effort or "medium", "MEDIUM"))
    system = library.SystemContent.new().with_reasoning_effort(effort)
    messages = [
        library.Message.from_role_and_content(Role.SYSTEM, system.with_conversation_start_date(f"{now:%Y-%m-%d}"))
    ]
    instructions, tools = system_text(conversation), [_describe_tool(offer) for offer in _shown_tools(conversation)]
    if instructions or tools:
        developer = library.DeveloperContent.new()
        developer = developer.with_instructions(instructions) if instructions else developer
        developer = developer.with_function_tools(tools) if tools else developer
        messages.append(library.Message.from_role_and_content(Role.DEVELOPER, developer))
    return messages


def _describe_tool(offer: ToolSpec) -> library.ToolDescription:
    description = f"{offer.description}\n{_FREEFORM_NOTE}".strip() if offer.kind == "custom" else offer.description
    if definition := getattr(offer.format, "definition", ""):
        description = f"{description}\nIts text must match this grammar:\n{definition}"
    return library.ToolDescription.new(offer.model_name, description, _clean_schema_keys(offer.parameters))


def _clean_schema_keys(schema: Any) -> Any:
    """The schema without line ends in its keys, which the library pastes into the prompt as they are."""
    if isinstance(schema, dict):
        return {" ".join(str(key).split()): _clean_schema_keys(part) for key, part in schema.items()}
    return [_clean_schema_keys(part) for part in schema] if isinstance(schema, list) else schema


class _HistoryMessages:
    """Earlier items as messages of the library."""

    def __init__(self, conversation: PromptInput) -> None:
        self._items = [item for item in conversation.items if not is_instruction(item)]
        self._names = {
            item.call_id: f"functions.{conversation.tools.model_name_of(item.name, item.namespace)}"
            for item in self._items
            if isinstance(item, InputFunctionCall | InputCustomCall)
        }

    def build_messages(self) -> list[library.Message]:
        """All that the model is shown: not the reasoning from before the last final answer, as it was trained."""
        channels = [self._channel_of(place) for place in range(len(self._items))]
        last = max((place for place, channel in enumerate(channels) if channel == "final"), default=-1)
        shown = (
            self._build_message(item, channel)
            for place, (item, channel) in enumerate(zip(self._items, channels, strict=True))
            if place > last or channel != "analysis"
        )
        return [message for message in shown if message is not None]

    def _channel_of(self, place: int) -> str:
        """Where the model wrote an item; text before a call is a preamble, where the client did not keep its phase."""
        item = self._items[place]
        if isinstance(item, InputReasoning):
            return "analysis"
        if not (isinstance(item, InputMessage) and item.role == "assistant"):
            return "commentary"
        later = (item for item in self._items[place + 1 :] if not isinstance(item, InputReasoning))
        called = isinstance(next(later, None), InputFunctionCall | InputCustomCall)
        return "commentary" if item.phase == "commentary" or (item.phase is None and called) else "final"

    def _build_message(self, item: AnyInput, channel: str) -> library.Message | None:
        match item:
            case InputMessage(role="user"):
                return library.Message.from_role_and_content(Role.USER, content_text(item.content))
            case InputMessage():
                return _assistant_message(content_text(item.content), channel)
            case InputReasoning():
                text = reasoning_text(item)
                return _assistant_message(text, channel) if text else None
            case InputFunctionCall():
                return self._build_call(item.call_id, item.arguments, "<|constrain|>json")
            case InputCustomCall():
                return self._build_call(item.call_id, item.input, "code")
            case InputFunctionOutput() | InputCustomOutput():
                author = Author.new(Role.TOOL, self._names.get(item.call_id, "functions.unknown"))
                message = library.Message.from_author_and_content(author, content_text(item.output))
                return message.with_channel(channel).with_recipient("assistant")
        return None

    def _build_call(self, call_id: str, text: str, kind: str) -> library.Message:
        return _assistant_message(text, "commentary").with_recipient(self._names[call_id]).with_content_type(kind)


def _assistant_message(text: str, channel: str) -> library.Message:
    return library.Message.from_role_and_content(Role.ASSISTANT, text).with_channel(channel)
