"""Hashes of packed weights cover sources that exist: a file that moves must not leave the hash without a word."""

import pytest

from antiphon.engine.pack_cache.fingerprint import CHECKED_FOLDERS, ENGINE_DIR, LAYOUT_SOURCES, NUMBER_SOURCES


@pytest.mark.parametrize(
    "pattern", [*LAYOUT_SOURCES, *NUMBER_SOURCES, *(f"{folder}/**/*.py" for folder in CHECKED_FOLDERS)]
)
def test_each_pattern_finds_sources(pattern: str) -> None:
    assert list(ENGINE_DIR.glob(pattern))


OTHER_FOLDERS = {"embedded", "embeddings", "media", "process", "remote", "scripted"}
"""Folders whose code changes no result of a start's checks and no key or value."""


def test_each_folder_of_the_engine_is_hashed_or_named_here() -> None:
    hashed = {*CHECKED_FOLDERS, *(pattern.partition("/")[0] for pattern in NUMBER_SOURCES)}
    folders = {path.parent.name for path in ENGINE_DIR.glob("*/__init__.py")}
    assert hashed.isdisjoint(OTHER_FOLDERS) and hashed | OTHER_FOLDERS == folders
