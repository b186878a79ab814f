"""The usage of a turn: the sum of all its jobs."""

from collections.abc import Sequence

from antiphon.app.turns.compaction import SummaryReader
from antiphon.app.turns.rounds import Round
from antiphon.events.response import InputTokensDetails, OutputTokensDetails, Usage


def sum_usage(rounds: Sequence[Round], summary: SummaryReader | None) -> Usage:
    """Returns the sum of the rounds of a turn, and of the summary with which it began."""
    num_prompt = sum(each.num_prompt_tokens for each in rounds)
    cached = sum(each.cached_tokens for each in rounds)
    num_generated = sum(len(each.generated_tokens) for each in rounds)
    reasoning = sum(each.reader.reasoning_tokens for each in rounds)
    if summary is not None:
        num_prompt += summary.num_prompt_tokens
        cached += summary.num_cached_tokens
        num_generated += summary.num_generated_tokens
        reasoning += summary.reasoning_tokens
    return Usage(
        input_tokens=num_prompt,
        input_tokens_details=InputTokensDetails(cached_tokens=cached),
        output_tokens=num_generated,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=reasoning),
        total_tokens=num_prompt + num_generated,
    )
