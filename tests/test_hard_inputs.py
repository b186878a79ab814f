"""Every hard input in the lists has tests that exist, or a reason why there is none."""

import tomllib
from typing import Any

import pytest

from tests.syntax import ROOT, list_test_functions

ROWS: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "tests" / "hard_inputs.toml").read_text(encoding="utf-8"))


def test_rows_are_numbered_from_1() -> None:
    assert list(ROWS) == [str(number) for number in range(1, len(ROWS) + 1)]


@pytest.mark.parametrize("key", ROWS)
def test_row_has_existing_tests_or_a_reason(key: str) -> None:
    row = ROWS[key]
    assert set(row) <= {"input", "tests", "reason"} and row["input"].endswith(".")
    assert row.get("tests") or len(row.get("reason", "").split()) > 5
    for name in row.get("tests", []):
        file, _, function = name.partition("::")
        assert function in list_test_functions(file), f"there is no {name}"


HOSTILE: dict[str, list[dict[str, Any]]] = tomllib.loads(
    (ROOT / "tests" / "hostile_tools.toml").read_text(encoding="utf-8")
)


def test_no_group_of_hostile_tools_is_missing() -> None:
    assert list(HOSTILE) == ["address", "wire", "list", "result", "request", "model", "leaks"]


@pytest.mark.parametrize(
    ("group", "row"),
    [(group, row) for group, rows in HOSTILE.items() for row in rows],
    ids=lambda value: str(value)[:60],
)
def test_row_of_hostile_tools_has_existing_tests(group: str, row: dict[str, Any]) -> None:
    assert set(row) == {"input", "tests"} and row["input"].endswith(".") and row["tests"], group
    for name in row["tests"]:
        file, _, function = name.partition("::")
        assert function in list_test_functions(file), f"there is no {name}"
