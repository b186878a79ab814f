"""The suites through every dialect on the scripted engine: no finding, whatever the model family writes."""

from collections.abc import Iterator, Sequence

import pytest

from antiphon.app.registry.model_registry import ModelRegistry
from antiphon.harmony.detection.detect import DIALECTS
from antiphon.kit.conformance.client import LiveClient, find_model
from antiphon.kit.conformance.reports import list_case_lines
from antiphon.kit.conformance.runner import CaseRunner
from antiphon.kit.conformance.suites import select_cases
from tests.counts import FULL_COUNTS
from tests.kit.conformance.suite_scripts import SCRIPTED_SUITES, write_script
from tests.serving import scripted_registry, serve

SAMPLE = ("tools.two-calls", "tools.text-and-call", "codex.apply-patch")
"""Cases that differ most between dialects. The full counts run all."""
LIMITS = {"plain": "it has no calls", "pythonic": "it has no frame for the input of a custom tool with a grammar"}
"""Dialects that cannot do what some cases need, so that the server refuses it."""


def list_case_names() -> Sequence[str]:
    return () if FULL_COUNTS else SAMPLE


@pytest.fixture(scope="module")
def client() -> Iterator[LiveClient]:
    """A client of a server with one model for each dialect, which plays the cases."""
    models = [
        model
        for name in DIALECTS
        for model in scripted_registry(write_script(name), dialect=name, names=(name,)).served
    ]
    with serve(ModelRegistry(models)) as server, LiveClient(server.url, timeout=30) as client:
        yield client


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
def test_cases_have_no_finding(client: LiveClient, dialect: str) -> None:
    faults: list[str] = []
    outcomes = ("passed", "skipped") if dialect not in LIMITS else ("passed", "skipped", "unsupported")
    runner = CaseRunner(client, dialect, context_length=find_model(client, dialect).context_length)
    for suite, case in select_cases(SCRIPTED_SUITES, tuple(list_case_names())):
        report = runner.run_case(suite, case)
        if report.findings or report.remarks or report.outcome not in outcomes:
            faults += list_case_lines(report)
    assert not faults, "\n".join(faults)
