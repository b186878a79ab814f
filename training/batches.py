"""Batches of token ids for training, generated on the fly in a DataLoader worker process.

Dialogues are generated in chunks. Each chunk is sorted by length and cut into batches of about equal token count, so
that little of a batch is padding. A chunk's content depends only on the seed, the course, its number and `size`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from tokenizers import Tokenizer
from torch.utils.data import IterableDataset

from training import chat, generator

DIALOGUES_PER_CHUNK = 384
"""Number of dialogues generated and sorted together."""
Batch = tuple[torch.Tensor, torch.Tensor]
"""Token ids and loss mask, both [rows, length]."""


def pad_rows(rows: list[tuple[list[int], list[bool]]]) -> Batch:
    """Pads token ids on the right and returns them (long, [rows, length]) with the loss mask (bool, same shape).

    Padding needs no attention mask: it follows every position to learn, and attention is causal.
    """
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros(len(rows), longest, dtype=torch.bool)
    for n, (row_ids, row_mask) in enumerate(rows):
        ids[n, : len(row_ids)] = torch.tensor(row_ids)
        mask[n, : len(row_ids)] = torch.tensor(row_mask)
    return ids, mask


class TrainingBatches(IterableDataset[Batch]):
    """Endless stream of a course's batches. Dialogues grow from short to full size over the first `ramp` batches."""

    def __init__(self, tokenizer: str, seed: int, tokens: int, ramp: int = 1, course: str = "everything") -> None:
        self.tokenizer, self.seed, self.tokens, self.ramp, self.course = tokenizer, seed, tokens, ramp, course

    def build_chunk(self, tokenizer: Tokenizer, number: int, size: float) -> list[Batch]:
        """Builds the batches of one chunk, in random order. `size`, from 0 to 1, scales its dialogues."""
        seed = self.seed if self.course == "everything" else f"{self.seed} {self.course}"
        dialogues = [
            generator.training_dialogue(f"{seed} {number} {n}", size, self.course) for n in range(DIALOGUES_PER_CHUNK)
        ]
        rows = [chat.encode_dialogue(tokenizer, dialogue) for dialogue in dialogues]
        rows.sort(key=lambda row: len(row[0]))
        batches, current = [], rows[:1]
        for row in rows[1:]:
            if (len(current) + 1) * len(row[0]) > self.tokens:
                batches.append(pad_rows(current))
                current = []
            current.append(row)
        batches.append(pad_rows(current))
        random.Random(f"{self.seed} {number}").shuffle(batches)
        return batches

    def __iter__(self) -> Iterator[Batch]:
        """Yields the batches of one chunk after another, without end."""
        torch.set_num_threads(1)
        tokenizer = Tokenizer.from_str(self.tokenizer)
        number, batch_count = 0, 0
        while True:
            batches = self.build_chunk(tokenizer, number, min(1.0, batch_count / self.ramp))
            yield from batches
            number, batch_count = number + 1, batch_count + len(batches)
