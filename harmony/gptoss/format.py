"""The format of gpt-oss: its vocabulary and its prompts, both from `openai_harmony`.

The library renders prompts, because the model was trained on every space in them. It does not parse answers, because it
stops where a model makes a mistake; `harmony/gptoss/reader.py` does. The environment variable `TIKTOKEN_ENCODINGS_BASE`
may name a folder from which the library loads the vocabulary.
"""

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import openai_harmony as library  # type: ignore[import-untyped] # the library has no type information
from msgspec.structs import replace
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
from antiphon.harmony.calls.builtin.reader import read_builtin_calls
from antiphon.harmony.format import (
    THINKING_SWITCHES,
    OutputReader,
    PromptInput,
    TextOnlyFormat,
    VocabularyCodec,
    answer_constraints,
)
from antiphon.harmony.gptoss.reader import MARKERS, GptOssReader
from antiphon.harmony.passthrough import Passthrough
from antiphon.harmony.prompt.message_shape import PARAGRAPH_BREAK
from antiphon.harmony.prompt.messages import content_text, is_instruction, reasoning_text, system_text
from antiphon.harmony.prompt.shown_items import show_items
from antiphon.harmony.rendered_prompt import RenderedPrompt, RenderError, UnsupportedOptionError
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
_PATCH_PARAMETERS = {
    "type": "string",
    "description": "Formatted patch code",
    "default": "*** Begin Patch\n*** End Patch\n",
}
"""Parameters of `apply_patch` with which gpt-oss was trained. Source: openai/gpt-oss, gpt_oss/chat.py."""


@cache
def load_encoding() -> HarmonyEncoding:
    """Returns the library's vocabulary. Loading takes half a second, so it happens once, at the first use."""
    base = os.environ.get(_ENCODINGS_VARIABLE)
    base_missing = base is not None and not Path(base, "o200k_base.tiktoken").is_file()
    if base_missing:
        # The library prefers the variable to its bundled vocabulary, even if the file is missing.
        del os.environ[_ENCODINGS_VARIABLE]
    try:
        return library.load_harmony_encoding("HarmonyGptOss")
    finally:
        if base_missing and base is not None:
            os.environ[_ENCODINGS_VARIABLE] = base


class GptOssVocabulary:
    """The `TokenVocabulary` of gpt-oss. All added tokens are control tokens."""

    def __init__(self) -> None:
        self._inner: Any = load_encoding()._inner  # the public API decodes to text only, not to bytes
        names = sorted(load_encoding().special_tokens_set)
        self.added_tokens: Mapping[str, int] = {name: self._inner.encode(name, [name])[0] for name in names}
        self.special_ids = frozenset(self.added_tokens.values())
        self.boundary_ids: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    def token_bytes(self, token: int) -> bytes | None:
        """Returns a token's bytes, or None if the id is not a token."""
        try:
            raw: bytes = self._inner.decode_bytes([token])
        except (library.HarmonyError, OverflowError):
            return None
        return raw

    def join_bytes(self, tokens: Sequence[int]) -> bytes:
        """Returns the concatenated bytes of the tokens. Ids that are not tokens have no bytes."""
        try:
            raw: bytes = self._inner.decode_bytes(list(tokens))  # 16 times as fast as one by one
        except (library.HarmonyError, OverflowError):
            return b"".join(self.token_bytes(token) or b"" for token in tokens)
        return raw

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:  # noqa: ARG002  # there are none
        """Encodes text to ids. Added tokens in the text become their ids."""
        ids: list[int] = load_encoding().encode(text, allowed_special="all")
        return ids


