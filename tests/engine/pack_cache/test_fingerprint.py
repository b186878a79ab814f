"""Hashes of packed weights cover sources that exist: a file that moves must not leave the hash without a word."""

import pytest

from antiphon.engine.pack_cache.fingerprint import CHECKED_FOLDERS, ENGINE_DIR, LAYOUT_SOURCES, NUMBER_SOURCES


@pytest.mark.parametrize(
    "pattern", [*LAYOUT_SOURCES, *NUMBER_SOURCES, *(f"{folder}/**/*.py" for folder in CHECKED_FOLDERS)]
)
def test_each_pattern_finds_sources(pattern: str) -> None:
    assert list(ENGINE_DIR.glob(pattern))
