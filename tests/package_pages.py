"""Writes the list of rooms into the README of each package: `python -m tests.package_pages`; `--check` only compares.

A room is a folder or a module directly under a package. Its line is the first sentence of its docstring.
"""

import ast
import re
import sys
from pathlib import Path

from tests.syntax import PACKAGES, ROOT

BEGIN, END = "<!-- rooms: printed by tests/package_pages.py -->\n", "<!-- end -->"


def list_pages() -> list[Path]:
    """Returns the README of each package that consists of Python modules."""
    return [ROOT / package / "README.md" for package in PACKAGES if len(list((ROOT / package).rglob("*.py"))) > 1]


def render_page(page: Path) -> str:
    """Returns the text of a package's README with the list of rooms as the code has them."""
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    return before + BEGIN + _render_rooms(page.parent) + END + rest.partition(END)[2]


def _render_rooms(package: Path) -> str:
    folders = [path.parent for path in package.glob("*/__init__.py")]
    modules = [path for path in package.glob("*.py") if path.name != "__init__.py"]
    rows = [f"| `{room.name}` | {_read_purpose(room)} |\n" for room in sorted([*folders, *modules])]
    return "| room | purpose |\n|---|---|\n" + "".join(rows)


def _read_purpose(room: Path) -> str:
    """Returns the first sentence of the docstring of a module or folder, without its final point."""
    source = room / "__init__.py" if room.is_dir() else room
    docstring = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    return re.split(r"\.(?= [A-Z]|$)", paragraph)[0]


def main() -> None:
    stale = [page for page in list_pages() if render_page(page) != page.read_text(encoding="utf-8")]
    if "--check" in sys.argv[1:]:
        sys.exit("\n".join(f"{page.relative_to(ROOT)} is out of date" for page in stale) or 0)
    for page in stale:
        page.write_text(render_page(page), encoding="utf-8")


if __name__ == "__main__":
    main()
