"""Log-probabilities of a prompt, in vLLM's form, for chat and text completions."""

from msgspec import UNSET, Struct, UnsetType

from antiphon.app.turn_types.step_detail import PromptDetail, ScoredToken


class PromptTokenLogprob(Struct, frozen=True, kw_only=True):
    """One candidate for a position of a prompt. `rank` is null if it is not among the most likely tokens."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = tuple[dict[str, PromptTokenLogprob] | None, ...]
"""Candidates for each position of a prompt by token id; null for the first position."""


def list_prompt_logprobs(prompt: PromptDetail, count: int | None) -> PromptLogprobs | UnsetType:
    """Returns the candidates for each position: the prompt's own token, and the `count` most likely ones."""
    if count is None:
        return UNSET
    return tuple(
        None if token.logprob is None else _list_candidates(token, token.logprob, count) for token in prompt.logprobs
    )


def _list_candidates(token: ScoredToken, logprob: float, count: int) -> dict[str, PromptTokenLogprob]:
    ranks = {token_id: rank for rank, (token_id, _, _) in enumerate(token.top, 1)}
    own = PromptTokenLogprob(logprob=logprob, rank=ranks.get(token.id), decoded_token=token.text)
    others = {
        str(token_id): PromptTokenLogprob(logprob=value, rank=ranks[token_id], decoded_token=text)
        for token_id, text, value in token.top[:count]
    }
    return {str(token.id): own} | others
