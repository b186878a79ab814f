"""The part of a turn that another process needs to continue it, as it is stored with the first step."""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from antiphon.app.requests.turn_spec import ApprovalAnswer, TurnSpec
from antiphon.app.turn_types.step_detail import TokenDetailRequest
from antiphon.app.turn_types.turn_prompt import TurnPrompt
from antiphon.engine.protocol import Job
from antiphon.events.inputs import AnyInput, InputCustomCall, InputFunctionCall
from antiphon.events.response import Response
from antiphon.harmony.format import PromptInput, TemplateOptions
from antiphon.harmony.grammar import OutputConstraint
from antiphon.harmony.rendered_prompt import RenderedPrompt
from antiphon.harmony.tools import ToolSpec, ToolTable
from antiphon.state.drafts import OutputSettings

FORMAT_NUMBER = 2
"""Number of the format of stored turns. A process continues turns of its own number only."""


class ContinuableTurn(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A turn without its conversation: the engine needs the prompt's ids only, and the events are stored as such."""

    format_number: int
    job: Job
    """The job with its seed."""
    prompt_input: PromptInput
    """The tools, and what the request says of the answer. Of its conversation, there are only the calls."""
    constraint_json: bytes = b""
    """The form of the answer, as JSON, until the turn is decoded; empty if it has none."""
    in_reasoning: bool = False
    in_text: bool = False
    in_wrapper: bool = False
    stop_strings: tuple[str, ...] = ()
    single_call: bool = False
    encrypt_reasoning: bool = False
    answers: tuple[ApprovalAnswer, ...] = ()
    """Denials in the input, which can be sent again if the turn fails."""
    output_settings: OutputSettings = OutputSettings()
    key_id: str = ""
    """Id of the API key that the turn is counted for; empty if it had none."""

    def build_spec(self, base_response: Response) -> TurnSpec:
        """Returns the turn to run."""
        return TurnSpec(
            base_response=base_response,
            prompt_input=self.prompt_input,
            sampling=self.job.sampling,
            stop_strings=self.stop_strings,
            single_call=self.single_call,
            encrypt_reasoning=self.encrypt_reasoning,
        )

    def build_prompt(self) -> RenderedPrompt:
        """Returns the prompt as the engine reads it, without its text."""
        return RenderedPrompt(
            self.job.tokens,
            "",
            in_reasoning=self.in_reasoning,
            in_text=self.in_text,
            in_wrapper=self.in_wrapper,
        )


def _encode_tools(value: object) -> bytes:
    """Returns the tools as JSON: their schemas may hold integers of any size, for which msgpack has 64 bits."""
    assert isinstance(value, ToolTable)
    return msgspec.json.encode(tuple(value))


def _build_table(_: type, tools: bytes) -> ToolTable:
    return ToolTable(msgspec.json.decode(tools, type=tuple[ToolSpec, ...]))


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_tools)
_decoder = msgspec.msgpack.Decoder(ContinuableTurn, dec_hook=_build_table)


def can_continue(spec: TurnSpec, prompt: TurnPrompt) -> bool:
    """Tells whether another process can continue a turn.

    It can if the turn is a response in the background that has one job: no tools of the server, no compaction, no
    pictures. Events with log-probabilities cannot be compared with those of a second run. A foreground response shows
    its events before they are stored, so a second run could number them in another way.
    """
    response = spec.base_response
    return bool(
        response.background
        and response.store
        and spec.stored_chat is None
        and spec.hosted_tools is None
        and spec.text_completion is None
        and not (spec.compact or spec.prefill_only or spec.logprobs or prompt.summary)
        and spec.details == TokenDetailRequest()
        and not prompt.prompt.media
        and spec.time_limit is None
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


def encode_turn(
    spec: TurnSpec, prompt: TurnPrompt, job: Job, output_settings: OutputSettings, key_id: str = ""
) -> bytes:
    """Returns a turn that `can_continue` as bytes."""
    prompt_input = msgspec.structs.replace(
        prompt.prompt_input,
        instructions=None,
        items=_list_citable(prompt.prompt_input.items),
        template=TemplateOptions(),
        images={},
        output_constraint=None,
    )
    constraint = prompt.prompt_input.output_constraint
    turn = ContinuableTurn(
        format_number=FORMAT_NUMBER,
        job=job,
        prompt_input=prompt_input,
        constraint_json=b"" if constraint is None else msgspec.json.encode(constraint),
        in_reasoning=prompt.prompt.in_reasoning,
        in_text=prompt.prompt.in_text,
        in_wrapper=prompt.prompt.in_wrapper,
        stop_strings=spec.stop_strings,
        single_call=spec.single_call,
        answers=spec.answers,
        encrypt_reasoning=spec.encrypt_reasoning,
        output_settings=output_settings,
        key_id=key_id,
    )
    return _encoder.encode(turn)


def decode_turn(data: bytes) -> ContinuableTurn:
    """Returns a stored turn. Raises `ValueError` for one that this version of the program did not write."""
    turn = _decoder.decode(data)
    if turn.format_number != FORMAT_NUMBER:
        raise ValueError(f"the turn has format {turn.format_number}, not {FORMAT_NUMBER}")
    if not turn.constraint_json:
        return turn
    constraint = msgspec.json.decode(turn.constraint_json, type=OutputConstraint)
    prompt_input = msgspec.structs.replace(turn.prompt_input, output_constraint=constraint)
    return msgspec.structs.replace(turn, prompt_input=prompt_input, constraint_json=b"")
