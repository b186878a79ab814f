"""The form of replies, as requests determine it."""

from msgspec import Struct


class ChatOptions(Struct, frozen=True, kw_only=True):
    """Settings of a reply that a request makes with fields of vLLM's API."""

    num_returned: int | None = None
    """Number of choices to return, the best of those that were sampled; None: all."""
    echo_text: str = ""
    """Text of the last message, with which that of each choice begins."""
    token_ids: bool = False
    tokens_as_ids: bool = False
    """True if tokens are written as `token_id:123` in log-probabilities."""
    include_stop: bool = False
    """True if the text ends with the stop string that was found."""
    stop_ids: frozenset[int] = frozenset()
    """Token ids that the request named as ends of the text."""
    prompt_logprobs: int | None = None
    """Number of candidates to return for each position of the prompt besides its own token; None: no candidates."""
    request_id: str = ""
    """The client's own id of the request, or empty."""


class CompletionOptions(Struct, frozen=True, kw_only=True):
    """The form of the reply to one request. Choice number i of prompt p has the index p * `n` + i."""

    n: int = 1
    best_of: int = 1
    """Number of choices that are sampled; the best `n` of them are returned."""
    echo: bool = False
    logprobs: int | None = None
    """Number of most likely tokens to return besides the chosen one; None: no log-probabilities."""
    prompt_logprobs: int | None = None
    """Number of candidates to return for each position of the prompt besides its own token; None: no candidates."""
    token_ids: bool = False
    tokens_as_ids: bool = False
    """True if tokens are written as `token_id:123` in log-probabilities."""
    include_stop: bool = False
    """True if the text ends with the stop string that was found."""
    stop_ids: frozenset[int] = frozenset()
    """Token ids that the request named as ends of the text."""
    prompt_only: bool = False
    """True if nothing is generated."""
    request_id: str = ""
    """The client's own id of the request, or empty."""
    include_usage: bool = False
    continuous_usage: bool = False
    obfuscate: bool = False
