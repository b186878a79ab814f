"""The format of a model that is prompted by a chat template and read by a declared dialect."""

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
"""What to try in turn: some templates refuse arguments that are no object, some refuse two messages of a user in a row.
One bad call, or one agent that speaks in the user's name, must not end a conversation for ever."""


class TemplateFormat:
    """See `Format`. `named` are the tokenizer's own names for its tokens (`bos_token`, …), which templates use."""

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
        # The markers of reasoning are broken even where they are no tokens: they are looked for in the prompt.
        self._special_tokens = special_tokens.SpecialTokens(
            [*vocabulary.added_tokens, *(mark for pair in dialect.think_markers for mark in pair)]
        )
        self._template_has_custom_tools = "custom" in template.source
        self._template_has_tools = "tool" in template.source or not dialect.calls
        """Whether the template has a place for tools; where it has none, the prompt tells of them in words."""
        ends = (*dialect.stop, self._token_names.get("eos_token", ""))
        self.stop_ids = tuple(
            dict.fromkeys(vocabulary.added_tokens[end] for end in ends if end in vocabulary.added_tokens)
        )
        self.end_ids = self.stop_ids

    @cached_property
    def _encoder(self) -> CachedEncoder:
        vocabulary = self._vocabulary
        ends = (text for text, token in vocabulary.added_tokens.items() if token in self.end_ids)
        return CachedEncoder(vocabulary.encode, ends, vocabulary.added_tokens)

    def render_prompt(self, prompt_input: PromptInput, *, now: datetime, owner: str = "") -> RenderedPrompt:
        """Lay the conversation out for the model. Raises `RenderError`."""
        try:
            shield = special_tokens.SpecialTokenEscaper(
                self._special_tokens, [*_client_texts(prompt_input), self._template.source]
            )
            rendered = self._render_template(prompt_input, shield, now)
            tokens, text = shield.encode(rendered, lambda text: self._encoder.encode(text, owner))
        except RecursionError as error:
            raise RenderError("The conversation holds JSON that is nested too deeply.", "input") from error
        except (TypeError, UnicodeError) as error:  # half a surrogate pair
            raise RenderError("The conversation holds text that is not valid Unicode.", "input") from error
        return RenderedPrompt(tuple(tokens), text, self._ends_in_reasoning(rendered))

    def _render_template(
        self, conversation: PromptInput, shield: special_tokens.SpecialTokenEscaper, now: datetime
    ) -> str:
        """As it was said; in another shape where the template refuses that. Raises `RenderError` if it refuses all."""
        for shape in FALLBACK_SHAPES[:-1]:
            with contextlib.suppress(RefusedError):
                return self._template.render(self._template_context(conversation, shield, **shape), now=now)
        return self._template.render(self._template_context(conversation, shield, **FALLBACK_SHAPES[-1]), now=now)

    def _template_context(
        self,
        conversation: PromptInput,
        shield: special_tokens.SpecialTokenEscaper,
        *,
        objects: bool = False,
        joined: bool = False,
    ) -> dict[str, Any]:
        tools = conversation.tools if conversation.tool_choice != "none" else ToolTable()
        raw = "" if self._template_has_custom_tools else self._dialect.freeform_call
        lesson = (
            tool_instructions.freeform_instructions(self._dialect.freeform_instructions, tools, shield) if raw else ""
        )
        spell = None if self._template_has_tools else self._write_calls
        if spell is not None:
            lesson = "\n\n".join(
                filter(None, (tool_instructions.tool_instructions(tools, shield, spell, custom=not raw), lesson))
            )
        messages = MessageBuilder(
            shield,
            conversation.tools,
            freeform_call=raw,
            native_custom_tools=self._template_has_custom_tools,
            arguments_as_objects=objects,
            join_user_messages=joined,
            write_calls=spell,
        )
        # A tool that the model could not call in a way that is read is better not offered.
        schemas = (
            tool_instructions.tool_schemas(tools, shield, custom=not raw, native=self._template_has_custom_tools)
            if self._dialect.calls
            else []
        )
        context = {
            "messages": messages.build_messages(conversation, lesson),
            "tools": schemas or None,
            "documents": None,
            "add_generation_prompt": True,
        }
        return {**self._token_names, **context, **_effort_variables(conversation.effort)}

    def _write_calls(self, calls: Sequence[ToolCall]) -> str:
        """Calls as the model would write them: so is it taught, and so are earlier ones shown."""
        sent = [(offer, text if offer.kind == "custom" else _as_json_object(text)) for offer, text in calls]
        functions = [
            (replace(offer, kind="function"), tool_instructions.function_arguments(offer, text)) for offer, text in sent
        ]
        written = (frame.write_calls(way) for way in (sent, functions) for frame in self._dialect.calls)
        plain = "\n".join(f"{offer.model_name}({arguments})" for offer, arguments in sent)
        return next((text for text in written if text is not None), plain)

    def _ends_in_reasoning(self, rendered: str) -> bool:
        """Whether reasoning is open at the end: told by its last marker in the last turn."""
        if self._dialect.think is None:
            return False
        openers, closers = zip(*self._dialect.think_markers, strict=True)
        control = [
            text for text, token in self._vocabulary.added_tokens.items() if token in self._vocabulary.special_ids
        ]
        turns = (rendered.rfind(text) for text in control if text not in (*openers, *closers))
        turn = max([0, *turns])
        return max(rendered.rfind(mark, turn) for mark in openers) > max(rendered.rfind(mark, turn) for mark in closers)

    def create_reader(self, prompt: RenderedPrompt, prompt_input: PromptInput) -> DialectReader:
        """A reader for the answer to this prompt."""
        return DialectReader(self._dialect, self._alphabet, prompt_input, in_reasoning=prompt.in_reasoning)

    def build_grammar(self, prompt: RenderedPrompt, prompt_input: PromptInput) -> str | None:
        """All answers that read well from this prompt on."""
        rules = grammar.GrammarBuilder(self._vocabulary.added_tokens)
        calls: dict[str, list[str]] = {}
        for frame, offer in product(self._dialect.calls, prompt_input.callable_tools):
            if side := frame.grammar_rule(offer, rules):
                calls.setdefault(frame.openers[0], []).append(side)
        asked = answer_requirements(prompt_input)
        if asked.call_required and not calls:
            return None
        think = self._dialect.think if prompt_input.effort != "none" or prompt.in_reasoning else None
        bare = frozenset(opener for frame in self._dialect.calls if frame.head_only for opener in frame.openers)
        return grammar.build_turn_grammar(
            rules,
            think,
            calls,
            self._text_stops(),
            thinking=prompt.in_reasoning,
            asked=asked,
            bare=bare,
            wrapper=self._dialect.answer,
        )

    def _text_stops(self) -> list[str]:
        """What plain text must not hold, or it would not be read as text."""
        openers = (opener for frame in self._dialect.calls if not frame.head_only for opener in frame.openers)
        thoughts = (mark for pair in self._dialect.think_markers for mark in pair)
        return list(dict.fromkeys([*thoughts, *openers]))

    def encode(self, text: str) -> list[int]:
        """Text as the model would speak it: markers become their ids."""
        return self._vocabulary.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """All of the tokens' text, markers and control tokens included."""
        return b"".join(self._vocabulary.token_bytes(token) or b"" for token in tokens).decode("utf-8", "replace")

    def decode_token(self, token: int) -> tuple[str, bytes]:
        """A token's text, with replacement characters where it holds part of one only, and its bytes."""
        raw = self._vocabulary.token_bytes(token) or b""
        return raw.decode("utf-8", "replace"), raw


def _as_json_object(arguments: str) -> str:
    """Arguments as JSON of an object, which is what frames can write."""
    try:
        good = isinstance(json.loads(arguments or "{}"), dict)
    except (ValueError, RecursionError):
        good = False
    return (arguments or "{}") if good else json.dumps({"arguments": arguments}, ensure_ascii=False)


def _effort_variables(effort: str | None) -> dict[str, Any]:
    """How hard to think, under the names that templates know. Silent if the request was."""
    if effort is None:
        return {}
    if effort == "none":
        return {"enable_thinking": False, "thinking": False}
    return {"enable_thinking": True, "thinking": True, "reasoning_effort": effort}


def _client_texts(conversation: PromptInput) -> list[str]:
    """Everything a client wrote that may come into the prompt."""
    offers = [msgspec.to_builtins(offer) for offer in conversation.tools]
    return [
        conversation.instructions or "",
        *special_tokens.collect_strings([msgspec.to_builtins(conversation.items), offers]),
    ]
