"""The programs of the page on client tools."""

import re
import tomllib
from pathlib import Path

from antiphon.app.registry.model_registry import ModelRegistry
from tests.clients.python_install import install_python_clients, run_in_turn
from tests.serving import RunningServer, scripted_registry
from tests.syntax import ROOT

PAGE = (ROOT / "docs" / "client-tools.md").read_text(encoding="utf-8")
BASE_URL = "http://127.0.0.1:8000/v1"


def find_page_blocks(language: str) -> list[str]:
    """Returns the blocks of the page in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


SHELL_PROGRAM, PATCH_PROGRAM, LOCAL_SHELL_LINES, SEARCH_PROGRAM = find_page_blocks("python")
PATCH_PROMPT = "Rename greet() to welcome() in hello.py, and list it in notes.txt."
(SCRIPT,) = find_page_blocks("toml")


def make_page_registry() -> ModelRegistry:
    """Returns a model that plays the script of the page."""
    return scripted_registry(tomllib.loads(SCRIPT)["reply"], names=("antiphon",))


def run_page_programs(programs: list[tuple[str, Path]], server: RunningServer, home: Path) -> list[str]:
    """Runs programs of the page, each in its folder, with the libraries that they name. Returns what each prints."""
    return run_in_turn(
        install_python_clients("python"),
        [(program.replace(BASE_URL, server.url), "", folder) for program, folder in programs],
        home,
    )
