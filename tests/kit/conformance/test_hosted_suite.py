"""The suite hosted: a right server passes every case, and each fault of a server fails the case that is about it."""

import pytest

from antiphon.kit.conformance.client import LiveClient
from antiphon.kit.conformance.reports import list_case_lines
from antiphon.kit.conformance.runner import CaseReport, CaseRunner
from antiphon.kit.conformance.suites import load_suite, select_cases
from tests.kit.conformance.hosted_server import LABEL, HostedServer

CASES = [case.id for case in load_suite("hosted").case]
FAULTS = {
    "whole_response_lacks_a_key": ("call", "body-keys-differ"),
    "stores_no_output": ("stored", "get-differs"),
    "calls_in_spite_of_none": ("none", "tool-choice-none"),
    "calls_above_the_limit": ("max-tool-calls", "too-many-calls"),
    "asks_nobody": ("approval", "live-kind-missing"),
    "runs_what_was_denied": ("denied", "live-kind-unexpected"),
    "forgets_the_approval": ("approved", "live-calls"),
    "approves_twice": ("approved", "http-status"),
    "takes_a_label_twice": ("duplicate-label", "http-status"),
    "names_no_url": ("unknown-server", "http-error-param"),
    "takes_a_limit_of_0": ("no-tool-calls", "http-status"),
}
"""The case that notices a fault of the server, and the code of its finding."""


def run_case(case_id: str, fault: str = "", label: str | None = LABEL) -> CaseReport:
    [(suite, case)] = select_cases(("hosted",), (case_id,))
    with LiveClient("http://server.example/v1", transport=HostedServer(fault)) as client:
        return CaseRunner(client, "m", mcp_label=label).run_case(suite, case)


@pytest.mark.parametrize("case_id", CASES)
def test_right_server_passes(case_id: str) -> None:
    report = run_case(case_id)
    assert report.outcome == "passed" and not report.findings and not report.remarks, "\n".join(list_case_lines(report))


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_found(fault: str) -> None:
    case_id, code = FAULTS[fault]
    report = run_case(case_id, fault)
    assert code in {entry.finding.code for entry in report.findings}, "\n".join(list_case_lines(report))


def test_server_without_mcp_is_unsupported() -> None:
    report = run_case("call", "has_no_mcp")
    assert report.outcome == "unsupported" and "POST /responses gets 400" in report.reason and not report.findings


@pytest.mark.parametrize("case_id", CASES)
def test_cases_without_a_label_are_unsupported(case_id: str) -> None:
    report = run_case(case_id, label=None)
    assert report.outcome == "unsupported" and "--mcp-label" in report.reason and not report.findings
