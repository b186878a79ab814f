"""`python -m tests.mutation --second`: makes mutants of the second conditions of modules, and runs the tests of each.

The modules are those that are named, or those that a change touches. Their tests are the test module at the mirrored
path, and those that `second/covered_by.toml` adds. A mutant that its tests do not kill is run again in a process of its
own before it is reported. `second/equivalents.toml` lists mutants that no test can kill, each with the reason.
"""

import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from queue import SimpleQueue

import msgspec
from msgspec import Struct

from tests.mutation.forked_tests import ForkJob, read_reports
from tests.mutation.mutants import MUTANTS_FOLDER
from tests.mutation.second_conditions import SecondConditionMutant, generate_mutants
from tests.mutation.tree_copy import TreeCopy
from tests.syntax import PACKAGES, ROOT, module_name

DATA_FOLDER = MUTANTS_FOLDER / "second"
JOB_SIZE = 30
"""Mutants of a module that one process runs. More processes share the work of a large module."""
FRESH_RUN_LIMIT_S = 300


class EquivalentMutant(Struct, frozen=True, forbid_unknown_fields=True):
    """A row of the list of equivalents. It stands for every mutant with this change in this function."""

    file: str
    scope: str
    change: str
    reason: str

    def matches(self, mutant: SecondConditionMutant) -> bool:
        return (self.file, self.scope, self.change) == (mutant.file, mutant.scope, mutant.change)


class ModuleMutants(Struct, frozen=True):
    """The mutants of one module, without the equivalent ones."""

    file: str
    mutants: tuple[SecondConditionMutant, ...]
    num_equivalent: int


class Survivor(Struct, frozen=True):
    """A mutant that was not killed. `verdict` is `survived`, or `broken` if its tests could not run."""

    mutant: SecondConditionMutant
    verdict: str


def run_second_mode(names: Sequence[str], since: str | None, jobs: int, *, is_quick: bool = False) -> int:
    """Runs the mutants of the modules. Returns 0 if all are killed or argued, 1 if some survive, 2 for a wrong call."""
    files = [*names, *(list_changed_modules(since) if since else ())]
    if not files:
        print("no module is named, and none has changed: name modules, or use --since COMMIT")
        return 2
    modules = [load_module(file) for file in dict.fromkeys(files)]
    untested = [module.file for module in modules if module.mutants and not module.mutants[0].tests]
    for file in untested:
        print(f"{file}: no tests are known; add a row to {DATA_FOLDER.relative_to(ROOT)}/covered_by.toml")
    survivors = _run_modules(
        [module for module in modules if module.mutants and module.file not in untested], jobs, is_quick=is_quick
    )
    num_mutants = sum(len(module.mutants) for module in modules)
    num_equivalent = sum(module.num_equivalent for module in modules)
    print(f"{num_mutants - len(survivors)} of {num_mutants} mutants killed, {num_equivalent} equivalent")
    return 1 if survivors or untested else 0


def list_changed_modules(since: str) -> list[str]:
    """Returns the modules of the packages that differ from a commit."""
    args = ["git", "diff", "--name-only", "--diff-filter=d", since, "--", *PACKAGES]
    listed = subprocess.run(args, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in listed if name.endswith(".py")]


def load_module(file: str) -> ModuleMutants:
    """Returns the mutants of a module that are to be killed."""
    equivalents = [row for row in load_equivalents() if row.file == file]
    mutants, tests = generate_mutants(file, (ROOT / file).read_text(encoding="utf-8")), find_tests(file)
    live = [mutant for mutant in mutants if not any(row.matches(mutant) for row in equivalents)]
    tested = tuple(msgspec.structs.replace(mutant, tests=tests) for mutant in live)
    return ModuleMutants(file, tested, len(mutants) - len(tested))


def load_equivalents() -> list[EquivalentMutant]:
    rows = tomllib.loads((DATA_FOLDER / "equivalents.toml").read_text(encoding="utf-8"))["equivalent"]
    return msgspec.convert(rows, list[EquivalentMutant])


