"""`python -m tests.mutation [NAME …]`: checks that each mutant of the list is killed by its tests.

With `--second [FILE …]` or `--since COMMIT`, the mutants are made of these modules instead: see `second_mode.py`.

The runner copies the tree, so that other work on it can continue. In the copy it runs the tests of all selected mutants
once without a change, which must pass. Then it applies one mutant at a time, runs the tests that the list names, and
expects a failure.
"""

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from queue import SimpleQueue

from tests.mutation.mutants import Mutant, load_mutants
from tests.mutation.second_mode import run_second_mode
from tests.mutation.tree_copy import TreeCopy


def main(args: Sequence[str] | None = None) -> int:
    """Returns 0 if every selected mutant is killed."""
    options = _parse_args(args)
    if options.second or options.since:
        return run_second_mode(options.names, options.since, options.jobs, is_quick=options.quick)
    mutants = [mutant for mutant in load_mutants() if not options.names or mutant.name in options.names]
    unknown = set(options.names) - {mutant.name for mutant in mutants}
    if unknown:
        print(f"no such mutant: {', '.join(sorted(unknown))}")
        return 2
    if options.list:
        print("\n".join(f"{mutant.name:40} {mutant.file}" for mutant in mutants))
        return 0
    return _run_mutants([mutant for mutant in mutants if not mutant.equivalent], mutants, options.jobs)


def _parse_args(args: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("names", nargs="*", help="names of mutants; all by default. With --second, paths of modules")
    parser.add_argument("--second", action="store_true", help="make mutants of the second conditions of modules")
    parser.add_argument("--quick", action="store_true", help="with --second: survivors are not run a second time")
    parser.add_argument("--since", metavar="COMMIT", help="with --second: the modules that have changed since COMMIT")
    parser.add_argument("--jobs", type=int, default=2, help="mutants that run at the same time; 2 by default")
    parser.add_argument("--list", action="store_true", help="list the mutants and exit")
    return parser.parse_args(args)


def _run_mutants(live: list[Mutant], selected: list[Mutant], jobs: int) -> int:
    with ExitStack() as stack:
        copies: SimpleQueue[TreeCopy] = SimpleQueue()
        for _ in range(min(jobs, max(len(live), 1))):
            copies.put(stack.enter_context(TreeCopy.create()))
        first = copies.get()
        baseline = first.run_tests(sorted({test for mutant in live for test in mutant.tests}), workers=jobs)
        copies.put(first)
        if live and baseline.verdict != "passed":
            print(f"the tests fail without a mutant ({baseline.verdict}):\n{baseline.output}")
            return 2

        def check(mutant: Mutant) -> str:
            copy = copies.get()
            try:
                verdict = copy.run_mutant(mutant)
            finally:
                copies.put(copy)
            print(f"{verdict:9} {mutant.name}", flush=True)
            return verdict

        with ThreadPoolExecutor(jobs) as pool:
            verdicts = dict(zip((mutant.name for mutant in live), pool.map(check, live), strict=True))
    for mutant in selected:
        if mutant.equivalent:
            print(f"equivalent {mutant.name}: {mutant.equivalent}")
    not_killed = {name: verdict for name, verdict in verdicts.items() if verdict != "killed"}
    print(
        f"{len(verdicts) - len(not_killed)} of {len(verdicts)} mutants killed, {len(selected) - len(live)} equivalent"
    )
    for name, verdict in not_killed.items():
        print(f"{verdict.upper()}: {name}")
    return 1 if not_killed else 0


if __name__ == "__main__":
    sys.exit(main())
