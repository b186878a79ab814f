"""Output while a server is checked: a progress display on a terminal, plain lines elsewhere."""

from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from antiphon.kit.conformance.reports import list_case_lines, list_summary_rows
from antiphon.kit.conformance.runner import CaseReport
from antiphon.kit.terminal_text import show_controls

OUTCOME_STYLES = {"passed": "green", "failed": "bold red", "skipped": "yellow", "unsupported": "cyan"}


class CaseDisplay(Progress):
    """On a terminal a bar with the running case, below the lines of the cases that did not simply pass.

    Elsewhere there is no bar, and every case has its lines.
    """

    def __init__(self, console: Console, num_cases: int) -> None:
        columns = (BarColumn(bar_width=30), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        super().__init__(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self.add_task("", total=num_cases)

    def start_case(self, name: str) -> None:
        """Shows the name of the running case."""
        self.update(self._task, description=name)

    def end_case(self, report: CaseReport) -> None:
        """Advances the bar, and writes the lines of a case with anything to say."""
        self.advance(self._task)
        if not self.console.is_terminal:
            write_lines(self.console, list_case_lines(report))
        elif report.outcome != "passed" or report.findings or report.remarks:
            write_lines(self.console, list_case_lines(report), OUTCOME_STYLES[report.outcome])


def write_lines(console: Console, lines: Sequence[str], first_style: str = "") -> None:
    """Writes lines as they are: without markup, without wrapping where the output is no terminal.

    What a server put into them to control the terminal is shown.
    """
    for number, line in enumerate(lines):
        console.print(Text(show_controls(line), style=first_style if number == 0 else ""), soft_wrap=True)


def show_summary(console: Console, reports: Sequence[CaseReport]) -> None:
    """Writes the table of outcomes by suite."""
    rows = list_summary_rows(reports)
    if not console.is_terminal:
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        padded = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        write_lines(console, ["", *padded])
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in rows[0]:
        table.add_column(title, justify="left" if title == "suite" else "right")
    for row in rows[1:]:
        table.add_row(*row)
    console.print()
    console.print(table)
