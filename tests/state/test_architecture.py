"""ARCHITECTURE.md shows the transition table. `python -m tests.state.test_architecture` writes it from the code."""

from pathlib import Path

from antiphon.state.table import render_markdown_table

ARCHITECTURE_PAGE = Path(__file__).resolve().parents[2] / "ARCHITECTURE.md"
TABLE_BEGIN, TABLE_END = "<!-- table: drawn by state/table.py -->\n", "<!-- end -->"


def test_architecture_page_shows_the_transition_table() -> None:
    table = ARCHITECTURE_PAGE.read_text(encoding="utf-8").split(TABLE_BEGIN)[1].split(TABLE_END)[0]
    assert table == render_markdown_table(), "run `python -m tests.state.test_architecture`"


if __name__ == "__main__":
    before, after = ARCHITECTURE_PAGE.read_text(encoding="utf-8").split(TABLE_BEGIN)
    ARCHITECTURE_PAGE.write_text(
        before + TABLE_BEGIN + render_markdown_table() + TABLE_END + after.split(TABLE_END, 1)[1], encoding="utf-8"
    )
