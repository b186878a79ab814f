"""Data of the steps of a turn besides their events: token ids, log-probabilities, times."""

from msgspec import Struct

from antiphon.harmony.tools import UnofferedCall


class ScoredToken(Struct, frozen=True, gc=False):
    """A token and its log-probability; None for the first token of a prompt."""

    id: int
    text: str
    logprob: float | None
    offset: int
    """Offset of the token's first character in the text that it belongs to, the output's or the prompt's."""
    top: tuple[tuple[int, str, float], ...] = ()
    """Id, text and log-probability of the most likely tokens, most likely first."""


def token_text(data: bytes) -> str:
    """Returns the text of a token; the bytes of one that is only part of a character, in hexadecimal."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class PromptDetail(Struct, frozen=True, kw_only=True, gc=False):
    """A prompt as the model reads it."""

    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[ScoredToken, ...] = ()


class TokenDetail(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Data of a step that no Responses event carries but other APIs need. Readers of the Responses API never see it."""

    tokens: tuple[int, ...] = ()
    """Token ids that the engine returned since the previous step with events."""
    logprobs: tuple[ScoredToken, ...] = ()
    """One entry for each of `tokens`, if the turn collects them."""
    dropped_text: str = ""
    """White space of the output that no event carries, because it belongs to no item."""
    prompt: PromptDetail | None = None
    """The prompt, once in a turn that collects it; with its log-probabilities if those are collected."""
    stop_string: str | None = None
    """Stop string that ended the turn."""
    stop_id: int | None = None
    """Token id that ended the turn."""
    input_tokens: int = 0
    """Number of tokens in the prompt; set when the engine has admitted the turn."""
    cached_tokens: int = 0
    """Number of prompt tokens that a prefix cache held; set when the engine has admitted the turn."""
    at_us: int = 0
    """Microseconds from the request to this step, in a turn that is recorded."""
    unoffered: tuple[UnofferedCall, ...] = ()
    """Calls of tools that were not offered. Their tokens are numbered over all of the turn."""
    inputs: bytes = b""
    """Numbers of the machine's cells that ran since the previous step (`state.table.CELLS`), likewise."""


class TokenDetailRequest(Struct, frozen=True, kw_only=True):
    """Data that the details of a turn's log contain besides those of every turn."""

    logprobs: bool = False
    """The log-probabilities of generated tokens, with their offsets."""
    prompt: bool = False
    """The prompt's text and tokens."""
    prompt_logprobs: int | None = None
    """Most likely tokens to report for each token of the prompt besides its own; None: no log-probabilities."""
