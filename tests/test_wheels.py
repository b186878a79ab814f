"""The table of wheels names the pinned dependencies with compiled code, each in the pinned version."""

import re

from tests.syntax import ROOT
from tests.wheels import HEAD, PLATFORMS, list_compiled

PAGE = (ROOT / "docs/reference/wheels.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([\w.-]+) \| ([\w.+]+) \| (yes|\*\*none\*\*) \| (yes|\*\*none\*\*) \|$", PAGE, re.MULTILINE)


def test_page_lists_the_pinned_versions() -> None:
    assert PAGE.startswith(HEAD), "run `python -m tests.wheels > docs/reference/wheels.md`"
    assert {name: version for name, version, *_ in ROWS} == list_compiled()


def test_readme_names_every_gap() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    gaps = [
        (name, platform)
        for name, _, *found in ROWS
        for platform, each in zip(PLATFORMS, found, strict=True)
        if each != "yes"
    ]
    assert all(name in readme for name, _ in gaps), gaps