class GptOssFormat(TextOnlyFormat, VocabularyCodec):
    """The `ModelFormat` of gpt-oss."""

    name = "gpt-oss"
    has_reasoning = has_calls = True

    def __init__(self) -> None:
        self.vocabulary: GptOssVocabulary = GptOssVocabulary()
        self.passthrough = Passthrough(self.vocabulary)
        self._alphabet = MarkerAlphabet(self.vocabulary, MARKERS)
        self.stop_ids = tuple(self.vocabulary.added_tokens[end] for end in ("<|return|>", "<|call|>"))
        self.end_ids = (*self.stop_ids, self.vocabulary.added_tokens["<|end|>"])
        self._opener = self.vocabulary.encode("<|start|>assistant")
        self._memory = EncodingCache()

    def render_prompt(self, prompt_input: PromptInput, *, now: datetime, owner: str = "") -> RenderedPrompt:
        """Renders the conversation for the model. Raises `RenderError`."""
        _refuse_options(prompt_input)
        prompt_input = replace(prompt_input, items=show_items(prompt_input.items, prompt_input.tools))
        try:
            prefix = library.Conversation.from_messages(_head_messages(prompt_input, now))
            tokens = [
                *self._memory.get_ids(owner, prefix.to_json(), partial(load_encoding().render_conversation, prefix))
            ]
            for message in _HistoryMessages(prompt_input).build_messages():
                tokens += self._memory.get_ids(owner, message.to_json(), partial(load_encoding().render, message))
            tokens += self._opener
        except (library.HarmonyError, ValueError, RecursionError) as error:
            raise RenderError(f"The conversation cannot be rendered for this model: {error}"[:300], "input") from error
        return RenderedPrompt(tuple(tokens), self.decode(tokens))

    def create_reader(self, prompt: RenderedPrompt, prompt_input: PromptInput) -> OutputReader:  # noqa: ARG002 - every prompt ends the same way
        """Returns a reader for the answer to this prompt."""
        return read_builtin_calls(GptOssReader(self._alphabet, prompt_input), prompt_input)

    def build_grammar(self, prompt: RenderedPrompt, prompt_input: PromptInput) -> str | None:  # noqa: ARG002 - every prompt ends the same way
        """Returns the grammar of well-formed answers: reasoning and preambles, then a final message or a call.

        Returns None if no such answer exists: a call is required, and there is no callable tool.
        """
        rules = grammar.GrammarBuilder(self.vocabulary.added_tokens)
        start, end, message, channel, constrain, return_, _ = map(rules.marker_symbol, MARKERS)
        text = f"{rules.free_text()}?"  # no text can contain a control token
        rules.add_rule(
            "aside", *(f'{channel} "{name}" {message} {text} {end} {start} "assistant"' for name in _ASIDE_CHANNELS)
        )
        constraints = answer_constraints(prompt_input)
        final = text if constraints.output_constraint is None else rules.answer_text(constraints.output_constraint)
        endings = [] if constraints.call_required else [f'{channel} "final" {message} {final} {return_}?']
        for tool in prompt_input.callable_tools:
            recipient = f'" to=functions.{tool.model_name}"'
            kind, body = _call_body(tool, rules, constrain)
            header = f'({recipient} {channel} "commentary" | {channel} "commentary{recipient[1:]})'
            endings.append(f"{header} {kind} {message} {body}")
        return rules.build(*(f"aside* {ending}" for ending in endings)) if endings else None

    def decode(self, tokens: Sequence[int]) -> str:
        """Decodes all tokens to text, markers and control tokens included."""
        return self.vocabulary.join_bytes(tokens).decode("utf-8", "replace")


_ASIDE_CHANNELS = ("analysis", "commentary")


def _call_body(tool: ToolSpec, rules: grammar.GrammarBuilder, constrain: str) -> tuple[str, str]:
    """Returns a call's content type and body, as right-hand sides of grammar rules."""
    if tool.kind == "custom":
        return f'(" "? {constrain}? " "? "code")?', rules.custom_input(tool, "<|call|>")
    return (
        f'(" "? {constrain}? " "? "json")?',
        f"{rules.json_value(tool.accepted_schema)} {rules.marker_symbol('<|call|>')}",
    )


def _refuse_options(conversation: PromptInput) -> None:
    """Raises `UnsupportedOptionError` for a field of the request that needs a chat template."""
    options = conversation.template
    other_names = (name for name in options.variables if name not in THINKING_SWITCHES)
    unsupported = {
        "chat_template": options.source is not None,
        "documents": bool(options.documents),
        "continue_final_message": options.continue_final_message,
        "add_generation_prompt": not options.add_generation_prompt,
        "skip_special_tokens": conversation.keep_special_tokens,
        **{f"chat_template_kwargs.{name}": True for name in other_names},
    }
    for param, is_set in unsupported.items():
        if is_set:
            raise UnsupportedOptionError("This model has a prompt format of its own instead of a chat template.", param)


