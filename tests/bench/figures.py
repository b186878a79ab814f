"""The arithmetic of the benchmark: medians, gaps, ratios round by round. It knows no server."""

import math
import statistics
from collections.abc import Iterable, Sequence

NONE, TIMES = "–", "×"


def median(values: Sequence[float]) -> float:
    """The median; NaN of nothing."""
    return statistics.median(values) if values else math.nan


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of them do not pass; NaN of nothing."""
    if not values:
        return math.nan
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def gaps_of(arrivals: Iterable[tuple[float, int]]) -> list[float]:
    """Seconds between each piece and the one before it; pieces that come in one read have none between them."""
    found: list[float] = []
    before = None
    for at, count in arrivals:
        found += [0.0] * (count - 1) if before is None else [at - before, *[0.0] * (count - 1)]
        before = at
    return found


def paired(ours: dict[int, float], theirs: dict[int, float]) -> float:
    """The median of the ratios ours / theirs over the rounds that both have; NaN without one."""
    return median([ours[turn] / theirs[turn] for turn in sorted(ours.keys() & theirs.keys()) if theirs[turn]])


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def figure(value: float, digits: int = 3) -> str:
    """Three digits that count; a dash for what was not measured."""
    if math.isnan(value):
        return NONE
    if value == 0:
        return "0"
    places = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    return f"{value:,.{places}f}".replace(",", " ")
