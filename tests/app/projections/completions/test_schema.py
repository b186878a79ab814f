"""Usage of text completions of several prompts and choices."""

import pytest

from antiphon.app.projections.completions.schema import CompletionCounts, completion_usage


def counts(input_tokens: int, cached_tokens: int, output_tokens: int) -> CompletionCounts:
    return CompletionCounts(input_tokens=input_tokens, cached_tokens=cached_tokens, output_tokens=output_tokens)


TURNS = [counts(10, 4, 1), counts(10, 5, 2), counts(10, 6, 3), counts(20, 8, 4), counts(20, 9, 5), counts(20, 7, 6)]


@pytest.mark.parametrize(("turns_per_prompt", "prompt", "cached"), [(1, 90, 39), (2, 40, 19), (3, 30, 12), (6, 10, 4)])
def test_prompt_that_turns_share_is_counted_once(turns_per_prompt: int, prompt: int, cached: int) -> None:
    usage = completion_usage(TURNS, turns_per_prompt)
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (prompt, 21, prompt + 21)
    assert usage.prompt_tokens_details.cached_tokens == cached
