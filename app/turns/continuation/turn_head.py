"""The head of a turn: the parts of its core besides the model, as they are stored or recorded with the turn.

Of the conversation, it has the calls only: the engine needs the prompt's ids, and the events are kept as such.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from antiphon.app.tools.call_rules import ApprovedCall, CallRules, DeferredTools
from antiphon.app.tools.search.citations import SourceList
from antiphon.app.turn_types.turn_prompt import TurnPrompt
from antiphon.app.turn_types.turn_rules import Purpose, TurnRules
from antiphon.app.turns.core.dice import TurnDice
from antiphon.app.turns.core.turn_core import TurnCore
from antiphon.events.hosted import McpListTools
from antiphon.events.inputs import AnyInput, InputCustomCall, InputFunctionCall
from antiphon.events.response import PromptCacheDiagnostics, Response
from antiphon.harmony.format import ModelFormat, PromptInput, TemplateOptions
from antiphon.harmony.grammar import OutputConstraint
from antiphon.harmony.rendered_prompt import RenderedPrompt
from antiphon.harmony.tools import ToolSpec, ToolTable
from antiphon.state.drafts import OutputSettings

Seal = Callable[[Purpose, str, str], str]
"""Seals a text for a purpose, under a label."""


class PromptEnd(Struct, frozen=True, array_like=True):
    """The part of a prompt that the reader of its output and the figures need."""

    num_tokens: int
    in_reasoning: bool = False
    in_text: bool = False
    in_wrapper: bool = False

    @classmethod
    def of(cls, prompt: RenderedPrompt) -> "PromptEnd":
        """Returns the end of a prompt."""
        return cls(prompt.num_tokens, prompt.in_reasoning, prompt.in_text, prompt.in_wrapper)

    def build_prompt(self, tokens: Sequence[int] = ()) -> RenderedPrompt:
        """Returns the prompt, without its text; without `tokens`, with as many zeros."""
        return RenderedPrompt(
            tuple(tokens) or (0,) * self.num_tokens,
            "",
            in_reasoning=self.in_reasoning,
            in_text=self.in_text,
            in_wrapper=self.in_wrapper,
        )


class CallsHead(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The tools of a turn that the server runs: see `CallRules`."""

    lists_json: bytes = b"[]"
    approved: tuple[ApprovedCall, ...] = ()
    max_calls: int | None = None
    sources: SourceList = SourceList()
    has_search: bool = False


