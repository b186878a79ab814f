"""A project of a user, whose pytest runs the plugin."""

import pytest


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project of a user. This environment's other plugins and its key are not part of it."""
    for name in ("PYTHONPATH", "PYTEST_ADDOPTS", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    pytester.makeini("[pytest]\naddopts = -p no:asyncio -p no:xdist -p no:faker -p no:cacheprovider\n")
    return pytester
