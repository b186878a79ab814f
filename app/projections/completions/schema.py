"""Schema of text completions: the chunks of a stream, and the complete reply.

Keys that are `UNSET` are not sent. A complete choice is the sum of its parts in the chunks.
"""

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from antiphon.app.projections.chat.schema import ChatUsage, CompletionDetails, TokenDetails
from antiphon.app.projections.prompt_logprobs import PromptLogprobs

CompletionFinish = Literal["stop", "length", "content_filter"]


class CompletionLogprobs(Struct, frozen=True, kw_only=True):
    """Log-probabilities in columns: one entry per token. The first token of a prompt has none."""

    tokens: tuple[str, ...] = ()
    token_logprobs: tuple[float | None, ...] = ()
    top_logprobs: tuple[dict[str, float] | None, ...] = ()
    text_offset: tuple[int, ...] = ()


class CompletionChoice(Struct, frozen=True, kw_only=True):
    """One choice, or a part of it in a chunk."""

    index: int
    text: str = ""
    logprobs: CompletionLogprobs | None = None
    finish_reason: CompletionFinish | None = None
    stop_reason: int | str | None = None
    """Stop string or token id of the request that ended the text."""
    token_ids: tuple[int, ...] | UnsetType = UNSET
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class TextCompletion(Struct, frozen=True, kw_only=True):
    """A complete reply, or a chunk of a stream. In chunks, `usage` is null or absent before the last one."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: tuple[CompletionChoice, ...]
    usage: ChatUsage | None | UnsetType = UNSET


class CompletionCounts(Struct, frozen=True, kw_only=True):
    """Token counts of one turn so far."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


def completion_usage(counts: Sequence[CompletionCounts], turns_per_prompt: int) -> ChatUsage:
    """Returns the usage of all turns together. The prompt that turns share is counted once."""
    prompts = counts[::turns_per_prompt]
    num_prompt, num_output = sum(each.input_tokens for each in prompts), sum(each.output_tokens for each in counts)
    return ChatUsage(
        prompt_tokens=num_prompt,
        completion_tokens=num_output,
        total_tokens=num_prompt + num_output,
        prompt_tokens_details=TokenDetails(cached_tokens=sum(each.cached_tokens for each in prompts)),
        completion_tokens_details=CompletionDetails(),
    )