class TurnHead(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The parts of a core: see `TurnCore`."""

    dice_key: bytes
    prompt_input: PromptInput
    """The tools, and what the request says of the answer. Of its conversation, there are only the calls."""
    constraint_json: bytes = b""
    """The form of the answer, as JSON; empty if it has none."""
    rules: TurnRules = TurnRules()
    settings: OutputSettings = OutputSettings()
    summary: PromptEnd | None = None
    """The prompt of a summary that is generated first."""
    diagnostics: PromptCacheDiagnostics | None = None
    num_comparable: int = 0
    calls: CallsHead | None = None

    def restore_input(self) -> PromptInput:
        """Returns the prompt's input with the form of the answer."""
        if not self.constraint_json:
            return self.prompt_input
        constraint = msgspec.json.decode(self.constraint_json, type=OutputConstraint)
        return msgspec.structs.replace(self.prompt_input, output_constraint=constraint)

    def build_prompt(self, form: ModelFormat, owner: str, prompt: RenderedPrompt) -> TurnPrompt:
        """Returns a prompt of the turn: the first one, unless a summary comes before it."""
        return TurnPrompt(
            format=form,
            owner=owner,
            prompt_input=self.restore_input(),
            now=datetime.fromtimestamp(0, UTC),  # it was rendered before
            rendered_tokens=prompt.tokens,
            prompt=prompt,
            diagnostics=self.diagnostics,
            num_comparable=self.num_comparable,
        )

    def create_core(
        self,
        prompt: TurnPrompt,
        base_response: Response,
        dice: TurnDice,
        clock: Callable[[], int],
        seal: Seal,
        *,
        sign: Callable[[str, str, str, str], str] = lambda *_: "",
        search: DeferredTools | None = None,
    ) -> TurnCore:
        """Returns a new core of the turn. `sign` and `search`: see `CallRules`."""
        if self.summary is not None and prompt.summary is None:
            summary = msgspec.structs.replace(prompt, prompt=self.summary.build_prompt())
            prompt = msgspec.structs.replace(prompt, summary=summary)
        calls = None
        if self.calls is not None:
            calls = CallRules(
                sign=sign,
                lists=msgspec.json.decode(self.calls.lists_json, type=tuple[McpListTools, ...]),
                approved=self.calls.approved,
                max_calls=self.calls.max_calls,
                search=search if self.calls.has_search else None,
                sources=self.calls.sources,
            )
        return TurnCore(
            self.rules,
            prompt,
            base_response,
            dice=dice,
            clock=clock,
            settings=self.settings,
            seal=seal,
            calls=calls,
        )


def build_head(
    rules: TurnRules, prompt: TurnPrompt, settings: OutputSettings, dice_key: bytes, calls: CallRules | None = None
) -> TurnHead:
    """Returns the head of a turn with these parts."""
    prompt_input = msgspec.structs.replace(
        prompt.prompt_input,
        instructions=None,
        items=_list_citable(prompt.prompt_input.items),
        template=TemplateOptions(),
        images={},
        output_constraint=None,
    )
    constraint = prompt.prompt_input.output_constraint
    return TurnHead(
        dice_key=dice_key,
        prompt_input=prompt_input,
        constraint_json=b"" if constraint is None else msgspec.json.encode(constraint),
        rules=rules,
        settings=settings,
        summary=None if prompt.summary is None else PromptEnd.of(prompt.summary.prompt),
        diagnostics=prompt.diagnostics,
        num_comparable=prompt.num_comparable,
        calls=None
        if calls is None
        else CallsHead(
            lists_json=msgspec.json.encode(calls.lists),
            approved=calls.approved,
            max_calls=calls.max_calls,
            sources=calls.sources,
            has_search=calls.search is not None,
        ),
    )


def _list_citable(items: Sequence[AnyInput]) -> tuple[AnyInput, ...]:
    """Returns the calls of a conversation, without their arguments: an output may cite them by number."""
    calls: list[AnyInput] = []
    for item in items:
        if isinstance(item, InputFunctionCall):
            calls.append(msgspec.structs.replace(item, arguments=""))
        elif isinstance(item, InputCustomCall):
            calls.append(msgspec.structs.replace(item, input=""))
    return tuple(calls)


def encode_tools(value: object) -> bytes:
    """Returns the tools as JSON: their schemas may hold integers of any size, for which msgpack has 64 bits."""
    assert isinstance(value, ToolTable)
    return msgspec.json.encode((tuple(value), tuple(value.hidden)) if value.hidden else tuple(value))


def decode_tools(_: type, tools: bytes) -> ToolTable:
    """Returns the tools in JSON."""
    if tools.startswith(b"[["):  # hidden ones, too
        return ToolTable(*msgspec.json.decode(tools, type=tuple[tuple[ToolSpec, ...], tuple[ToolSpec, ...]]))
    return ToolTable(msgspec.json.decode(tools, type=tuple[ToolSpec, ...]))


_encoder = msgspec.msgpack.Encoder(enc_hook=encode_tools)
_decoder = msgspec.msgpack.Decoder(TurnHead, dec_hook=decode_tools)


def encode_head(head: TurnHead) -> bytes:
    """Returns a head as bytes."""
    return _encoder.encode(head)


def decode_head(data: bytes) -> TurnHead:
    """Returns the head in bytes. Raises `ValueError`."""
    try:
        head = _decoder.decode(data)
        head.restore_input()
    except msgspec.MsgspecError as error:
        raise ValueError(f"the head of the turn is unreadable: {error}") from None
    return head
