"""Statistics of the benchmark: medians, gaps between pieces of text, ratios by round, Markdown tables."""

import math
import statistics
from collections.abc import Iterable, Sequence

MISSING, TIMES = "–", "×"


def median(values: Sequence[float]) -> float:
    """Returns the median, or NaN without values."""
    return statistics.median(values) if values else math.nan


def quantile(values: Sequence[float], share: float) -> float:
    """Returns the smallest value that is at least as large as `share` of the values, or NaN without values."""
    if not values:
        return math.nan
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def gaps_between(arrivals: Iterable[tuple[float, int]]) -> list[float]:
    """Returns the seconds between consecutive pieces of text. Pieces that arrive in one read have a gap of 0."""
    gaps: list[float] = []
    previous = None
    for at, count in arrivals:
        gaps += [0.0] * (count - 1) if previous is None else [at - previous, *[0.0] * (count - 1)]
        previous = at
    return gaps


def median_ratio(numerators: dict[int, float], denominators: dict[int, float]) -> float:
    """Returns the median over rounds of numerator / denominator, or NaN if no round has both."""
    common = sorted(numerators.keys() & denominators.keys())
    return median([numerators[index] / denominators[index] for index in common if denominators[index]])


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def format_number(value: float, digits: int = 3) -> str:
    """Returns the value with `digits` significant digits, or a dash for NaN."""
    if math.isnan(value):
        return MISSING
    if value == 0:
        return "0"
    decimals = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    return f"{value:,.{decimals}f}".replace(",", " ")
