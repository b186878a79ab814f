"""Every case of every suite passes on Antiphon with the scripted engine: no finding, nothing unsupported or skipped."""

from collections.abc import Iterator
from functools import partial

import pytest

from antiphon.kit.conformance.client import LiveClient, find_model
from antiphon.kit.conformance.reports import list_case_lines
from antiphon.kit.conformance.runner import CaseRunner
from antiphon.kit.conformance.suites import CaseSuite, LiveCase, load_suite
from tests.kit.conformance.suite_scripts import SCRIPTED_SUITES, write_script
from tests.serving import RunningServer, scripted_registry, serve

CASES = [(suite, case) for suite in map(load_suite, SCRIPTED_SUITES) for case in suite.case]


@pytest.fixture(scope="module")
def runner() -> Iterator[CaseRunner]:
    with serve(lambda: scripted_registry(write_script())) as server, LiveClient(server.url, timeout=60) as client:
        yield create_runner(server, client)


def create_runner(server: RunningServer, client: LiveClient) -> CaseRunner:
    model = find_model(client, None)
    return CaseRunner(client, model.name, context_length=model.context_length)


@pytest.mark.parametrize(("suite", "case"), CASES, ids=[f"{suite.name}.{case.id}" for suite, case in CASES])
def test_case_passes(runner: CaseRunner, suite: CaseSuite, case: LiveCase) -> None:
    report = runner.run_case(suite, case)
    assert report.outcome == "passed" and not report.findings and not report.remarks, "\n".join(list_case_lines(report))


COMPARED = [(suite, case) for suite, case in CASES if any("chat" in step.checks for step in case.step)]


@pytest.fixture(scope="module")
def summary_runner() -> Iterator[CaseRunner]:
    """A server that shows reasoning as a summary only, as OpenAI does."""
    registry = partial(scripted_registry, write_script())
    with serve(registry, reasoning_output="summary") as server, LiveClient(server.url, timeout=60) as client:
        yield create_runner(server, client)


@pytest.mark.parametrize(("suite", "case"), COMPARED, ids=[f"{suite.name}.{case.id}" for suite, case in COMPARED])
def test_case_passes_with_summaries(summary_runner: CaseRunner, suite: CaseSuite, case: LiveCase) -> None:
    report = summary_runner.run_case(suite, case)
    assert report.outcome == "passed" and not report.findings and not report.remarks, "\n".join(list_case_lines(report))
