"""Unpacks small whole numbers from int32 words, in which the first number has the lowest bits."""

import torch
from torch import Tensor

WORD_BITS = 32


def unpack_words(words: Tensor, bits: int, count: int) -> Tensor:
    """Returns the first `count` unsigned numbers of each row: int32 (rows, words) → uint8 (rows, count).

    The numbers of a row follow each other without gaps, also across words, as GPTQ stores 3 bits.
    """
    data = words.contiguous().view(torch.uint8)
    numbers: Tensor
    if bits == 8:
        numbers = data
    elif bits in {1, 2, 4}:
        shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
        numbers = ((data[..., None] >> shifts) & (2**bits - 1)).view(len(data), -1)
    else:
        positions = torch.arange(count) * bits
        low, high = data[:, positions // 8].int(), data[:, (positions + bits - 1) // 8].int()
        numbers = (((high << 8 | low) >> (positions % 8).int()) & (2**bits - 1)).to(torch.uint8)
    return numbers[:, :count]


def center_levels(numbers: Tensor, bits: int) -> Tensor:
    """Returns unsigned numbers less half their range: uint8 → int8, from -2 ** (bits - 1) on. May change them."""
    if bits == 8:
        return (numbers ^ 128).view(torch.int8)
    return numbers.view(torch.int8).sub_(2 ** (bits - 1))
