"""Every fault known from other servers has tests that exist, or a reason why there is none."""

import tomllib
from typing import Any

import pytest

from tests.syntax import ROOT, list_test_functions

ROWS: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "tests" / "field_faults.toml").read_text(encoding="utf-8"))

FIELD_KEYS = [f"field-{number}" for number in range(1, 11)]
VLLM_SOURCE_KEYS = [f"vllm-{number}" for number in range(1, 21)]
USER_REPORT_KEYS = """vllm#56285 vllm#42407 vllm#57998 vllm#45386 vllm#24184 vllm#40418 vllm#48275 vllm#43244 vllm#37697 vllm#23218
    vllm#29725 vllm#45273 vllm#46631 dynamo#10206 vllm#47761 vllm#56077 vllm#43933 vllm#49412 vllm#47137 vllm#44326
    vllm#39056 vllm#30439 vllm#45687 vllm#44012 vllm#23567 vllm#32587 vllm#27385 vllm#23227 vllm#34417 vllm#33381
    vllm#26934 vllm#18412 sglang#9963 sglang#17853 sglang#38690 sglang#34214 sglang#21900 llama.cpp#20156
    llama.cpp#23465 llama.cpp#27751 ogx#5309 langchain#39041 gLLM#267 codex#20774""".split()
FIRST_KEYS = [
    f"first-{name}"
    for name in """durable-log events-as-source checker codex-suite snapshots replay scripted-engine inspector telemetry
        dialect-switch phase-and-truth websocket hard-tokens""".split()
]


def test_rows_match_the_list_of_faults() -> None:
    expected = [*FIELD_KEYS, *VLLM_SOURCE_KEYS, *USER_REPORT_KEYS, *FIRST_KEYS]
    assert (len(USER_REPORT_KEYS), len(FIRST_KEYS)) == (44, 13)
    assert list(ROWS) == expected, "rows and list differ, or their order does"


@pytest.mark.parametrize("key", ROWS)
def test_row_has_a_fault_and_tests_or_a_reason(key: str) -> None:
    row = ROWS[key]
    assert set(row) <= {"fault", "tests", "reason"}, sorted(row)
    assert len(row["fault"].split()) > 4 and row["fault"].endswith(".")
    assert row.get("tests") or row.get("reason"), f"{key} has neither a test nor a reason"
    assert len(row.get("reason", "a reason in words").split()) > 3
    assert len(set(row.get("tests", []))) == len(row.get("tests", [])), "each test once"


@pytest.mark.parametrize("key", [key for key, row in ROWS.items() if row.get("tests")])
def test_tests_named_in_a_row_exist(key: str) -> None:
    for name in ROWS[key]["tests"]:
        file, _, function = name.partition("::")
        assert function in list_test_functions(file), f"{key}: there is no {name}"
