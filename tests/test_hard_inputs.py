"""Every row of what a server must survive has a test that is there, or a written reason: none is forgotten."""

import tomllib
from typing import Any

import pytest

from tests.syntax import ROOT
from tests.test_field_faults import functions

ROWS: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "tests" / "hard_inputs.toml").read_text(encoding="utf-8"))


def test_no_row_is_missing() -> None:
    assert list(ROWS) == [str(number) for number in range(1, 43)]


@pytest.mark.parametrize("row", ROWS)
def test_a_row_has_tests_that_are_there_or_a_reason(row: str) -> None:
    said = ROWS[row]
    assert set(said) <= {"input", "tests", "reason"} and said["input"].endswith(".")
    assert said.get("tests") or len(said.get("reason", "").split()) > 5
    for name in said.get("tests", []):
        file, _, function = name.partition("::")
        assert function in functions(file), f"there is no {name}"
