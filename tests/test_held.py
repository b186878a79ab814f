"""The page of what clients make the server hold: it is that of the code, has every table, and names tests that exist."""

from antiphon.app.store.postgres import schema
from tests.held_page import IN_MEMORY, STORED, render_page
from tests.syntax import ROOT


def test_page_is_that_of_the_code() -> None:
    page = (ROOT / "docs/held.md").read_text(encoding="utf-8")
    assert render_page() == page, "run: python -m tests.held_page > docs/held.md"


def test_every_table_of_the_store_has_a_limit() -> None:
    tables = [table for held in STORED for table in held.tables]
    assert sorted(tables) == sorted(schema.TABLES), "name the limit of a new table in tests/held_page.py"


def test_every_test_exists() -> None:
    for held in (*IN_MEMORY, *STORED):
        path, _, name = held.test.partition("::")
        if held.test:
            assert f"def {name}(" in (ROOT / "tests" / path).read_text(encoding="utf-8"), held.test
