"""Tests of the statistics."""

import math

from bench.stats import MISSING, format_number, gaps_between, markdown_table, median, median_ratio, quantile


def test_gap_between_pieces_of_one_read_is_zero() -> None:
    assert gaps_between([(1.0, 1), (1.5, 2), (3.0, 1)]) == [0.5, 0.0, 1.5]
    assert gaps_between([(1.0, 3)]) == [0.0, 0.0]
    assert gaps_between([]) == []


def test_median_ratio_uses_only_rounds_that_both_servers_have() -> None:
    numerators, denominators = {0: 10.0, 1: 30.0, 2: 8.0, 3: 99.0}, {0: 5.0, 1: 10.0, 2: 8.0, 4: 1.0}
    assert median_ratio(numerators, denominators) == 2.0  # of 2, 3 and 1; the ratio of the medians would be 1.25
    assert math.isnan(median_ratio(numerators, {}))


def test_quantile_is_one_of_the_values() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert [quantile(values, share) for share in (0.0, 0.01, 0.5, 0.99, 1.0)] == [1, 1, 50, 99, 100]
    assert math.isnan(quantile([], 0.5)) and math.isnan(median([]))


def test_numbers_are_formatted_with_three_significant_digits() -> None:
    cases = {0.012345: "0.0123", 1.2345: "1.23", 123.4: "123", 12_345.6: "12 346", 0.0: "0", math.nan: MISSING}
    assert {value: format_number(value) for value in cases} == cases


def test_table_is_markdown() -> None:
    assert markdown_table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
