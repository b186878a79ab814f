"""The part of a turn that another process needs to continue it, as it is stored with the first step."""

import msgspec
from msgspec import Struct

from antiphon.app.requests.turn_spec import ApprovalAnswer, TurnSpec
from antiphon.app.turn_types.step_detail import TokenDetailRequest
from antiphon.app.turn_types.turn_prompt import TurnPrompt
from antiphon.app.turns.continuation.turn_head import PromptEnd, TurnHead, build_head, decode_tools, encode_tools
from antiphon.engine.protocol import Job
from antiphon.state.drafts import OutputSettings

FORMAT_NUMBER = 3
"""Number of the format of stored turns. A process continues turns of its own number only."""


class _Numbered(Struct):
    """The part of a stored turn that all formats have."""

    format_number: int


class ContinuableTurn(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A turn without its conversation."""

    format_number: int
    head: TurnHead
    job: Job
    """The job with its seed."""
    prompt_end: PromptEnd
    answers: tuple[ApprovalAnswer, ...] = ()
    """Denials in the input, which can be sent again if the turn fails."""
    key_id: str = ""
    """Id of the API key that the turn is counted for; empty if it had none."""


_encoder = msgspec.msgpack.Encoder(enc_hook=encode_tools)
_decoder = msgspec.msgpack.Decoder(ContinuableTurn, dec_hook=decode_tools)
_number_decoder = msgspec.msgpack.Decoder(_Numbered)


def can_continue(spec: TurnSpec, prompt: TurnPrompt) -> bool:
    """Tells whether another process can continue a turn.

    It can if the turn is a response in the background that has one job: no tools of the server, no compaction, no
    pictures. A foreground response shows its events before they are stored, so a second run could number them in
    another way.
    """
    response = spec.base_response
    return bool(
        response.background
        and response.store
        and spec.stored_chat is None
        and spec.hosted_tools is None
        and spec.text_completion is None
        and not (spec.compact or spec.prefill_only or prompt.summary)
        and spec.details == TokenDetailRequest()
        and not prompt.prompt.media
        and spec.time_limit is None
    )


def encode_turn(
    spec: TurnSpec, prompt: TurnPrompt, job: Job, settings: OutputSettings, dice_key: bytes, key_id: str = ""
) -> bytes:
    """Returns a turn that `can_continue` as bytes. `key_id`: see `ContinuableTurn`."""
    turn = ContinuableTurn(
        format_number=FORMAT_NUMBER,
        head=build_head(spec.build_rules(), prompt, settings, dice_key),
        job=job,
        prompt_end=PromptEnd.of(prompt.prompt),
        answers=spec.answers,
        key_id=key_id,
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
