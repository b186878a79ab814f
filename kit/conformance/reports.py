"""Reports of a check: lines for people, JSON, and JUnit's XML."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree as ET

from antiphon.kit.conformance.runner import CaseFinding, CaseReport
from antiphon.kit.findings import Finding, load_codes
from antiphon.kit.terminal_text import show_controls

LEVELS = ("error", "warning", "note")
OUTCOMES = ("passed", "failed", "skipped", "unsupported")


def describe_finding(finding: Finding) -> dict[str, Any]:
    """Returns a finding as JSON, with its code's level, rule and reason."""
    return {
        "code": finding.code,
        "level": finding.level,
        "title": load_codes()[finding.code].title,
        "why": finding.why,
        "position": finding.position,
        "sequence_number": finding.sequence_number,
        "subject": finding.subject,
        "expected": finding.expected,
        "actual": finding.actual,
        "count": finding.count,
    }


def describe_report(report: CaseReport) -> dict[str, Any]:
    """Returns the report about a case as JSON."""
    described: dict[str, Any] = {
        "suite": report.suite,
        "id": report.case.id,
        "title": report.case.title,
        "outcome": report.outcome,
        "reason": report.reason,
        "seconds": round(report.seconds, 3),
        "remarks": list(report.remarks),
        "findings": [{"place": entry.place} | describe_finding(entry.finding) for entry in report.findings],
    }
    return described | ({"client": report.case.client} if report.case.client else {})


def describe_run(target: str, model: str, reports: Sequence[CaseReport]) -> dict[str, Any]:
    """Returns the report about a server as JSON."""
    return {
        "target": target,
        "model": model,
        "summary": count_outcomes(reports),
        "cases": [describe_report(report) for report in reports],
    }


def describe_stream(target: str, api: str, findings: Sequence[Finding]) -> dict[str, Any]:
    """Returns the report about a recorded stream as JSON."""
    return {"target": target, "api": api, "findings": [describe_finding(finding) for finding in findings]}


def count_outcomes(reports: Iterable[CaseReport]) -> dict[str, int]:
    """Returns the number of cases by outcome, and of findings by level."""
    reports = list(reports)
    outcomes: Counter[str] = Counter(report.outcome for report in reports)
    levels: Counter[str] = Counter(entry.finding.level for report in reports for entry in report.findings)
    return {name: outcomes[name] for name in OUTCOMES} | {f"{level}s": levels[level] for level in LEVELS}


def list_finding_lines(finding: Finding, place: str = "") -> list[str]:
    """Returns the lines that show a finding to a person: the rule, where it was broken, and why clients care."""
    where = [place] if place else []
    if finding.position is not None or finding.sequence_number is not None:
        number = finding.sequence_number if finding.sequence_number is not None else "missing"
        event = f"event {finding.position}, " if finding.position is not None else ""
        where.append(f"{event}sequence_number {number}")
    if finding.subject:
        where.append(finding.subject)
    times = f" ({finding.count} times)" if finding.count > 1 else ""
    return [
        f"{finding.level} {finding.code}: {'; '.join(where) or 'the whole reply'}{times}",
        f"  rule:     {load_codes()[finding.code].title}",
        f"  expected: {finding.expected}",
        f"  actual:   {finding.actual}",
        f"  why:      {finding.why}",
    ]


def list_case_lines(report: CaseReport) -> list[str]:
    """Returns the lines that show a case to a person."""
    reason = f" ({report.reason})" if report.reason else ""
    lines = [f"{report.outcome:11} {report.suite}.{report.case.id}: {report.case.title}{reason}"]
    for entry in report.findings:
        lines += [f"    {line}" for line in list_finding_lines(entry.finding, entry.place)]
    if report.case.client and report.outcome == "failed":
        lines.append(f"    client:   {report.case.client}")
    return lines + [f"    remark:   {remark}" for remark in report.remarks]


def list_summary_rows(reports: Sequence[CaseReport]) -> list[tuple[str, ...]]:
    """Returns a table of outcomes and findings, one row a suite; the first row has the titles."""
    rows: list[tuple[str, ...]] = [("suite", "cases", *OUTCOMES, "errors", "warnings", "notes")]
    suites = list(dict.fromkeys(report.suite for report in reports))
    for suite in suites:
        of_suite = [report for report in reports if report.suite == suite]
        rows.append((suite, str(len(of_suite)), *map(str, count_outcomes(of_suite).values())))
    if len(suites) > 1:
        rows.append(("all", str(len(reports)), *map(str, count_outcomes(reports).values())))
    return rows


def format_junit(reports: Sequence[CaseReport]) -> str:
    """Returns the reports as JUnit's XML: a suite for each suite, a test case for each case."""
    root = ET.Element("testsuites", name="antiphon check")
    for suite in dict.fromkeys(report.suite for report in reports):
        of_suite = [report for report in reports if report.suite == suite]
        element = _add_suite(root, suite, len(of_suite))
        for report in of_suite:
            seconds = f"{report.seconds:.3f}"
            case = ET.SubElement(element, "testcase", classname=suite, name=report.case.id, time=seconds)
            _add_outcome(case, report)
        _count_elements(element)
    return ET.tostring(root, encoding="unicode", xml_declaration=True)


def format_stream_junit(target: str, findings: Sequence[Finding], failing: Sequence[str]) -> str:
    """Returns the findings about a recorded stream as JUnit's XML: one test case."""
    root = ET.Element("testsuites", name="antiphon check")
    element = _add_suite(root, "stream", 1)
    case = ET.SubElement(element, "testcase", classname="stream", name=_clean(target))
    _add_failures(case, [CaseFinding(place="", finding=finding) for finding in findings if finding.level in failing])
    _count_elements(element)
    return ET.tostring(root, encoding="unicode", xml_declaration=True)


def _add_suite(root: ET.Element, name: str, count: int) -> ET.Element:
    return ET.SubElement(root, "testsuite", name=name, tests=str(count), errors="0")


def _add_outcome(case: ET.Element, report: CaseReport) -> None:
    if report.outcome == "failed":
        _add_failures(case, report.findings)
    elif report.outcome in ("skipped", "unsupported"):
        ET.SubElement(case, "skipped", message=_clean(f"{report.outcome}: {report.reason}"))
    if remarks := [*report.remarks, *(str(entry.finding) for entry in report.findings)]:
        ET.SubElement(case, "system-out").text = _clean("\n".join(remarks))


def _add_failures(case: ET.Element, findings: Iterable[CaseFinding]) -> None:
    """Adds one failure with all findings: readers of the format expect at most one for each case."""
    entries = list(findings)
    if not entries:
        return
    codes = ", ".join(dict.fromkeys(entry.finding.code for entry in entries))
    failure = ET.SubElement(case, "failure", message=_clean(codes), type=entries[0].finding.code)
    lines = [line for entry in entries for line in list_finding_lines(entry.finding, entry.place)]
    failure.text = _clean("\n".join(lines))


def _count_elements(element: ET.Element) -> None:
    counts: Mapping[str, str] = {"failures": "failure", "skipped": "skipped"}
    for attribute, tag in counts.items():
        element.set(attribute, str(len(element.findall(f"testcase/{tag}"))))


def _clean(text: str) -> str:
    """Returns the text without what XML cannot hold, and without what a terminal that shows the file would obey."""
    return "".join(
        char
        if char in "\t\n\r" or "\x20" <= char <= "\ud7ff" or "\ue000" <= char <= "\ufffd" or char >= "\U00010000"
        else "\ufffd"
        for char in show_controls(text)
    )
