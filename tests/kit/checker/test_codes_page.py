"""The page of codes is the one that the table gives."""

from antiphon.kit.findings import load_codes
from tests.kit.checker.codes_page import TITLES, format_page
from tests.syntax import ROOT


def test_page_is_up_to_date() -> None:
    page = (ROOT / "docs/reference/checks.md").read_text(encoding="utf-8")
    assert page == format_page(), "run: python -m tests.kit.checker.codes_page > docs/reference/checks.md"


def test_every_code_is_explained() -> None:
    for code in load_codes().values():
        assert code.title.endswith(".") and code.why.endswith((".", "'")), code.name
        assert code.group in TITLES, f"{code.group} has no title"
