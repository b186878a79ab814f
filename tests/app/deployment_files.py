"""Reads the files of `deploy/`."""

from typing import Any

import pytest

from antiphon.app.cli import commands as cli


def parse_serve(words: list[str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Parses the words after `antiphon`, as the program does. Returns the values of all parameters."""
    for parameter in cli.serve.params:
        monkeypatch.delenv(str(parameter.envvar), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert words[0] == "serve"
    with cli.serve.make_context("serve", words[1:]) as context:
        return context.params
