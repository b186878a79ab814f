"""A pytest plugin: `--strict-skips` lists all skips with their reasons, and fails on those that no file allows.

Without the option a machine that lacks npm, torch or a compiler runs what it can. With it, the machine that decides
about a merge cannot lose a part of the tests unnoticed.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ALLOWED_SKIPS_FILE = Path(__file__).with_name("allowed_skips.toml")
SKIP_PREFIX = "Skipped: "


@dataclass(frozen=True)
class AllowedSkip:
    """A row of the list of allowed skips."""

    file: str
    """A test module or a folder."""
    reason: str
    """A regular expression for the whole reason."""
    why: str

    def matches(self, file: str, reason: str) -> bool:
        is_inside = file == self.file or file.startswith(f"{self.file.rstrip('/')}/")
        return is_inside and re.fullmatch(self.reason, reason) is not None


def load_allowed_skips(path: Path = ALLOWED_SKIPS_FILE) -> list[AllowedSkip]:
    return [AllowedSkip(**row) for row in tomllib.loads(path.read_text(encoding="utf-8"))["skip"]]


@dataclass
class SkipReport:
    """Counts skips by file and reason."""

    allowed: list[AllowedSkip]
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, file: str, reason: str) -> None:
        self.counts[file, reason] += 1

    def is_allowed(self, file: str, reason: str) -> bool:
        return any(row.matches(file, reason) for row in self.allowed)

    def find_unlisted(self) -> Mapping[tuple[str, str], int]:
        return {key: count for key, count in self.counts.items() if not self.is_allowed(*key)}

    def format_lines(self) -> Iterator[str]:
        for (file, reason), count in sorted(self.counts.items()):
            verdict = "allowed" if self.is_allowed(file, reason) else "NOT LISTED"
            yield f"{verdict:10} {count:4} x {file}: {reason}"

    # Hooks of pytest. With xdist, the controller receives the reports of all workers.

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._read_report(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._read_report(report)

    def _read_report(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            longrepr = report.longrepr
            reason = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
            self.add(report.nodeid.split("::")[0], reason.removeprefix(SKIP_PREFIX))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.OK and self.find_unlisted():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
        yield  # the list is the last part of the output
        terminalreporter.section("skips", sep="=")
        for line in self.format_lines():
            terminalreporter.write_line(line)
        unlisted = self.find_unlisted()
        if unlisted:
            terminalreporter.write_line(
                f"{sum(unlisted.values())} skips are not listed in tests/{ALLOWED_SKIPS_FILE.name}: "
                "provide what the tests need, or list the skip and the reason."
            )
        else:
            terminalreporter.write_line(f"{sum(self.counts.values())} skips, all of them allowed.")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--strict-skips", action="store_true", help="list all skips, and fail on those not in tests/allowed_skips.toml"
    )


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    if config.getoption("--strict-skips") and not is_worker:
        config.pluginmanager.register(SkipReport(load_allowed_skips()), "skip-report")
