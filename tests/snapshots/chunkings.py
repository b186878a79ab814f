"""Re-chunkings of a case: the same tokens, cut into other chunks of the engine."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from antiphon.harmony.format import ModelFormat
from tests.counts import FULL_COUNTS
from tests.snapshots.cases import Case
from tests.snapshots.run_case import make_single_case_registry

FIXED_STEPS = (1, 2, 3) if FULL_COUNTS else (1, 3)
"""Tokens of each chunk, in the chunkings that have equal chunks."""
RANDOM_CHUNKINGS = 20 if FULL_COUNTS else 1
CUT_PROBABILITY = 0.3
"""Probability that a random chunking cuts after a token."""


def list_chunkings(case: Case, *, single_cuts: bool = FULL_COUNTS) -> dict[str, Case]:
    """Returns the case in each of its chunkings, by name; with `single_cuts`, one for every single cut, too."""
    [model] = make_single_case_registry(case).served
    count = len(output_tokens(case, model.format))
    rng = random.Random(f"chunkings of {case.name}")
    cuts_by_name: dict[str, Sequence[int]] = {"one chunk": ()}
    cuts_by_name |= {f"chunks of {step}": range(step, count, step) for step in FIXED_STEPS}
    cuts_by_name |= {
        f"random cuts {number}": [cut for cut in range(1, count) if rng.random() < CUT_PROBABILITY]
        for number in range(RANDOM_CHUNKINGS)
    }
    if single_cuts:
        cuts_by_name |= {f"a cut after token {cut}": (cut,) for cut in range(1, count)}
    return {"as written": case} | {name: _cut_case(case, cuts, model.format) for name, cuts in cuts_by_name.items()}


def output_tokens(case: Case, model_format: ModelFormat) -> list[int]:
    """Returns the tokens of the output, up to a fault or a stall, and those after the first stop token, too."""
    return [token for entry in case.output for token in _entry_tokens(entry, model_format)]


def _cut_case(case: Case, cuts: Sequence[int], model_format: ModelFormat) -> Case:
    """Returns the case with chunks that end at `cuts`, and also where the script pauses, stalls or fails."""
    output: list[Any] = []
    boundaries, position, chunk = set(cuts), 0, list[int]()
    for entry in case.output:
        tokens = _entry_tokens(entry, model_format)
        for token in tokens:
            chunk.append(token)
            position += 1
            if position in boundaries:
                output.append({"ids": chunk})
                chunk = []
        if not tokens:
            output += [{"ids": chunk}, entry] if chunk else [entry]
            chunk = []
    return replace(case, output=[*output, {"ids": chunk}] if chunk else output, step=0)


def _entry_tokens(entry: Any, model_format: ModelFormat) -> list[int]:
    if isinstance(entry, str):
        return model_format.encode(entry)
    return list(entry.get("ids", ()))
