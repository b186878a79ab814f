"""Batches of token ids for training, made on the fly in a process of their own.

Dialogues are drawn in chunks, sorted by length within a chunk and cut into batches of about equal token count, so that
little is padding. A chunk's content depends on the seed and its number only.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from tokenizers import Tokenizer
from torch.utils.data import IterableDataset

from antiphon.engine.embedded import chat, generator

DIALOGUES_PER_CHUNK = 384
"""How many dialogues are drawn at a time."""
Batch = tuple[torch.Tensor, torch.Tensor]


def pad_rows(rows: list[tuple[list[int], list[bool]]]) -> Batch:
    """Ids padded on the right (long, [rows, length]) and the mask of the positions to learn (bool, same shape).

    Padding needs no attention mask: it comes after everything that is learned and attention looks back only.
    """
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros(len(rows), longest, dtype=torch.bool)
    for n, (row, marks) in enumerate(rows):
        ids[n, : len(row)] = torch.tensor(row)
        mask[n, : len(row)] = torch.tensor(marks)
    return ids, mask


class TrainingBatches(IterableDataset[Batch]):
    """An endless stream of a course's batches; sizes grow from short to full over the first `ramp` batches."""

    def __init__(self, tokenizer: str, seed: int, tokens: int, ramp: int = 1, course: str = "everything") -> None:
        self.tokenizer, self.seed, self.tokens, self.ramp, self.course = tokenizer, seed, tokens, ramp, course

    def build_chunk(self, tokenizer: Tokenizer, number: int, size: float) -> list[Batch]:
        """The batches of one chunk, in random order."""
        seed = self.seed if self.course == "everything" else f"{self.seed} {self.course}"
        drawn = [
            generator.training_dialogue(f"{seed} {number} {n}", size, self.course) for n in range(DIALOGUES_PER_CHUNK)
        ]
        rows = [chat.encode_dialogue(tokenizer, one) for one in drawn]
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
        """Chunk after chunk, for ever."""
        torch.set_num_threads(1)
        tokenizer = Tokenizer.from_str(self.tokenizer)
        number, done = 0, 0
        while True:
            batches = self.build_chunk(tokenizer, number, min(1.0, done / self.ramp))
            yield from batches
            number, done = number + 1, done + len(batches)
