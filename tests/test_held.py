"""The page of what clients make the server hold: it is that of the code, has every table, and each row has its tests."""

import ast
from functools import cache

import pytest

from antiphon.app.store.tables import TABLES
from tests.held_page import IN_MEMORY, STORED, Held, list_tests, render_page
from tests.syntax import ROOT

HELD = (*IN_MEMORY, *STORED)


def test_page_is_that_of_the_code() -> None:
    page = (ROOT / "docs/reference/held.md").read_text(encoding="utf-8")
    assert render_page() == page, "run: python -m tests.held_page > docs/reference/held.md"


def test_every_table_of_the_store_has_a_limit() -> None:
    tables = [table for held in STORED for table in held.tables]
    assert sorted(tables) == sorted(table.name for table in TABLES), (
        "name the limit of a new table in tests/held_page.py"
    )


@cache
def find_test_names(path: str) -> frozenset[str]:
    """Returns the names of the tests at the top of a file below `tests/`."""
    tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(function.name for function in functions if function.name.startswith("test_"))


@pytest.mark.parametrize("held", HELD, ids=lambda held: held.what)
def test_row_has_tests_that_exist(held: Held) -> None:
    assert held.tests, "write a test that reaches the limit, and name it in tests/held_page.py"
    missing = [f"{path}::{name}" for path, name in list_tests(held) if name not in find_test_names(path)]
    assert not missing, "these tests do not exist"


def test_rows_have_names_of_their_own() -> None:
    names = [held.what for held in HELD]
    assert len(names) == len(set(names))
