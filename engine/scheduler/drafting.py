"""Selects the draft of a sequence in a step."""

from collections.abc import Collection

from antiphon.engine.scheduler.sequence import Sequence


def propose_draft(sequence: Sequence, suppressed: Collection[int]) -> list[int]:
    """Returns a draft that fits into the sequence's token limit and into the capacity of its cache.

    It ends before the first of the `suppressed` tokens, which is never generated and may stand for a picture.
    """
    if sequence.needs_prompt_logprobs:
        return []
    spare_capacity = sequence.cache.capacity - len(sequence.tokens)
    draft = sequence.drafter.propose(
        sequence.tokens, min(spare_capacity, sequence.max_new_tokens - sequence.num_generated - 1)
    )
    if not suppressed:
        return draft
    return draft[: next((index for index, token in enumerate(draft) if token in suppressed), len(draft))]
