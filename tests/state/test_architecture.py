"""ARCHITECTURE.md shows the transition table. `python -m tests.state.test_architecture` writes it from the code."""

from pathlib import Path

from antiphon.state.table import GUARDS, TABLE, Cell, Guard, Input, State

ARCHITECTURE_PAGE = Path(__file__).resolve().parents[2] / "ARCHITECTURE.md"
TABLE_BEGIN, TABLE_END = "<!-- table: drawn by state/table.py -->\n", "<!-- end -->"


def test_architecture_page_shows_the_transition_table() -> None:
    table = ARCHITECTURE_PAGE.read_text(encoding="utf-8").split(TABLE_BEGIN)[1].split(TABLE_END)[0]
    assert table == render_markdown_table(), "run `python -m tests.state.test_architecture`"


def render_markdown_table() -> str:
    """Returns the table as Markdown: one row per input, one column per state."""
    columns = [state for state in State if state is not State.ENDED]
    rows = ["| in \\ on | " + " | ".join(s.name for s in columns) + " |", "|---|" + "---|" * len(columns)]
    for symbol in Input:
        cells = [_format_cell(TABLE.get((state, symbol)), state, GUARDS.get((state, symbol))) for state in columns]
        rows.append(f"| **{symbol.name}** | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def _format_cell(cell: Cell | None, state: State, guard: Guard | None) -> str:
    if cell is None:
        return "✕"
    target = "=" if cell.next is state else cell.next.name
    text = f"{target}: {' '.join(cell.verbs)}" if cell.verbs else target
    return f"{text} *({guard})*" if guard else text


if __name__ == "__main__":
    before, after = ARCHITECTURE_PAGE.read_text(encoding="utf-8").split(TABLE_BEGIN)
    ARCHITECTURE_PAGE.write_text(
        before + TABLE_BEGIN + render_markdown_table() + TABLE_END + after.split(TABLE_END, 1)[1], encoding="utf-8"
    )
