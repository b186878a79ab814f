"""The page that shows one conversation in all four APIs is what the code prints now."""

from tests.snapshots.api_page import render_page
from tests.syntax import ROOT


async def test_page_of_the_apis_is_up_to_date() -> None:
    page = (ROOT / "docs/reference/apis.md").read_text(encoding="utf-8")
    assert page == await render_page(), (
        "run `python -m tests.snapshots.api_page > docs/reference/apis.md` and read the diff"
    )
