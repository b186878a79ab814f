"""The form of replies, as requests determine it."""

from typing import Literal

from msgspec import Struct


class ReplyForm(Struct, frozen=True, kw_only=True):
    """The form of a reply, whatever the API."""

    stream: bool = False
    obfuscate: bool = False
    """True if the chunks of a stream are padded, so that their lengths do not reveal the text to an eavesdropper."""


class ResponsesForm(ReplyForm, frozen=True, kw_only=True):
    """The form of a response."""

    include: frozenset[str] = frozenset()
    """Values of the request's `include`."""


class MessagesForm(ReplyForm, frozen=True, kw_only=True):
    """The form of an Anthropic message."""

    show_thinking: bool = True
    """False if the text of reasoning is left out of its blocks."""
    dropped: tuple[str, ...] = ()
    """Paths of parts of the request that are not shown to the model, which the reply names in a header."""


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


class ChatForm(ReplyForm, frozen=True, kw_only=True):
    """The form of a chat completion, as the request and the server's settings determine it."""

    logprobs: bool = False
    as_function_call: bool = False
    """True if a call is returned in the deprecated form, as `function_call`."""
    reasoning_field: Literal["reasoning_content", "reasoning"] = "reasoning_content"
    include_usage: bool = False
    """True if a last chunk reports the usage."""
    continuous_usage: bool = False
    """True if every chunk reports the usage so far."""
    options: ChatOptions = ChatOptions()


class CompletionForm(ReplyForm, frozen=True, kw_only=True):
    """The form of a text completion. Choice number i of prompt p has the index p * `n` + i."""

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
