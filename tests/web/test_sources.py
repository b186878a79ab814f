"""Types, lint and sizes of the modules of the page, and what none of them may do."""

import gzip
import re
import shutil
from pathlib import Path

import pytest

from antiphon.app.page.assets import read_files
from tests.clients.node_install import install_web_tools
from tests.web import sources
from tests.web.sources import MAX_MODULE_LINES, WEB, check_lint, check_types, list_modules

MARKUP_SINKS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|srcdoc|dangerouslySetInnerHTML|localStorage"
    r"|document\.cookie|\beval\b|new Function|createContextualFragment|EventSource|\bstyle=\""
)
"""Ways in which a string becomes markup or code, places where a key would outlive the tab, and text of styles."""
STATIC_IMPORT = re.compile(r'^(?:import|export)\b[^;]*?from "([^"]+)"|^import "([^"]+)"', re.MULTILINE)


def test_types_have_no_fault() -> None:
    assert check_types(install_web_tools()) == ""


def test_lint_finds_no_fault() -> None:
    assert check_lint(install_web_tools()) == ""


def test_checks_find_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration that reads no file would find nothing in it."""
    tools = install_web_tools()
    web = tmp_path / "web"
    shutil.copytree(WEB, web)
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "web-tools").symlink_to(tools.parent)
    (web / "wrong.js").write_text("/** @type {number} */\nexport const text = 'one';\n", encoding="utf-8")
    monkeypatch.setattr(sources, "WEB", web)
    types, lint = check_types(tools), check_lint(tools)
    assert re.findall(r"^(\S+?)\(", types, re.MULTILINE) == ["wrong.js"]
    assert "wrong.js" in lint and "app.js" not in lint


def test_no_module_is_too_long() -> None:
    lengths = {path.relative_to(WEB): len(path.read_text(encoding="utf-8").splitlines()) for path in list_modules()}
    assert not {path: lines for path, lines in lengths.items() if lines > MAX_MODULE_LINES}


def test_no_module_makes_markup_or_code_of_text() -> None:
    faults = [
        f"{path.relative_to(WEB)}: {match[0]}"
        for path in list_modules()
        for match in MARKUP_SINKS.finditer(path.read_text(encoding="utf-8"))
    ]
    assert not faults


def test_document_names_every_module_of_the_first_view() -> None:
    """The browser then fetches them together, in place of one level of imports after the other."""
    document = (WEB / "index.html").read_text(encoding="utf-8")
    found: set[Path] = set()
    waiting = [WEB / "app.js"]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            text = module.read_text(encoding="utf-8")
            names = [first or second for first, second in STATIC_IMPORT.findall(text)]
            names += re.findall(r'(?:from|import) ?"(\.[^"]+)"', text) if "vendor" in module.parts else []
            waiting += [(module.parent / name).resolve() for name in names]
    preloaded = set(re.findall(r'rel="modulepreload" href="assets:([^"]+)"', document))
    assert preloaded == {path.relative_to(WEB).as_posix() for path in found - {WEB / "app.js"}}


MAX_FIRST_VIEW_KB = 45
MAX_ALL_KB = 80


def test_page_is_small() -> None:
    """The budgets are those of compressed files, although the server sends them as they are: a proxy compresses them."""
    document = (WEB / "index.html").read_text(encoding="utf-8")
    first = {"index.html", *re.findall(r'(?:href|src)="assets:([^"]+)"', document)}
    sizes = {path: len(gzip.compress(content)) for path, content in read_files(WEB).items()}
    assert sum(sizes[path] for path in first) < MAX_FIRST_VIEW_KB * 1000
    assert sum(sizes.values()) < MAX_ALL_KB * 1000
