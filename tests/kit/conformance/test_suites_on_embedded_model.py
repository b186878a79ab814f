"""The suites on the embedded model: no finding. What the small model does not do is skipped, with a reason."""

from collections.abc import Iterator

import pytest

from antiphon.kit.conformance.client import LiveClient, find_model
from antiphon.kit.conformance.reports import list_case_lines
from antiphon.kit.conformance.runner import CaseRunner
from antiphon.kit.conformance.suites import CaseSuite, LiveCase, select_cases
from tests.codex.embedded_registry import needs_weights, serve_embedded
from tests.counts import FULL_COUNTS
from tests.kit.conformance.suite_scripts import SCRIPTED_SUITES

SAMPLE = (
    "basics.text",
    "basics.token-limit",
    "basics.logprobs",
    "tools.call",
    "tools.required",
    "tools.custom",
    "tools.custom-grammar",
    "structured.schema",
    "resume.replay-background",
    "conversations.turn",
    "websocket.three-turns",
    "codex.first-request",
    "codex.context-length",
    "codex.compaction-trigger",
)
"""Cases of each suite. The full counts run all."""
CASES = select_cases(SCRIPTED_SUITES, () if FULL_COUNTS else SAMPLE)

pytestmark = needs_weights


@pytest.fixture(scope="module")
def runner() -> Iterator[CaseRunner]:
    with serve_embedded() as server, LiveClient(server.url, timeout=90) as client:
        target = find_model(client, None)
        yield CaseRunner(client, target.name, context_length=target.context_length)


@pytest.mark.parametrize(("suite", "case"), CASES, ids=[f"{suite.name}.{case.id}" for suite, case in CASES])
def test_case_has_no_finding(runner: CaseRunner, suite: CaseSuite, case: LiveCase) -> None:
    report = runner.run_case(suite, case)
    assert not report.findings and report.outcome in ("passed", "skipped"), "\n".join(list_case_lines(report))
    print(report.outcome, report.reason, report.remarks)
