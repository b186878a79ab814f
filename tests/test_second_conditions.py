"""The mode of `make mutants` that makes mutants of second conditions: the generator, the swap of code, the data files."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.mutation.code_swap import SwapError, swap_code
from tests.mutation.second_conditions import SecondConditionMutant, generate_mutants
from tests.mutation.second_mode import find_tests, load_coverage, load_equivalents, load_module
from tests.syntax import ROOT, list_source_modules

CHANGES = [
    ("x = a and b", {"negate: a and (not (b))", "negate: (not (a)) and b", "drop: ((b))", "drop: ((a))"}),
    ("x = a or ''", {"negate: (not (a)) or ''", "drop: ((''))", "drop: ((a))"}),
    ("x = a and b and c", {"drop: ((b) and (c))", "drop: ((a) and (c))", "drop: ((a) and (b))", "negate: a and b and (not (c))",
                           "negate: a and (not (b)) and c", "negate: (not (a)) and b and c"}),
    ("x = [n for n in a if n]", {"drop: [n for n in a if True]"}),
    ("x = a < b", {"limit: a <= b"}),
    ("x = a <= b", {"limit: a < b"}),
    ("x = a > b", {"limit: a >= b"}),
    ("x = a >= (b)", {"limit: a > (b)"}),
    ("x = 1 < a <= 2", {"limit: 1 <= a <= 2", "limit: 1 < a < 2"}),
    ("x = isinstance(a, B | C)", {"element: isinstance(a, C)", "element: isinstance(a, B)"}),
    ("x = a in (1, 2)", {"element: a in (2,)", "element: a in (1,)"}),
    ("match x:\n    case A() | B():\n        pass", {"element: match x:\n    case B():\n        pass", "element: match x:\n    case A():\n        pass"}),
    ("def f(o):\n    o.a = 0", {"reset: def f(o):\n    pass"}),
    ("def f(o):\n    o.a, o.b = 0, 1", {"reset: def f(o):\n    pass"}),
    ("def f(o):\n    o.a += 1", {"reset: def f(o):\n    pass"}),
    ("def f(o):\n    o.a[1] = 1", {"reset: def f(o):\n    pass"}),
    ("def f(o):\n    del o.a[1]", {"reset: def f(o):\n    pass"}),
    ("def f(o):\n    o.a.clear()", {"reset: def f(o):\n    pass"}),
    # What is left alone
    ("def __init__(self):\n    self.a = 0", set()),
    ("x = a == b", set()),
    ("x = a if b else c", set()),
    ("x = f'{a and b}'", set()),
    ("x = isinstance(a, B)", set()),
    ("x = a in (1,)", set()),
    ("if TYPE_CHECKING:\n    x = a and b", set()),
    ("def f(o):\n    o.a.append(1)", set()),
]  # fmt: skip


@pytest.mark.parametrize(("code", "changes"), CHANGES)
def test_mutants_of_a_statement(code: str, changes: set[str]) -> None:
    mutants = generate_mutants("m.py", code)
    values = {f"{mutant.kind}: {mutant.apply(code).removeprefix('x = ')}" for mutant in mutants}
    assert values == changes
    assert len(mutants) == len(changes)


LONG = """\
class Ä:
    def first(self, ä, b):
        if "ü" == ä and (
            b
            or self.x
        ):
            return [
                "e",
            ]
        self.n = max(
            1,
            2,
        )

    def second(self):
        return self.n < 2
"""


def test_place_of_a_mutant() -> None:
    mutants = generate_mutants("m.py", LONG)
    assert {(mutant.line, mutant.scope, mutant.kind) for mutant in mutants} == {
        (3, "Ä.first", "negate"),
        (3, "Ä.first", "drop"),
        (4, "Ä.first", "negate"),
        (4, "Ä.first", "drop"),
        (5, "Ä.first", "negate"),
        (10, "Ä.first", "reset"),
        (16, "Ä.second", "limit"),
    }
    (reset,) = [mutant for mutant in mutants if mutant.kind == "reset"]
    assert reset.change == "self.n = max( 1, 2, ) -> pass"


def test_mutants_keep_the_lines_and_compile() -> None:
    for mutant in generate_mutants("m.py", LONG):
        changed = mutant.apply(LONG)
        assert changed.count("\n") == LONG.count("\n")
        compile(changed, "m.py", "exec")


def test_mutant_of_another_text_is_refused() -> None:
    mutant = generate_mutants("m.py", "x = a and b")[0]
    with pytest.raises(ValueError, match=r"m\.py:1 no longer contains"):
        mutant.apply("y = b and a")


SWAPPED = """\
from functools import cached_property

def has_both(a, b):
    return a and b

def make_check(least):
    def check(n):
        return n >= least
    return check

check_two = make_check(2)

class Box:
    kind = 1 if has_both(1, 1) and __name__ else 2

    @cached_property
    def is_full(self):
        return self.n > 3

    def count(self, values):
        return len([value for value in values if value])
"""


@pytest.fixture
def swapped_module(tmp_path: Path) -> Any:
    path = tmp_path / "swapped.py"
    path.write_text(SWAPPED)
    module = ModuleType("tests_swapped")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    exec(compile(SWAPPED, str(path), "exec"), module.__dict__)
    yield module
    del sys.modules[module.__name__]


def swap(module: Any, line: int, new: str) -> None:
    (mutant,) = [each for each in generate_mutants("m.py", SWAPPED) if (each.line, each.new) == (line, new)]
    swap_code(module.__name__, SWAPPED, mutant.apply(SWAPPED))


def test_functions_get_the_code_of_the_mutant(swapped_module: Any) -> None:
    box = swapped_module.Box()
    box.n = 3
    assert (swapped_module.has_both(1, 0), swapped_module.check_two(2), box.count([0, 1])) == (0, True, 1)
    swap(swapped_module, 4, "((a))")
    assert swapped_module.has_both(1, 0) == 1
    swap(swapped_module, 8, ">")
    assert not swapped_module.check_two(2)
    swap(swapped_module, 18, ">=")
    assert box.is_full
    swap(swapped_module, 21, "True")
    assert box.count([0, 1]) == 2


def test_change_outside_functions_is_not_swapped(swapped_module: Any) -> None:
    with pytest.raises(SwapError, match="outside functions"):
        swap(swapped_module, 14, "((__name__))")


def test_change_of_what_a_function_refers_to_is_not_swapped(swapped_module: Any) -> None:
    changed = SWAPPED.replace("n >= least", "n >= 2")
    with pytest.raises(SwapError, match="refers to other variables"):
        swap_code(swapped_module.__name__, SWAPPED, changed)


def test_tests_of_a_module_are_known() -> None:
    assert find_tests("app/turns/core/stop_strings.py")[0] == "tests/app/turns/core/test_stop_strings.py"
    assert find_tests("app/no_such_module.py") == ()
    sources = {str(module) for module in list_source_modules()}
    for file, tests in load_coverage().items():
        assert file in sources, file
        assert tests and all((ROOT / name).exists() for name in tests), file


def test_every_equivalent_is_a_mutant_of_today() -> None:
    rows = load_equivalents()
    for file in {row.file for row in rows}:
        mutants: list[SecondConditionMutant] = generate_mutants(file, (ROOT / file).read_text(encoding="utf-8"))
        for row in rows:
            assert row.file != file or any(row.matches(mutant) for mutant in mutants), f"outdated: {row}"
            assert len(row.reason) > 20
        assert load_module(file).num_equivalent > 0