def _shown_tools(conversation: PromptInput) -> ToolTable:
    return conversation.tools.listed if conversation.tool_choice != "none" else ToolTable()


def _head_messages(conversation: PromptInput, now: datetime) -> list[library.Message]:
    """Returns the messages before the history. The rendering of the first one depends on the second."""
    effort = getattr(library.ReasoningEffort, _EFFORTS.get(conversation.effort or "medium", "MEDIUM"))
    system = library.SystemContent.new().with_reasoning_effort(effort)
    messages = [
        library.Message.from_role_and_content(Role.SYSTEM, system.with_conversation_start_date(f"{now:%Y-%m-%d}"))
    ]
    shown_tools = _shown_tools(conversation)
    patch_tool = shown_tools.find_builtin("apply_patch")
    patch_text = f"# {patch_tool.model_name}\n\n{patch_tool.description}" if patch_tool else ""
    instructions = PARAGRAPH_BREAK.join(filter(None, (system_text(conversation), patch_text)))
    tools = [_describe_tool(tool) for tool in shown_tools]
    if instructions or tools:
        developer = library.DeveloperContent.new()
        developer = developer.with_instructions(instructions) if instructions else developer
        developer = developer.with_function_tools(tools) if tools else developer
        messages.append(library.Message.from_role_and_content(Role.DEVELOPER, developer))
    return messages


def _describe_tool(tool: ToolSpec) -> library.ToolDescription:
    if tool.builtin == "apply_patch":  # as in training, where the developer message explains the format
        return library.ToolDescription.new(tool.model_name, "Patch a file", _PATCH_PARAMETERS)
    description = f"{tool.description}\n{_FREEFORM_NOTE}".strip() if tool.kind == "custom" else tool.description
    if definition := getattr(tool.format, "definition", ""):
        description = f"{description}\nIts text must match this grammar:\n{definition}"
    parameters = _clean_schema(tool.parameters, has_strange_texts=tool.server is not None)
    return library.ToolDescription.new(tool.model_name, description, parameters)


def _clean_schema(schema: Any, *, has_strange_texts: bool) -> Any:
    """Returns the schema without line breaks in its keys, which the library copies into the prompt unchanged.

    `has_strange_texts`: a tool server has written it. Then its texts have none either: what follows a line break would
    stand outside the comment, where instructions of the developer do.
    """
    if isinstance(schema, dict):
        return {
            " ".join(str(key).split()): _clean_schema(part, has_strange_texts=has_strange_texts)
            for key, part in schema.items()
        }
    if isinstance(schema, list):
        return [_clean_schema(part, has_strange_texts=has_strange_texts) for part in schema]
    return " ".join(schema.split()) if has_strange_texts and isinstance(schema, str) else schema


class _HistoryMessages:
    """Converts earlier items to messages of the library."""

    def __init__(self, conversation: PromptInput) -> None:
        self._items = [item for item in conversation.items if not is_instruction(item)]
        self._names = {
            item.call_id: f"functions.{conversation.tools.model_name_of(item.name, item.namespace)}"
            for item in self._items
            if isinstance(item, InputFunctionCall | InputCustomCall)
        }

    def build_messages(self) -> list[library.Message]:
        """Returns the messages shown to the model, without reasoning before the last final answer, as in training."""
        channels = [self._channel_of(index) for index in range(len(self._items))]
        last_final = max((index for index, channel in enumerate(channels) if channel == "final"), default=-1)
        messages = (
            self._build_message(item, channel)
            for index, (item, channel) in enumerate(zip(self._items, channels, strict=True))
            if index > last_final or channel != "analysis"
        )
        return [message for message in messages if message is not None]

    def _channel_of(self, index: int) -> str:
        """Returns an item's channel. Text before a call is a preamble (commentary) if the client sent no phase."""
        item = self._items[index]
        if isinstance(item, InputReasoning):
            return "analysis"
        if not (isinstance(item, InputMessage) and item.role == "assistant"):
            return "commentary"
        following = (item for item in self._items[index + 1 :] if not isinstance(item, InputReasoning))
        precedes_call = isinstance(next(following, None), InputFunctionCall | InputCustomCall)
        return "commentary" if item.phase == "commentary" or (item.phase is None and precedes_call) else "final"

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
