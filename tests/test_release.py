"""`make release`: the version, the tag and the changelog agree, and the extras that messages and pages name exist."""

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml

from antiphon import __version__
from tests.built_wheel import build_wheel, clean_environment, install_wheel
from tests.release import ReleaseError, find_notes
from tests.syntax import PACKAGES, ROOT

CHANGELOG = "# Changelog\n\n## 1.3.0, unreleased\n\n- Newer.\n\n## 1.2.0, 2026-01-31\n\n### API\n\n- New.\n"


@pytest.mark.parametrize(("version", "notes"), [("1.2.0", "### API\n\n- New."), ("1.3.0", "- Newer.")])
def test_notes_are_the_section_of_the_version(version: str, notes: str) -> None:
    assert find_notes(CHANGELOG, version) == notes


@pytest.mark.parametrize(
    ("version", "tag", "message"),
    [
        ("1.2.0", "v1.2.1", "the tag v1.2.1 is not v1.2.0"),
        ("1.3.0", "v1.3.0", "calls 1.3.0 'unreleased' instead of giving its date"),
        ("1.2", None, "has no section '## 1.2, DATE'"),
    ],
)
def test_versions_that_disagree_end_the_release(version: str, tag: str | None, message: str) -> None:
    with pytest.raises(ReleaseError, match=re.escape(message)):
        find_notes(CHANGELOG, version, tag)


def test_changelog_has_a_section_of_this_version() -> None:
    assert find_notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), __version__)


def test_workflows_call_make_targets() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    called = set()
    for file in (ROOT / ".github" / "workflows").glob("*.yml"):
        for job in yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"].values():
            matrix = job.get("strategy", {}).get("matrix", {})
            called |= {*matrix.get("target", []), *(each["target"] for each in matrix.get("include", []))}
            runs = " ".join(step.get("run", "") for step in job["steps"])
            called |= set(re.findall(r"\bmake ([a-z][a-z-]*)", runs))
    assert {"check", "test", "release"} <= called
    assert {re.sub(r"^test-cpu-\d$", "test-cpus", name) for name in called} <= targets


def find_named_extras() -> dict[str, str]:
    """Returns each extra that a page or a message tells people to install, with the first file that names it."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    sources = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.suffix in (".py", ".toml")]
    extras: dict[str, str] = {}
    for path in (*pages, *sources):
        for name in re.findall(r"pip install '?(?:antiphon|\.)\[([^\]]+)\]", path.read_text(encoding="utf-8")):
            extras.setdefault(name, str(path.relative_to(ROOT)))
    return extras


def test_commands_that_install_an_extra_work_where_the_wheel_is_installed(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """With the wheel in an environment, pip finds the extra in its metadata, and resolves what it needs."""
    named = find_named_extras()
    assert {"kit", "pytest", "otel", "tools"} <= named.keys()
    python = install_wheel(build_wheel(tmp_path_factory), tmp_path / "venv", sysconfig.get_path("purelib"))
    wanted = [f"antiphon[{name}]" for name in named]
    command = ["pip", "--python", str(python), "install", "--no-index", "--dry-run", *wanted]
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "does not provide the extra" not in done.stderr, (named, done.stderr)
