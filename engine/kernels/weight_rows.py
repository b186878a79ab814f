"""The rows of a weight as they are stored: in one tensor or several, in memory or in a mapped file."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class WeightRows(NamedTuple):
    """A weight (outputs, inputs) whose rows lie in tensors of one type, one after the other.

    `release` is told which rows of which tensor were read and are not needed for now: part, first row, end.
    """

    parts: tuple[Tensor, ...]
    release: Callable[[int, int, int], None] = lambda *_: None

    @classmethod
    def join(
        cls, weights: Sequence[Tensor], release: Callable[[int, int, int], None] = lambda *_: None
    ) -> "WeightRows":
        """Returns the rows of several weights as one weight. Copies only weights whose rows are not contiguous."""
        return cls(tuple(weight if weight.stride(-1) == 1 else weight.contiguous() for weight in weights), release)

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return sum(map(len, self.parts)), self.parts[0].shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """The type in which the weight is stored."""
        return self.parts[0].dtype

    def row_addresses(self) -> Tensor:
        """Returns the address of each row, in int64."""
        return torch.cat(
            [torch.arange(len(part)) * (part.stride(0) * part.itemsize) + part.data_ptr() for part in self.parts]
        )

    def release_rows(self, first: int, end: int) -> None:
        """Reports the rows from `first` to `end` as read."""
        for index, part in enumerate(self.parts):
            if first < len(part) and end > 0:
                self.release(index, max(first, 0), min(end, len(part)))
            first, end = first - len(part), end - len(part)

    def split_rows(self, count: int) -> list[Tensor]:
        """Returns the rows in tensors of at most `count` rows, as they are stored."""
        return [rows for part in self.parts for rows in torch.split(part, count)]

    def take(self, outputs: Tensor) -> Tensor:
        """Returns the rows of some outputs, which are in ascending order, in fp32."""
        rows, first = [], 0
        for part in self.parts:
            inside = (outputs >= first) & (outputs < first + len(part))
            rows.append(part[outputs[inside] - first].float())
            first += len(part)
        return torch.cat(rows)

    def to_fp32(self) -> Tensor:
        """Returns the weight in fp32, as one tensor."""
        parts = [part.float() for part in self.parts]
        return torch.cat(parts) if len(parts) > 1 else parts[0]
