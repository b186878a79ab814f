"""Passes over two sequences that show faults of states: sequences in turns, prompts in parts, copies, single tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor

from antiphon.engine.forward.interface import SequenceInput
from antiphon.engine.forward.recurrent.forward import RecurrentForward
from antiphon.engine.forward.sequential import SequentialForward

REMAINDER_TOKENS = 14
"""Tokens of the first sequence after its first block."""

SHORT_TOKENS = 18
"""Tokens of the second sequence, less than a block."""

NUM_SINGLE_TOKENS = 4
"""Number of last tokens that run one by one, as generated tokens do."""


@torch.inference_mode()
def probe_sequential(forward: SequentialForward, sequences: Sequence[list[int]]) -> Tensor:
    """Logits (12, vocabulary) as `probe_packed` returns them, from each sequence alone, its prompt whole."""
    first, second = (_run_alone(forward, ids) for ids in sequences)
    return torch.cat([first, second, first])


def _run_alone(forward: SequentialForward, ids: list[int]) -> Tensor:
    cache, split = forward.new_cache(0), len(ids) - NUM_SINGLE_TOKENS
    forward.run([SequenceInput(cache, ids[:split], 0)])
    return torch.cat([forward.run([SequenceInput(cache, [token], 1)]) for token in ids[split:]])


@torch.inference_mode()
def probe_packed(forward: RecurrentForward, sequences: Sequence[list[int]]) -> Tensor:
    """Logits of the last four tokens of the first sequence, of the second, and of a copy of the first.

    The copy begins at a snapshot within the prompt, while the sequences decode.
    """
    logits: dict[tuple[int, int], Tensor] = {}
    caches = [forward.new_cache(0), forward.new_cache(0)]
    ids = [*sequences, sequences[0]]
    block = forward.prompt_alignment
    caches[0].plan_snapshots([block])
    splits = [len(tokens) - NUM_SINGLE_TOKENS for tokens in ids]

    def run(*parts: tuple[int, int]) -> None:
        """Runs a pass that reads each of these sequences up to this length."""
        inputs = []
        for number, end in parts:
            start = caches[number].length
            inputs.append(
                SequenceInput(
                    caches[number], ids[number][start:end], int(end > splits[number]), int(end > splits[number])
                )
            )
        rows = iter(forward.run(inputs))
        logits.update({part: next(rows) for part in parts if part[1] > splits[part[0]]})

    a, b = splits[:2]
    run((0, block))
    run((0, a), (1, b))
    run((0, a + 1), (1, b + 1))
    run((1, b + 2), (0, a + 2))
    caches.append(caches[0].copy(block, 0))
    run((0, a + 3), (2, a), (1, b + 3))
    run((2, a + 1), (0, a + 4), (1, b + 4))
    for end in range(a + 2, a + NUM_SINGLE_TOKENS + 1):
        run((2, end))
    return torch.stack([logits[part] for part in sorted(logits)])
