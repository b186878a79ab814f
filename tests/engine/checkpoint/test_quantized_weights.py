"""Groups, blocks and bits of quantized weights: what the tensors of a file say, and what they leave open."""

from typing import Any

import pytest
import torch

from antiphon.engine.checkpoint.quantized.compressed_tensors import _find_bits, _find_block_shape
from antiphon.engine.checkpoint.quantized.quantized_weight import order_by_group


@pytest.mark.parametrize(
    ("index", "order"),
    [
        (None, None),
        ([-1, -1, -1, -1], None),
        ([0, 0, 1, 1], None),
        ([1, 1, 0, 0], [2, 3, 0, 1]),
        ([0, 1, 0, 1], [0, 2, 1, 3]),
    ],
)
def test_inputs_are_ordered_by_group_unless_they_are_already(index: list[int] | None, order: list[int] | None) -> None:
    found = order_by_group(None if index is None else torch.tensor(index), 2)
    assert (None if found is None else found.tolist()) == order


@pytest.mark.parametrize("index", [[0, 0, 0, 1], [0, 0, 0, 0], [0, 1, 2, 2]])
def test_groups_of_other_sizes_are_refused(index: list[int]) -> None:
    with pytest.raises(ValueError, match="differ in size"):
        order_by_group(torch.tensor(index), 2)


@pytest.mark.parametrize(
    ("groups", "shape"),
    [
        ({}, None),
        ({"a": {}}, None),
        ({"a": {"weights": None}}, None),
        ({"a": {"weights": {"block_structure": None}}}, None),
        ({"a": {"weights": {"block_structure": []}}}, None),
        ({"a": {"weights": {"num_bits": 8}}, "b": {"weights": {"block_structure": [128, 64]}}}, (128, 64)),
    ],
)
def test_blocks_are_those_of_the_first_group_that_has_some(
    groups: dict[str, Any], shape: tuple[int, int] | None
) -> None:
    assert _find_block_shape({"config_groups": groups}) == shape
    assert _find_block_shape({}) is None


@pytest.mark.parametrize(
    ("inputs", "words", "bits"),
    [(64, 8, 4), (64, 16, 8), (64, 4, 2), (64, 6, 3), (64, 10, 5), (64, 12, 6), (64, 14, 7), (65, 9, 4), (65, 17, 8)],
)
def test_bits_follow_from_the_number_of_words(inputs: int, words: int, bits: int) -> None:
    assert _find_bits(inputs, words) == bits


@pytest.mark.parametrize(("inputs", "words"), [(64, 9), (64, 17), (64, 2)])
def test_words_with_gaps_are_refused(inputs: int, words: int) -> None:
    with pytest.raises(ValueError, match="without gaps"):
        _find_bits(inputs, words)
