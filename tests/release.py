"""Builds the files of a release and checks them: `make release`, with `ARGS=--tag vX.Y.Z` for a version that is tagged.

The folder `build/release` then has the sdist, the wheel that is built from it, `sbom.json`, and `NOTES.md`: the
section of the changelog. Both files are installed, each into a new environment with the pinned dependencies, where
`antiphon demo` must stream a reply without findings.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from antiphon import __version__
from tests.built_wheel import build_files, clean_environment
from tests.syntax import ROOT

RELEASE = ROOT / "build" / "release"


class ReleaseError(Exception):
    """Raised for a version, a tag and a changelog that do not agree."""


def find_notes(changelog: str, version: str, tag: str | None = None) -> str:
    """Returns the changelog's section of a version. With a tag, the section must have a date, and the tag the version.

    Example: `find_notes("# Changelog\\n\\n## 1.2.0, 2026-01-31\\n\\n- New.\\n", "1.2.0", "v1.2.0")` is `"- New."`.
    """
    if tag is not None and tag != f"v{version}":
        raise ReleaseError(f"the tag {tag} is not v{version}, the version in app/public/__init__.py")
    section = re.search(
        rf"^## {re.escape(version)}, (?P<date>\S+)\n(?P<text>.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    if section is None:
        raise ReleaseError(f"CHANGELOG.md has no section '## {version}, DATE'")
    if tag is not None and not re.fullmatch(r"\d{4}-\d{2}-\d{2}", section["date"]):
        raise ReleaseError(f"CHANGELOG.md calls {version} '{section['date']}' instead of giving its date")
    return section["text"].strip()


def check_file(file: Path) -> None:
    """Installs a wheel or an sdist into a new environment, and runs its command there."""
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "bin" / "python"
        commands = [
            [sys.executable, "-m", "venv", folder],
            [python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "requirements.lock", file],
            [python, "-m", "pip", "check"],
            [python, "-m", "antiphon", "--version"],
            [python.with_name("antiphon"), "demo"],
        ]
        for command in commands:
            subprocess.run([*map(str, command)], cwd=folder, env=clean_environment(), check=True)


def main() -> None:
    """Writes and checks the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tag", help="tag of the version; its section of the changelog must have a date")
    notes = find_notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), __version__, parser.parse_args().tag)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(shutil.copy2(file, RELEASE)) for file in build_files(Path(folder))]
    for file in files:
        check_file(file)
    (RELEASE / "NOTES.md").write_text(f"{notes}\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except ReleaseError as error:
        sys.exit(str(error))
