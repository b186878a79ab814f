"""Tests against real engines run with `make prove`, which installs the engines. They are not collected otherwise."""

import os

from tests.codex.conftest import codex, program

__all__ = ["codex", "program"]

collect_ignore_glob = [] if os.environ.get("ANTIPHON_PROVE") else ["test_*.py"]
