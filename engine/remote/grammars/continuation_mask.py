"""Grammars of jobs that continue after tokens of an earlier run.

A server's grammar begins at its first token, and what is left of a grammar in the middle of an output cannot be written
as a grammar. So the server generates without one, and every token is checked here. At the first token that the grammar
does not allow, the reply is cut, and a request for one token among those that are allowed follows. A token that is
rejected and then drawn among the allowed ones has the probability that it has under the grammar.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Literal

import msgspec

from antiphon.engine.remote.backend_apis.base import GrammarSyntax, JobTarget

GrammarMode = Literal["followed", "checked", "masked"]
"""How a reply keeps the grammar: the server follows it from the first token on; the reply is checked and cut where it
leaves it; or it is one token under a mask."""


def mask_next_token(target: JobTarget, allowed: Sequence[int], syntax: GrammarSyntax, vocab_size: int) -> JobTarget:
    """Returns the values of a request for one of these tokens, which are in ascending order."""
    allowed = allowed[: bisect_left(allowed, vocab_size)]  # a bit mask has whole words
    if syntax == "lark":
        return msgspec.structs.replace(target, max_tokens=1, grammar=f"start: <[{_join_ranges(allowed)}]>")
    others = set(range(vocab_size)).difference(allowed)  # GBNF of older builds has no token ids
    return msgspec.structs.replace(target, max_tokens=1, banned_ids=tuple(sorted(others)))


def _join_ranges(tokens: Sequence[int]) -> str:
    """Returns ids as text: `3-5,8` for 3, 4, 5 and 8."""
    ranges: list[list[int]] = []
    for token in tokens:
        if ranges and token == ranges[-1][1] + 1:
            ranges[-1][1] = token
        else:
            ranges.append([token, token])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in ranges)
