"""A copy of the working tree in which mutants are tested."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, Self

from tests.syntax import PACKAGES, ROOT

Verdict = Literal["killed", "survived", "broken", "outdated"]
TEST_TIMEOUT_S = 120
RUN_TIMEOUT_S = 900
SHARED_FOLDERS = (".venv", "build", ".codex")
"""Folders outside version control that tests use. The copy links to them."""
PASSED, FAILED = 0, 1
"""Exit codes of pytest. Any other one means that it could not run the tests."""


@dataclass(frozen=True)
class TestRun:
    """Result of one run of pytest."""

    __test__ = False

    verdict: Literal["passed", "failed", "broken"]
    output: str


class TestedMutant(Protocol):
    """A change of one file, and the arguments of pytest that select its tests."""

    @property
    def file(self) -> str:
        """Path of the file in the tree."""

    @property
    def tests(self) -> tuple[str, ...]:
        """At least one of these tests must fail."""

    def apply(self, code: str) -> str:
        """Returns the changed code. Raises `ValueError` if the change does not fit the code."""


class TreeCopy:
    """A folder with the tracked and the new files of the tree. It imports its own code as `antiphon`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._num_changes = 0

    @classmethod
    @contextmanager
    def create(cls) -> Iterator[Self]:
        """Copies the tree into a temporary folder."""
        with tempfile.TemporaryDirectory(prefix="antiphon-mutation-") as name:
            copy = cls(Path(name))
            copy.copy_files()
            copy.link_packages()
            yield copy

    @property
    def environment(self) -> dict[str, str]:
        """Environment of a process that imports the code of the copy."""
        # Compiled kernels have a cache of their own: a broken library must not be found by another process.
        environment = os.environ | {"PYTHONPATH": str(self.folder), "XDG_CACHE_HOME": str(self.folder / ".cache")}
        environment.pop("ANTIPHON_TEST_FULL", None)
        return environment

    def run_mutant(self, mutant: TestedMutant, *, limit_s: float = RUN_TIMEOUT_S) -> Verdict:
        """Runs the mutant's tests with the mutant applied, and restores the file. A run past the limit is a kill."""
        path = self.folder / mutant.file
        original = path.read_text(encoding="utf-8")
        try:
            changed = mutant.apply(original)
        except ValueError as error:
            print(error)
            return "outdated"
        self._write(path, changed)
        try:
            run = self.run_tests(mutant.tests, limit_s=limit_s)
        finally:
            self._write(path, original)
        if run.verdict == "broken":
            print(run.output)
        return {"passed": "survived", "failed": "killed", "broken": "broken"}[run.verdict]  # type: ignore[return-value]

    def run_tests(self, tests: Sequence[str], *, workers: int = 0, limit_s: float = RUN_TIMEOUT_S) -> TestRun:
        """Runs tests up to the first failure."""
        args = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout", str(TEST_TIMEOUT_S)]
        try:
            done = subprocess.run(
                [*args, "-n", str(workers), *tests],
                cwd=self.folder,
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return TestRun("failed", "the run took too long")
        verdict: Literal["passed", "failed"] = "passed" if done.returncode == PASSED else "failed"
        if done.returncode not in (PASSED, FAILED):
            return TestRun("broken", done.stdout[-3000:] + done.stderr[-1000:])
        return TestRun(verdict, done.stdout[-3000:])

    def copy_files(self) -> None:
        args = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(args, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
        for name in filter(None, listed):
            source, target = ROOT / name, self.folder / name
            if source.is_file():  # a deleted file is still listed
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(source.read_bytes())
                target.chmod(source.stat().st_mode)

    def link_packages(self) -> None:
        """Links the packages below one name, in a folder that comes before the installed packages on the path."""
        package = self.folder / "antiphon"
        package.mkdir()
        for name in PACKAGES:
            (package / name).symlink_to(self.folder / name)
        for file in (self.folder / "app/public").iterdir():
            if file.is_file():
                (package / file.name).symlink_to(file)
        for name in SHARED_FOLDERS:
            if (ROOT / name).exists():
                (self.folder / name).symlink_to(ROOT / name)

    def _write(self, path: Path, text: str) -> None:
        """Writes a file with a new time, because Python compares only times and sizes of modules with its cache."""
        path.write_text(text, encoding="utf-8")
        self._num_changes += 1
        time = path.stat().st_mtime + 10 * self._num_changes
        os.utime(path, (time, time))
