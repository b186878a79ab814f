"""The part of a turn that another process needs to continue it, as it is stored with the first step."""

from datetime import datetime

import msgspec
from msgspec import Struct, structs

from antiphon.app.requests.turn_spec import ApprovalAnswer, TurnSpec
from antiphon.app.sandbox.sandboxed_template import SandboxedTemplate
from antiphon.app.tools.stored_tools import StoredTools
from antiphon.app.turn_types.turn_stats import Api
from antiphon.app.turns.continuation.turn_head import PromptEnd, TurnHead, build_head, decode_tools, encode_tools
from antiphon.app.turns.prompts.preparation import Choice
from antiphon.engine.protocol import Job
from antiphon.events.inputs import AnyInput
from antiphon.events.response import Response
from antiphon.harmony.format import PromptInput, TemplateOptions
from antiphon.state.drafts import OutputSettings

FORMAT_NUMBER = 4
"""Number of the format of stored turns. A process continues turns of its own number only."""


class _Numbered(Struct):
    """The part of a stored turn that all formats have."""

    format_number: int


class PromptConversation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The conversation of a prompt. It is kept as JSON, which has integers of any size."""

    items: tuple[AnyInput, ...]
    instructions: str | None = None
    template: TemplateOptions = TemplateOptions()


class LaterPrompts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The parts from which prompts are rendered again: of a turn with images, with tools of the server or compacted."""

    conversation_json: bytes
    now: datetime
    prompt_param: str = "input"
    truncate: bool = False
    max_prompt_tokens: int | None = None
    compact_threshold: int | None = None
    summary_tokens: tuple[int, ...] = ()
    """The prompt of a summary that is generated first."""
    tools: StoredTools | None = None

    @classmethod
    def of(cls, spec: TurnSpec, choice: Choice) -> "LaterPrompts":
        """Returns those of a turn that begins."""
        prompt, tools = choice.prompt, choice.tools
        sent, items = prompt.prompt_input, prompt.prompt_input.items
        is_whole = choice.media.items is not None and len(items) == len(choice.media.items)
        conversation = PromptConversation(
            # With its files, of whose pages the store has no images; what was left out stays so.
            items=choice.media.items if is_whole and choice.media.items is not None else items,
            instructions=sent.instructions,
            template=structs.replace(sent.template, compile_source=None),
        )
        return cls(
            conversation_json=msgspec.json.encode(conversation),
            now=prompt.now,
            prompt_param=spec.prompt_param,
            truncate=spec.truncate,
            max_prompt_tokens=spec.max_prompt_tokens,
            compact_threshold=spec.compact_threshold,
            summary_tokens=() if prompt.summary is None else prompt.summary.prompt.tokens,
            tools=None if tools is None else tools.stored,
        )

    def restore_input(self, prompt_input: PromptInput) -> PromptInput:
        """Returns the input of a prompt with the conversation."""
        conversation = msgspec.json.decode(self.conversation_json, type=PromptConversation)
        template = conversation.template
        if template.source is not None:
            template = structs.replace(template, compile_source=SandboxedTemplate)
        return structs.replace(
            prompt_input, items=conversation.items, instructions=conversation.instructions, template=template
        )


class StoredFigures(Struct, frozen=True, array_like=True):
    """The figures of a turn that its end needs: see `TurnStats`. `key_id` is empty for a turn without a key."""

    api: Api = "responses"
    key_id: str = ""
    counts_input: bool = True
    counts_request: bool = True


class ContinuableTurn(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A turn that another process can continue. Without `later`, no prompt is rendered again."""

    format_number: int
    head: TurnHead
    job: Job
    """The first job with its seed; after a summary that is generated first, the next one."""
    prompt_end: PromptEnd
    later: LaterPrompts | None = None
    answers: tuple[ApprovalAnswer, ...] = ()
    """Answers in the input, which can be sent again if the turn fails."""
    figures: StoredFigures = StoredFigures()
    keeps_details: bool = False
    """See `EventLog`."""

    def restore_spec(self, base_response: Response) -> TurnSpec:
        """Returns what prompts and jobs of the rest depend on. The core has the rules of its output: see `TurnHead`.

        Raises `MsgspecError`.
        """
        later, job, rules = self.later, self.job, self.head.rules
        spec = TurnSpec(
            base_response=base_response,
            prompt_input=self.head.restore_input(),
            sampling=job.sampling,
            compact=rules.ends_compacted,
            prefill_only=rules.prefill_only,
            details=rules.details,
            cache_salt=job.cache_salt,
            priority=job.priority,
        )
        if later is None:
            return spec
        return structs.replace(
            spec,
            prompt_input=later.restore_input(spec.prompt_input),
            prompt_param=later.prompt_param,
            truncate=later.truncate,
            max_prompt_tokens=later.max_prompt_tokens,
            compact_threshold=later.compact_threshold,
        )


_encoder = msgspec.msgpack.Encoder(enc_hook=encode_tools)
_decoder = msgspec.msgpack.Decoder(ContinuableTurn, dec_hook=decode_tools)
_number_decoder = msgspec.msgpack.Decoder(_Numbered)


def can_continue(spec: TurnSpec) -> bool:
    """Tells whether another process can continue a turn: it must be stored."""
    return bool(spec.base_response.store) and spec.text_completion is None and spec.time_limit is None


def encode_turn(
    spec: TurnSpec, choice: Choice, job: Job, settings: OutputSettings, dice_key: bytes, figures: StoredFigures
) -> bytes:
    """Returns a turn that `can_continue` as bytes. `spec` has the turn's id and seed, `choice` the other parts."""
    prompt, tools = choice.prompt, choice.tools
    has_later = tools is not None or spec.compact or prompt.summary is not None or prompt.prompt.media
    turn = ContinuableTurn(
        format_number=FORMAT_NUMBER,
        head=build_head(spec.build_rules(), prompt, settings, dice_key, None if tools is None else tools.rules),
        job=job,
        prompt_end=PromptEnd.of(prompt.prompt),
        later=LaterPrompts.of(spec, choice) if has_later else None,
        answers=spec.answers,
        figures=figures,
        keeps_details=spec.stored_chat is not None,
    )
    return _encoder.encode(turn)


def decode_turn(data: bytes) -> ContinuableTurn:
    """Returns a stored turn. Raises `ValueError` for one that this version of the program did not write."""
    try:
        number = _number_decoder.decode(data).format_number
        if number != FORMAT_NUMBER:
            raise ValueError(f"the turn has format {number}, not {FORMAT_NUMBER}")
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise ValueError(f"the stored turn is unreadable: {error}") from None
