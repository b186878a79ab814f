"""The list of mutants: faults to put into the code one at a time, each with the tests that must notice it."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.syntax import ROOT

MUTANTS_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Mutant:
    """A replacement of one piece of a source file, which occurs there once."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = ()
    """Arguments of pytest. At least one of these tests must fail."""
    equivalent: str = ""
    """Why no test can notice the change. If it is empty, the mutant must be killed."""

    def apply(self, code: str) -> str:
        """Returns the changed code. Raises `ValueError` if the list does not fit the code."""
        if code.count(self.old) != 1:
            raise ValueError(
                f"mutant {self.name}: {self.file} contains the old text {code.count(self.old)} times; "
                "update its entry in tests/mutation"
            )
        return code.replace(self.old, self.new)


def load_mutants() -> list[Mutant]:
    """Returns the mutants of all files of the folder, in order."""
    return [
        Mutant(**{**row, "tests": tuple(row.get("tests", ()))})
        for path in sorted(MUTANTS_FOLDER.glob("*.toml"))
        for row in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    ]


def read_source(mutant: Mutant) -> str:
    return (ROOT / mutant.file).read_text(encoding="utf-8")
