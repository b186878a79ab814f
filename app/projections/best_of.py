"""Ranks the choices that were sampled for one prompt, for `best_of`."""


def rank_choices(mean_logprobs: list[float], count: int) -> list[int]:
    """Returns the numbers of the `count` choices with the highest mean log-probability, the best first.

    If all are to be returned, they keep their order.
    """
    numbers = list(range(len(mean_logprobs)))
    if count == len(numbers):
        return numbers
    return sorted(numbers, key=lambda number: -mean_logprobs[number])[:count]
