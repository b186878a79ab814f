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
from antiphon.harmony.format import Conversation, Prompt, RenderError, asked_of
from antiphon.harmony.prompt import messages as render
from antiphon.harmony.prompt.jinja import RefusedError, Template
from antiphon.harmony.tokens import special_tokens
from antiphon.harmony.tokens.detokenizer import Alphabet, Vocabulary
from antiphon.harmony.tokens.encode_cache import Pieces
from antiphon.harmony.tools import Sent, ToolTable

SHAPES: tuple[dict[str, bool], ...] = tuple(
    {"objects": objects, "joined": joined} for joined in (False, True) for objects in (False, True)
)
"""What to try in turn: some templates refuse arguments that are no object, some refuse two messages of a user in a row.
One bad call, or one agent that speaks in the user's name, must not end a conversation for ever."""


class ChatFormat:
    """See `Format`. `named` are the tokenizer's own names for its tokens (`bos_token`, …), which templates use."""

    def __init__(
        self, dialect: Dialect, vocabulary: Vocabulary, template: Template, named: Mapping[str, str] | None = None
    ) -> None:
        self.name = dialect.name
        self._dialect, self._vocabulary, self._template = dialect, vocabulary, template
        self._named = dict(named or {})
        self._alphabet = Alphabet(vocabulary, dialect.markers)
        # The markers of reasoning are broken even where they are no tokens: they are looked for in the prompt.
        self._dangerous = special_tokens.Tokens(
            [*vocabulary.added, *(mark for pair in dialect.thinks for mark in pair)]
        )
        self._native = "custom" in template.source
        self._tooled = "tool" in template.source or not dialect.frames
        """Whether the template has a place for tools; where it has none, the prompt tells of them in words."""
        ends = (*dialect.stop, self._named.get("eos_token", ""))
        self.stop_ids = tuple(dict.fromkeys(vocabulary.added[end] for end in ends if end in vocabulary.added))
        self.end_ids = self.stop_ids

    @cached_property
    def _pieces(self) -> Pieces:
        vocabulary = self._vocabulary
        ends = (text for text, token in vocabulary.added.items() if token in self.end_ids)
        return Pieces(vocabulary.encode, ends, vocabulary.added)

    def render(self, conversation: Conversation, *, now: datetime, owner: str = "") -> Prompt:
        """Lay the conversation out for the model. Raises `RenderError`."""
        try:
            shield = special_tokens.Guard(self._dangerous, [*_texts(conversation), self._template.source])
            rendered = self._laid_out(conversation, shield, now)
            tokens, text = shield.encode(rendered, lambda text: self._pieces.encode(text, owner))
        except RecursionError as error:
            raise RenderError("The conversation holds JSON that is nested too deeply.", "input") from error
        except (TypeError, UnicodeError) as error:  # half a surrogate pair
            raise RenderError("The conversation holds text that is not valid Unicode.", "input") from error
        return Prompt(tuple(tokens), text, self._thinks(rendered))

    def _laid_out(self, conversation: Conversation, shield: special_tokens.Guard, now: datetime) -> str:
        """As it was said; in another shape where the template refuses that. Raises `RenderError` if it refuses all."""
        for shape in SHAPES[:-1]:
            with contextlib.suppress(RefusedError):
                return self._template.render(self._context(conversation, shield, **shape), now=now)
        return self._template.render(self._context(conversation, shield, **SHAPES[-1]), now=now)

    def _context(
        self, conversation: Conversation, shield: special_tokens.Guard, *, objects: bool = False, joined: bool = False
    ) -> dict[str, Any]:
        tools = conversation.tools if conversation.tool_choice != "none" else ToolTable()
        raw = "" if self._native else self._dialect.raw
        lesson = render.lesson(self._dialect.lesson, tools, shield) if raw else ""
        spell = None if self._tooled else self._spell
        if spell is not None:
            lesson = "\n\n".join(filter(None, (render.taught(tools, shield, spell, custom=not raw), lesson)))
        messages = render.Messages(
            shield, conversation.tools, raw=raw, native=self._native, objects=objects, joined=joined, spell=spell
        )
        # A tool that the model could not call in a way that is read is better not offered.
        schemas = render.schemas(tools, shield, custom=not raw, native=self._native) if self._dialect.frames else []
        context = {
            "messages": messages.build(conversation, lesson),
            "tools": schemas or None,
            "documents": None,
            "add_generation_prompt": True,
        }
        return {**self._named, **context, **_effort(conversation.effort)}

    def _spell(self, calls: Sequence[Sent]) -> str:
        """Calls as the model would write them: so is it taught, and so are earlier ones shown."""
        sent = [(offer, text if offer.kind == "custom" else _object(text)) for offer, text in calls]
        functions = [(replace(offer, kind="function"), render.as_function(offer, text)) for offer, text in sent]
        written = (frame.write(way) for way in (sent, functions) for frame in self._dialect.frames)
        plain = "\n".join(f"{offer.flat}({arguments})" for offer, arguments in sent)
        return next((text for text in written if text is not None), plain)

    def _thinks(self, rendered: str) -> bool:
        """Whether reasoning is open at the end: told by its last marker in the last turn."""
        if self._dialect.think is None:
            return False
        openers, closers = zip(*self._dialect.thinks, strict=True)
        control = [text for text, token in self._vocabulary.added.items() if token in self._vocabulary.special]
        turns = (rendered.rfind(text) for text in control if text not in (*openers, *closers))
        turn = max([0, *turns])
        return max(rendered.rfind(mark, turn) for mark in openers) > max(rendered.rfind(mark, turn) for mark in closers)

    def reader(self, prompt: Prompt, conversation: Conversation) -> DialectReader:
        """A reader for the answer to this prompt."""
        return DialectReader(self._dialect, self._alphabet, conversation, thinking=prompt.thinking)

    def grammar(self, prompt: Prompt, conversation: Conversation) -> str | None:
        """All answers that read well from this prompt on."""
        rules = grammar.Grammar(self._vocabulary.added)
        calls: dict[str, list[str]] = {}
        for frame, offer in product(self._dialect.frames, conversation.callable):
            if side := frame.grammar(offer, rules):
                calls.setdefault(frame.openers[0], []).append(side)
        asked = asked_of(conversation)
        if asked.required and not calls:
            return None
        think = self._dialect.think if conversation.effort != "none" or prompt.thinking else None
        bare = frozenset(opener for frame in self._dialect.frames if frame.bare for opener in frame.openers)
        return grammar.turn(
            rules,
            think,
            calls,
            self._stops(),
            thinking=prompt.thinking,
            asked=asked,
            bare=bare,
            wrapper=self._dialect.answer,
        )

    def _stops(self) -> list[str]:
        """What plain text must not hold, or it would not be read as text."""
        openers = (opener for frame in self._dialect.frames if not frame.bare for opener in frame.openers)
        thoughts = (mark for pair in self._dialect.thinks for mark in pair)
        return list(dict.fromkeys([*thoughts, *openers]))

    def encode(self, text: str) -> list[int]:
        """Text as the model would speak it: markers become their ids."""
        return self._vocabulary.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """All of the tokens' text, markers and control tokens included."""
        return b"".join(self._vocabulary.piece(token) or b"" for token in tokens).decode("utf-8", "replace")

    def token(self, token: int) -> tuple[str, bytes]:
        """A token's text, with replacement characters where it holds part of one only, and its bytes."""
        raw = self._vocabulary.piece(token) or b""
        return raw.decode("utf-8", "replace"), raw


def _object(arguments: str) -> str:
    """Arguments as JSON of an object, which is what frames can write."""
    try:
        good = isinstance(json.loads(arguments or "{}"), dict)
    except (ValueError, RecursionError):
        good = False
    return (arguments or "{}") if good else json.dumps({"arguments": arguments}, ensure_ascii=False)


def _effort(effort: str | None) -> dict[str, Any]:
    """How hard to think, under the names that templates know. Silent if the request was."""
    if effort is None:
        return {}
    if effort == "none":
        return {"enable_thinking": False, "thinking": False}
    return {"enable_thinking": True, "thinking": True, "reasoning_effort": effort}


def _texts(conversation: Conversation) -> list[str]:
    """Everything a client wrote that may come into the prompt."""
    offers = [msgspec.to_builtins(offer) for offer in conversation.tools]
    return [conversation.instructions or "", *special_tokens.strings([msgspec.to_builtins(conversation.items), offers])]
