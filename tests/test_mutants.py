"""The list of mutants fits the code: each replaces a text that occurs once, by code that compiles, and names tests.

`make mutants` shows that the tests kill them. This check is cheap, so that a change of the code finds its mutants.
"""

import ast
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.mutation.mutants import Mutant, load_mutants, read_source
from tests.mutation.tree_copy import TreeCopy
from tests.syntax import ROOT, list_test_functions

MIN_MUTANTS = 80
MUTANTS = load_mutants()


def test_list_is_long_and_names_are_unique() -> None:
    assert len(MUTANTS) >= MIN_MUTANTS
    assert not [name for name, count in Counter(mutant.name for mutant in MUTANTS).items() if count > 1]


@pytest.mark.parametrize("file", sorted({mutant.file for mutant in MUTANTS}))
def test_mutants_fit_the_code_and_name_their_tests(file: str) -> None:
    mutants = [mutant for mutant in MUTANTS if mutant.file == file]
    original = read_source(mutants[0])
    tree = ast.dump(ast.parse(original)) if file.endswith(".py") else None
    for mutant in mutants:
        changed = mutant.apply(original)
        assert changed != original, mutant.name
        assert tree is None or ast.dump(ast.parse(changed)) != tree, mutant.name
        check_tests(mutant)


def check_tests(mutant: Mutant) -> None:
    assert bool(mutant.tests) != bool(mutant.equivalent), "either tests that kill it, or the reason why none can"
    for name in mutant.tests:
        file, _, function = name.partition("::")
        assert (ROOT / file).exists(), name
        assert not function or function in list_test_functions(file), name


def test_outdated_mutant_is_reported() -> None:
    with pytest.raises(ValueError, match="contains the old text 0 times; update its entry"):
        Mutant("x", "a.py", old="nowhere", new="").apply("code")


SOURCE = "def add(a: int, b: int) -> int:\n    return a + b\n"
TESTS = "from sums import add\n\ndef test_sum() -> None:\n    assert add(2, 2) == 4\n"


@pytest.mark.parametrize(
    ("new", "test", "verdict"),
    [
        ("a - b", "test_sums.py", "killed"),
        ("a * b", "test_sums.py", "survived"),
        ("a - b", "test_nothing.py", "broken"),
        ("a - b", "test_sums.py::test_other", "broken"),
    ],
)
def test_verdict_of_a_mutant(tmp_path: Path, new: str, test: str, verdict: str) -> None:
    (tmp_path / "sums.py").write_text(SOURCE)
    (tmp_path / "test_sums.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    mutant = Mutant("sum", "sums.py", old="a + b", new=new, tests=(test,))
    assert TreeCopy(tmp_path).run_mutant(mutant) == verdict
    assert (tmp_path / "sums.py").read_text() == SOURCE, "the file is restored"


def test_old_text_is_not_in_the_copy() -> None:
    mutant = Mutant("gone", "README.md", old="no such text", new="", tests=("tests/test_mutants.py",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TreeCopy, "run_tests", None)
        assert TreeCopy(ROOT).run_mutant(mutant) == "outdated"


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_copy_imports_its_own_code() -> None:
    program = "import antiphon.state.table, tests.syntax; print(antiphon.state.table.__file__, tests.syntax.__file__)"
    with TreeCopy.create() as copy:
        args = [sys.executable, "-c", program]
        run = subprocess.run(
            args, cwd=copy.folder, env={"PYTHONPATH": str(copy.folder)}, capture_output=True, text=True, check=True
        )
        assert all(Path(file).is_relative_to(copy.folder) for file in run.stdout.split()), run.stdout
