"""Rules of the output of a turn, which its request sets."""

from typing import Literal

from msgspec import Struct

from antiphon.app.turn_types.step_detail import TokenDetailRequest

Purpose = Literal["reasoning", "compaction"]
"""Use of a sealed text."""


class TurnRules(Struct, frozen=True, kw_only=True):
    """The rules of one turn, which hold in all its rounds."""

    stop_strings: tuple[str, ...] = ()
    is_plain_text: bool = False
    """True for the output of a text completion, which is nothing but text."""
    keep_special_tokens: bool = False
    """True if control tokens in plain text are part of it."""
    single_call: bool = False
    """True if a round of the model ends after one complete call."""
    max_tool_calls: int | None = None
    """The request's limit of calls that the server runs, which the ending of the turn names."""
    max_tokens: int | None = None
    """Number of tokens that all rounds may generate together; None: the context is the only limit."""
    prefill_only: bool = False
    """True if the turn only prefills the prompt and returns no output."""
    ends_compacted: bool = False
    """True if the turn is nothing but a summary of the conversation."""
    encrypt_reasoning: bool = False
    logprobs: bool = False
    """True if events carry log-probabilities."""
    details: TokenDetailRequest = TokenDetailRequest()
