"""docs/check.md: the suites as they are, the options as they are, and tables of results."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from antiphon.kit.cli.check import check
from antiphon.kit.conformance.suites import SUITE_NAMES, SuiteError, load_suite, parse_suite
from tests.kit.conformance.suites_page import format_suites, replace_part
from tests.prove.check_results import print_results
from tests.syntax import ROOT

PAGE = (ROOT / "docs/check.md").read_text(encoding="utf-8")
CASES = [(suite, case) for suite in map(load_suite, SUITE_NAMES) for case in suite.case]


def test_page_has_the_suites() -> None:
    assert replace_part(PAGE, "suites", "tests.kit.conformance.suites_page", format_suites()) == PAGE, (
        "python -m tests.kit.conformance.suites_page prints the new part"
    )


def test_page_has_every_option() -> None:
    options = {name for parameter in check.params for name in parameter.opts if name.startswith("--")}
    assert options == set(re.findall(r"--[a-z][a-z-]*", PAGE.partition("## What is checked")[0]))


def test_codex_suite_is_large_and_says_what_codex_does() -> None:
    suite = load_suite("codex")
    assert len(suite.case) >= 30 and all(case.client for case in suite.case)


def test_expectations_that_depend_on_the_model_are_there() -> None:
    for suite, case in CASES:
        for step in case.step:
            unknown = set(step.model_dependent) - set(step.expect.__struct_fields__)
            assert not unknown, f"{suite.name}.{case.id}: {unknown}"


def test_unreadable_suite_is_refused() -> None:
    with pytest.raises(SuiteError, match="suite x: "):
        parse_suite("x", "title = 3")
    case = '[[case]]\nid = "a"\ntitle = "A."\nstep = []\n'
    with pytest.raises(SuiteError, match="the id 'a' is used twice"):
        parse_suite("x", f'title = "X"\n{case}{case}')


def test_results_are_written_into_a_page(tmp_path: Path) -> None:
    finding = {"code": "get-differs"}
    summary = {"passed": 1, "failed": 1, "skipped": 0, "unsupported": 0, "errors": 2, "warnings": 0, "notes": 0}
    cases = [{"findings": [finding, finding]}, {"findings": []}]
    (tmp_path / "report.json").write_text(json.dumps({"summary": summary, "cases": cases}))
    (tmp_path / "results.toml").write_text(
        '[[server]]\nname = "other"\nversion = "1.2"\ncommand = "other serve"\nreport = "report.json"\n'
    )
    page = tmp_path / "page.md"
    page.write_text(
        "Before\n<!-- results: printed by python -m tests.prove.check_results -->\nold\n<!-- end -->\nAfter\n"
    )
    result = CliRunner().invoke(print_results, [str(tmp_path / "results.toml"), "--write", str(page)])
    assert result.exit_code == 0, result.output
    text = page.read_text()
    assert "| other | 1.2 | 2 | 1 | 1 | 0 | 0 | 2 | 0 | 0 |" in text
    assert "| `get-differs` | error | GET returns the response as the stream ended with it. | 1 |" in text
    assert text.startswith("Before\n") and text.endswith("After\n") and "old" not in text
    assert "- other 1.2: `other serve`" in text