def load_coverage() -> dict[str, list[str]]:
    """Returns the tests of modules besides those at the mirrored path."""
    rows: dict[str, list[str]] = tomllib.loads((DATA_FOLDER / "covered_by.toml").read_text(encoding="utf-8"))
    return rows


def find_tests(file: str) -> tuple[str, ...]:
    """Returns the tests that cover a module, the quickest first: its own test module, then those of the table."""
    path = Path(file)
    own = Path("tests") / path.parent / f"test_{path.stem}.py"
    return (*([str(own)] if (ROOT / own).exists() else []), *load_coverage().get(file, ()))


def _run_modules(modules: Sequence[ModuleMutants], jobs: int, *, is_quick: bool) -> list[Survivor]:
    """Runs all mutants, in as many copies of the tree as there are jobs. Prints the survivors."""
    parts = [
        msgspec.structs.replace(module, mutants=part) for module in modules for part in _split(module.mutants, JOB_SIZE)
    ]
    with ExitStack() as stack:
        copies: SimpleQueue[TreeCopy] = SimpleQueue()
        for _ in range(min(jobs, max(len(parts), 1))):
            copies.put(stack.enter_context(TreeCopy.create()))

        def run(part: ModuleMutants) -> list[Survivor]:
            copy = copies.get()
            try:
                survivors = list(_run_part(copy, part, is_quick=is_quick))
            finally:
                copies.put(copy)
            print(f"{part.file}: {len(part.mutants) - len(survivors)} of {len(part.mutants)} killed", flush=True)
            for survivor in survivors:
                if survivor.verdict != "broken":
                    print(_format_survivor(survivor), flush=True)
            return survivors

        with ThreadPoolExecutor(jobs) as pool:
            return [survivor for found in pool.map(run, parts) for survivor in found]


def _split(mutants: tuple[SecondConditionMutant, ...], size: int) -> Iterator[tuple[SecondConditionMutant, ...]]:
    rest = iter(mutants)
    while part := tuple(islice(rest, size)):
        yield part


def _run_part(copy: TreeCopy, part: ModuleMutants, *, is_quick: bool) -> Iterator[Survivor]:
    """Runs mutants in forks of one process. Yields those that a process of their own does not kill, either.

    All are broken if the tests fail without a mutant.
    """
    verdicts = _run_forks(copy, part)
    if not verdicts:
        yield from (Survivor(mutant, "broken") for mutant in part.mutants)
        return
    for index, mutant in enumerate(part.mutants):
        verdict = verdicts[index] if index < len(verdicts) else "not run"
        if verdict in ("killed", "late"):
            continue
        if verdict == "survived" and is_quick:
            yield Survivor(mutant, verdict)
            continue
        fresh = copy.run_mutant(mutant, limit_s=FRESH_RUN_LIMIT_S)
        if fresh != "killed":
            yield Survivor(mutant, fresh)


def _run_forks(copy: TreeCopy, part: ModuleMutants) -> list[str]:
    """Returns the verdict of each mutant; fewer if the tests failed without a mutant."""
    read_fd, write_fd = os.pipe()
    module = f"antiphon.{module_name(Path(part.file))}"
    job = ForkJob(module=module, file=part.file, mutants=part.mutants, report_fd=write_fd)
    with tempfile.NamedTemporaryFile(suffix=".json") as job_file, tempfile.TemporaryFile("w+") as output:
        job_file.write(msgspec.json.encode(job))
        job_file.flush()
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.mutation.forked_tests", job_file.name],
            cwd=copy.folder,
            env=copy.environment,
            pass_fds=(write_fd,),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        os.close(write_fd)
        verdicts = list(read_reports(read_fd))
        process.wait()
        if len(verdicts) < len(part.mutants):
            output.seek(0)
            print(f"{part.file}: the tests did not run in one process:\n{output.read()[-2000:]}")
    return list(verdicts)


def _format_survivor(survivor: Survivor) -> str:
    mutant = survivor.mutant
    return f"  {mutant.file}:{mutant.line} {survivor.verdict} [{mutant.kind}] in {mutant.scope}: {mutant.change}"
