"""Format of a model whose prompt comes from a chat template and whose output is parsed by a declared dialect."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from itertools import product
from typing import Any

import msgspec
from msgspec.structs import replace

from antiphon.harmony import grammar
from antiphon.harmony.dialect import Dialect, DialectReader
from antiphon.harmony.format import PromptInput, RenderedPrompt, RenderError, answer_requirements
from antiphon.harmony.prompt import tool_instructions
from antiphon.harmony.prompt.jinja import ChatTemplate, RefusedError
from antiphon.harmony.prompt.messages import MessageBuilder
from antiphon.harmony.tokens import special_tokens
from antiphon.harmony.tokens.detokenizer import MarkerAlphabet, TokenVocabulary
from antiphon.harmony.tokens.encode_cache import CachedEncoder
from antiphon.harmony.tools import ToolCall, ToolTable

FALLBACK_SHAPES: tuple[dict[str, bool], ...] = tuple(
    {"objects": objects, "joined": joined} for joined in (False, True) for objects in (False, True)
)
"""Message shapes to try in order. Some templates reject arguments that are not an object, others reject two user
messages in a row. One bad call, or one agent that writes as the user, must not make a conversation unusable."""


class TemplateFormat:
    """Implements `ModelFormat`.

    `token_names` are the tokenizer's own names for its tokens (`bos_token`, …), which templates use.
    """

    def __init__(
        self,
        dialect: Dialect,
        vocabulary: TokenVocabulary,
        template: ChatTemplate,
        token_names: Mapping[str, str] | None = None,
    ) -> None:
        self.name = dialect.name
        self._dialect, self._vocabulary, self._template = dialect, vocabulary, template
        self._token_names = dict(token_names or {})
        self._alphabet = MarkerAlphabet(vocabulary, dialect.all_markers)
        # Reasoning markers are escaped even if they are not tokens: `_ends_in_reasoning` searches the prompt for them.
        self._special_tokens = special_tokens.SpecialTokens(
            [*vocabulary.added_tokens, *(marker for pair in dialect.think_markers for marker in pair)]
        )
        self._template_has_custom_tools = "custom" in template.source
        self._template_has_tools = "tool" in template.source or not dialect.calls
        """False if the template has no place for the dialect's tools: then the prompt describes them in words."""
        end_texts = (*dialect.stop, self._token_names.get("eos_token", ""))
        self.stop_ids = tuple(
            dict.fromkeys(vocabulary.added_tokens[text] for text in end_texts if text in vocabulary.added_tokens)
        )
        self.end_ids = self.stop_ids

    @cached_property
    def _encoder(self) -> CachedEncoder:
        vocabulary = self._vocabulary
        end_texts = (text for text, token in vocabulary.added_tokens.items() if token in self.end_ids)
        return CachedEncoder(vocabulary.encode, end_texts, vocabulary.added_tokens)

    def render_prompt(self, prompt_input: PromptInput, *, now: datetime, owner: str = "") -> RenderedPrompt:
        """Renders the conversation as a prompt. Raises `RenderError`."""
        try:
            escaper = special_tokens.SpecialTokenEscaper(
                self._special_tokens, [*_client_texts(prompt_input), self._template.source]
            )
            rendered = self._render_template(prompt_input, escaper, now)
            tokens, text = escaper.encode(rendered, lambda text: self._encoder.encode(text, owner))
        except RecursionError as error:
            raise RenderError("The conversation contains JSON that is nested too deeply.", "input") from error
        except (TypeError, UnicodeError) as error:  # an unpaired surrogate
            raise RenderError("The conversation contains text that is not valid Unicode.", "input") from error
        return RenderedPrompt(tuple(tokens), text, self._ends_in_reasoning(rendered))

    def _render_template(
        self, conversation: PromptInput, escaper: special_tokens.SpecialTokenEscaper, now: datetime
    ) -> str:
        """Renders the first message shape that the template accepts. Raises `RenderError` if it rejects all."""
        for shape in FALLBACK_SHAPES[:-1]:
            with contextlib.suppress(RefusedError):
                return self._template.render(self._template_context(conversation, escaper, **shape), now=now)
        return self._template.render(self._template_context(conversation, escaper, **FALLBACK_SHAPES[-1]), now=now)

    def _template_context(
        self,
        conversation: PromptInput,
        escaper: special_tokens.SpecialTokenEscaper,
        *,
        objects: bool = False,
        joined: bool = False,
    ) -> dict[str, Any]:
        tools = conversation.tools if conversation.tool_choice != "none" else ToolTable()
        freeform_call = "" if self._template_has_custom_tools else self._dialect.freeform_call
        instructions = (
            tool_instructions.freeform_instructions(self._dialect.freeform_instructions, tools, escaper)
            if freeform_call
            else ""
        )
        write_calls = None if self._template_has_tools else self._write_calls
        if write_calls is not None:
            instructions = "\n\n".join(
                filter(
                    None,
                    (
                        tool_instructions.tool_instructions(tools, escaper, write_calls, custom=not freeform_call),
                        instructions,
                    ),
                )
            )
        messages = MessageBuilder(
            escaper,
            conversation.tools,
            freeform_call=freeform_call,
            native_custom_tools=self._template_has_custom_tools,
            arguments_as_objects=objects,
            join_user_messages=joined,
            write_calls=write_calls,
        )
        # A tool whose calls could not be parsed is better not offered.
        schemas = (
            tool_instructions.tool_schemas(
                tools, escaper, custom=not freeform_call, native=self._template_has_custom_tools
            )
            if self._dialect.calls
            else []
        )
        context = {
            "messages": messages.build_messages(conversation, instructions),
            "tools": schemas or None,
            "documents": None,
            "add_generation_prompt": True,
        }
        return {**self._token_names, **context, **_effort_variables(conversation.effort)}

    def _write_calls(self, calls: Sequence[ToolCall]) -> str:
        """Writes calls as the model would: as an example in the tool instructions, and for earlier calls."""
        native_calls = [
            (tool, arguments if tool.kind == "custom" else _as_json_object(arguments)) for tool, arguments in calls
        ]
        function_calls = [
            (replace(tool, kind="function"), tool_instructions.function_arguments(tool, arguments))
            for tool, arguments in native_calls
        ]
        candidates = (
            call_format.write_calls(variant)
            for variant in (native_calls, function_calls)
            for call_format in self._dialect.calls
        )
        fallback = "\n".join(f"{tool.model_name}({arguments})" for tool, arguments in native_calls)
        return next((text for text in candidates if text is not None), fallback)

    def _ends_in_reasoning(self, rendered: str) -> bool:
        """Tells whether the prompt ends inside reasoning: decided by the last marker in the last turn."""
        if self._dialect.think is None:
            return False
        openers, closers = zip(*self._dialect.think_markers, strict=True)
        control_texts = [
            text for text, token in self._vocabulary.added_tokens.items() if token in self._vocabulary.special_ids
        ]
        turn_starts = (rendered.rfind(text) for text in control_texts if text not in (*openers, *closers))
        turn_start = max([0, *turn_starts])
        return max(rendered.rfind(marker, turn_start) for marker in openers) > max(
            rendered.rfind(marker, turn_start) for marker in closers
        )

    def create_reader(self, prompt: RenderedPrompt, prompt_input: PromptInput) -> DialectReader:
        """Returns a reader for the output that follows this prompt."""
        return DialectReader(self._dialect, self._alphabet, prompt_input, in_reasoning=prompt.in_reasoning)

    def build_grammar(self, prompt: RenderedPrompt, prompt_input: PromptInput) -> str | None:
        """Returns a grammar of all parsable answers to this prompt.

        Returns None if a call is required and the dialect has no grammar for one.
        """
        rules = grammar.GrammarBuilder(self._vocabulary.added_tokens)
        calls: dict[str, list[str]] = {}
        for call_format, tool in product(self._dialect.calls, prompt_input.callable_tools):
            if rule := call_format.grammar_rule(tool, rules):
                calls.setdefault(call_format.openers[0], []).append(rule)
        requirements = answer_requirements(prompt_input)
        if requirements.call_required and not calls:
            return None
        think = self._dialect.think if prompt_input.effort != "none" or prompt.in_reasoning else None
        head_only_openers = frozenset(
            opener for call_format in self._dialect.calls if call_format.head_only for opener in call_format.openers
        )
        return grammar.build_turn_grammar(
            rules,
            think,
            calls,
            self._text_stops(),
            thinking=prompt.in_reasoning,
            requirements=requirements,
            head_only_openers=head_only_openers,
            wrapper=self._dialect.answer,
        )

    def _text_stops(self) -> list[str]:
        """Returns the texts that plain text must not contain, because they would be parsed as markers."""
        openers = (
            opener for call_format in self._dialect.calls if not call_format.head_only for opener in call_format.openers
        )
        reasoning_markers = (marker for pair in self._dialect.think_markers for marker in pair)
        return list(dict.fromkeys([*reasoning_markers, *openers]))

    def encode(self, text: str) -> list[int]:
        """Encodes text as the model would generate it: markers become their ids."""
        return self._vocabulary.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """Decodes tokens to text, including markers and control tokens."""
        return b"".join(self._vocabulary.token_bytes(token) or b"" for token in tokens).decode("utf-8", "replace")

    def decode_token(self, token: int) -> tuple[str, bytes]:
        """Returns a token's text and its bytes. In the text, partial characters become replacement characters."""
        raw = self._vocabulary.token_bytes(token) or b""
        return raw.decode("utf-8", "replace"), raw


def _as_json_object(arguments: str) -> str:
    """Returns the arguments if they are a JSON object, else an object with them as its only member."""
    try:
        is_object = isinstance(json.loads(arguments or "{}"), dict)
    except (ValueError, RecursionError):
        is_object = False
    return (arguments or "{}") if is_object else json.dumps({"arguments": arguments}, ensure_ascii=False)


def _effort_variables(effort: str | None) -> dict[str, Any]:
    """Returns the reasoning effort under the variable names that templates use; empty if none was requested."""
    if effort is None:
        return {}
    if effort == "none":
        return {"enable_thinking": False, "thinking": False}
    return {"enable_thinking": True, "thinking": True, "reasoning_effort": effort}


def _client_texts(conversation: PromptInput) -> list[str]:
    """Returns every text from the client that may appear in the prompt."""
    tools = [msgspec.to_builtins(tool) for tool in conversation.tools]
    return [
        conversation.instructions or "",
        *special_tokens.collect_strings([msgspec.to_builtins(conversation.items), tools]),
    ]
