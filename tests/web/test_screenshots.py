"""The pictures of the page in the README are those of a script, which still runs, and are small."""

import re
from pathlib import Path

from PIL import Image

from tests.syntax import ROOT
from tests.web.screenshots import FOLDER, write_screenshots

MAX_BYTES = 200_000
"""Limit of all pictures together: they are part of each clone, and of the first page that a reader loads."""


def read_size(path: Path) -> tuple[int, int]:
    with Image.open(path) as picture:
        return picture.size


def test_script_writes_the_pictures_that_the_readme_shows(tmp_path: Path) -> None:
    written = write_screenshots(tmp_path)
    shown = set(re.findall(r"docs/pictures/([\w-]+\.png)", (ROOT / "README.md").read_text(encoding="utf-8")))
    kept = {path.name: read_size(path) for path in FOLDER.iterdir()}
    assert shown == kept.keys()
    assert kept == {path.name: read_size(path) for path in written}
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < MAX_BYTES
