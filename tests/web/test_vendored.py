"""The vendored libraries are those of their manifest, and the check finds every way to change them."""

import shutil
import tomllib
from pathlib import Path

import pytest

from tests.syntax import ROOT
from tests.web.vendored import (
    MANIFEST,
    VENDOR,
    drop_comments,
    find_bare_imports,
    find_faults,
    hash_bytes,
    read_manifest,
    rewrite_imports,
)

LIBRARIES = read_manifest(MANIFEST.read_text(encoding="utf-8"))


def test_files_are_those_of_the_manifest() -> None:
    assert find_faults(VENDOR, LIBRARIES) == []


def test_every_library_has_its_license() -> None:
    assert {library.license for library in LIBRARIES} <= {"MIT", "Apache-2.0", "BSD-3-Clause"}
    for library in LIBRARIES:
        assert library.integrity.startswith("sha512-")
        assert [name for name, file in library.files.items() if file.source == "LICENSE"]


def test_types_are_checked_against_the_same_versions() -> None:
    lock = (ROOT / "tests/clients/programs/node_web.lock").read_text(encoding="utf-8").splitlines()
    assert {f"{library.name}@{library.version}" for library in LIBRARIES} <= set(lock)


def test_vendored_files_are_in_the_wheel_with_the_manifest() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    patterns = config["package-data"]["antiphon.web"]
    covered = {path for pattern in patterns for path in (ROOT / "web").glob(pattern)}
    assert {path for path in VENDOR.rglob("*") if path.is_file() and not path.name.endswith(".d.ts")} <= covered


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    folder = tmp_path / "vendor"
    shutil.copytree(VENDOR, folder)
    return folder


def test_changed_file_is_found(copied: Path) -> None:
    (copied / "htm.js").write_bytes((copied / "htm.js").read_bytes() + b" ")
    assert find_faults(copied, LIBRARIES) == ["htm.js: is not the file of the manifest"]


def test_missing_and_foreign_files_are_found(copied: Path) -> None:
    (copied / "hooks.js").rename(copied / "jsdiff" / "hooks.js")
    assert find_faults(copied, LIBRARIES) == ["jsdiff/hooks.js: not in the manifest", "hooks.js: missing"]


def test_unrecorded_rewriting_is_found(copied: Path) -> None:
    changed = MANIFEST.read_text(encoding="utf-8").replace(', imports = { preact = "./preact.js" }', "")
    assert find_faults(copied, read_manifest(changed)) == [
        "hooks.js: differs from the file of its package without a recorded reason"
    ]


def test_unrecorded_loss_of_comments_is_found(copied: Path) -> None:
    changed = MANIFEST.read_text(encoding="utf-8").replace(", uncommented = true", "")
    assert find_faults(copied, read_manifest(changed)) == [
        "jsdiff/diff/base.js: differs from the file of its package without a recorded reason"
    ]


def test_lines_that_are_comments_are_dropped() -> None:
    source = "// first\na(); // kept\n    // second\n'// not a line of its own';\n\n/* kept */\n"
    assert drop_comments(source) == "a(); // kept\n'// not a line of its own';\n\n/* kept */\n"


def test_bare_import_is_found(copied: Path) -> None:
    data = b'import { h } from "preact";'
    (copied / "htm.js").write_bytes(data)
    text = MANIFEST.read_text(encoding="utf-8")
    old = next(file.sha256 for library in LIBRARIES for name, file in library.files.items() if name == "htm.js")
    faults = find_faults(copied, read_manifest(text.replace(old, hash_bytes(data))))
    assert faults == ["htm.js: imports preact, which no browser resolves"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('import{options as n}from"preact";', 'import{options as n}from"./p.js";'),
        ("import 'preact';", "import './p.js';"),
        ("export * from 'preact'", "export * from './p.js'"),
        ("import a from './a.js';", "import a from './a.js';"),
    ],
)
def test_imports_are_rewritten(source: str, expected: str) -> None:
    assert rewrite_imports(source, {"preact": "./p.js"}) == expected
    assert find_bare_imports(expected) == []


def test_import_of_an_unknown_package_is_refused() -> None:
    with pytest.raises(KeyError):
        rewrite_imports("import 'other'", {"preact": "./p.js"})
