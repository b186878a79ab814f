"""`antiphon check --proxy`: a proxy between a client and a server that checks their traffic."""

import itertools
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from antiphon.kit.findings import load_codes
from antiphon.kit.proxy.messages import IncomingRequest
from antiphon.kit.proxy.proxy import open_proxy, run_until_signal
from antiphon.kit.proxy.traffic_check import ExchangeChecker, ExchangeReport, KnownStreams
from antiphon.kit.proxy.websocket_check import WebSocketChecker
from antiphon.kit.terminal_output import print_line
from antiphon.kit.terminal_text import show_line

ReportExchange = Callable[[ExchangeReport], None]


def open_check_proxy(
    upstream_url: str, host: str, port: int, report: ReportExchange
) -> AbstractAsyncContextManager[str]:
    """Runs the proxy while the block runs. Yields the base URL for clients. `report` is called after each exchange."""
    numbers, known_streams = itertools.count(1), KnownStreams()

    def create_checker(head: IncomingRequest) -> ExchangeChecker:
        return ExchangeChecker(head, next(numbers), known_streams, report)

    def create_tap(head: IncomingRequest) -> WebSocketChecker:
        return WebSocketChecker(head, numbers, report)

    return open_proxy(upstream_url, host, port, create_checker, create_tap)


class TrafficPrinter:
    """Prints each exchange with its findings, and a summary. `exit_status` is 1 if an error was found."""

    def __init__(self, print_line: Callable[[str], None] = print_line) -> None:
        self._print_line = print_line
        self._codes: Counter[str] = Counter()
        self._kinds: Counter[str] = Counter()
        self._has_error = False

    @property
    def exit_status(self) -> int:
        """Status of the process."""
        return int(self._has_error)

    def print_exchange(self, report: ExchangeReport) -> None:
        """Prints one exchange."""
        self._kinds[report.kind] += 1
        self._has_error |= report.has_error
        self._print_line(describe_exchange(report))
        for finding in report.findings:
            self._codes[finding.code] += finding.count
            self._print_line(f"    {finding}")
            self._print_line(f"        {finding.why}")

    def print_summary(self) -> None:
        """Prints the number of exchanges of each kind, and of each finding."""
        num_exchanges = sum(self._kinds.values())
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self._kinds.items()))
        self._print_line("")
        self._print_line(count_things(num_exchanges, "exchange") + (f": {kinds}" if kinds else ""))
        if not self._codes:
            self._print_line("no finding")
        for code, count in self._codes.most_common():
            self._print_line(f"{count:6} {load_codes()[code].level:8} {code}")


def describe_exchange(report: ExchangeReport) -> str:
    """Returns one line about an exchange."""
    parts: list[str] = [report.kind]
    if report.num_events:
        parts.append(count_things(report.num_events, "event"))
    parts.append(f"{report.seconds * 1e3:.0f} ms")
    if report.ending != "complete":
        parts.append(ENDING_TEXTS[report.ending])
    if report.remark:
        parts.append(report.remark)
    if report.kind != "not checked":
        parts.append(count_things(len(report.findings), "finding") if report.findings else "no finding")
    status = report.status or "no reply"
    return show_line(f"{report.number:4} {report.method} {report.path} {status}: {', '.join(parts)}")


def count_things(number: int, thing: str) -> str:
    """Returns such as `1 event` and `2 events`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


ENDING_TEXTS = {
    "cut": "the server closed the connection before the end",
    "reset": "the server reset the connection",
    "client_left": "the client left",
    "unreachable": "the server did not answer",
}


def run_proxy_command(upstream_url: str, host: str, port: int) -> int:
    """Runs the proxy until a signal, and prints. Returns the status of the process.

    Raises `UpstreamUrlError` and `WireServerError`.
    """
    printer = TrafficPrinter()
    server = open_check_proxy(upstream_url, host, port, printer.print_exchange)
    run_until_signal(server, f"checking the traffic to {upstream_url}")
    printer.print_summary()
    sys.stdout.flush()
    return printer.exit_status
