"""The page of models says what the engine does."""

from pathlib import Path

import pytest

from tests.counts import FULL_COUNTS
from tests.models.judge import RowResult, judge_row
from tests.models.rows import ModelRow
from tests.models.table import ROWS, format_row

pytestmark = pytest.mark.filterwarnings("ignore")

PAGE = Path(__file__).parents[2] / "docs/reference/models.md"
FAST_ROWS = ("llama (biases)", "qwen3_moe", "phi3 (longrope)", "mamba")
"""Rows that differ in layers, experts and attention, and one whose config.json has no context length."""


def find_line(text: str, result: RowResult) -> list[str]:
    """Returns the cells of the row's line in a page; the columns of quantized forms are left out."""
    label = format_row(result).split("|")[1]
    line = next((line for line in text.splitlines() if line.startswith(f"|{label}|")), "")
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    return cells[:4] + cells[7:]


def test_page_lists_every_row_once() -> None:
    text = PAGE.read_text(encoding="utf-8")
    lines = [find_line(text, RowResult(row.name)) for row in ROWS]
    assert [row.name for row, line in zip(ROWS, lines, strict=True) if not line] == []
    assert len({row.name for row in ROWS}) == len(ROWS) == text.count("\n| `")


@pytest.mark.parametrize("row", [row for row in ROWS if FULL_COUNTS or row.name in FAST_ROWS], ids=str)
def test_row_equals_generate_and_the_page(row: ModelRow) -> None:
    result = judge_row(row, forms=(), dtypes=("fp32", "bf16") if FULL_COUNTS else ("bf16",))
    assert result.faults == []
    assert find_line(PAGE.read_text(encoding="utf-8"), result) == find_line(format_row(result), result)
