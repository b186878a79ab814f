"""ARCHITECTURE.md shows the table that runs. To write it anew: `python -m tests.state.test_architecture`."""

from pathlib import Path

from antiphon.state.table import render_markdown_table

PAGE = Path(__file__).resolve().parents[2] / "ARCHITECTURE.md"
BEGIN, END = "<!-- table: drawn by state.table.markdown -->\n", "<!-- end -->"


def test_the_page_shows_the_table_that_runs() -> None:
    shown = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    assert shown == render_markdown_table(), "run `python -m tests.state.test_architecture`"


if __name__ == "__main__":
    head, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    PAGE.write_text(head + BEGIN + render_markdown_table() + END + rest.split(END, 1)[1], encoding="utf-8")
