"""Servers for the tests of the wire: handlers that write bytes as a test wants them, proxies, raw clients."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import TypeVar

from antiphon.kit.proxy.check_proxy import open_check_proxy
from antiphon.kit.proxy.server import Handler, run_server
from antiphon.kit.proxy.traffic_check import ExchangeReport
from tests.progress import HANG_TIMEOUT_S

Value = TypeVar("Value")


@contextmanager
def run_in_thread(create_server: Callable[[], AbstractAsyncContextManager[Value]]) -> Iterator[Value]:
    """Runs an asynchronous server in a thread with an event loop of its own, and yields what it yields."""
    loop, results, stop = asyncio.new_event_loop(), [], asyncio.Event()
    is_started, errors = threading.Event(), []

    async def run() -> None:
        async with create_server() as value:
            results.append(value)
            is_started.set()
            await stop.wait()

    def run_loop() -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(run())
        except BaseException as error:  # noqa: BLE001  raised in the test's thread
            errors.append(error)
        finally:
            is_started.set()

    thread = threading.Thread(target=run_loop, daemon=True)
    thread.start()
    is_started.wait(30)
    if errors:
        raise errors[0]
    try:
        yield results[0]
    finally:
        if not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        assert not thread.is_alive() and not errors


@contextmanager
def run_handler(handler: Handler) -> Iterator[str]:
    """Runs a server on a free port. Yields its URL without a path."""

    @asynccontextmanager
    async def open_server() -> AsyncIterator[str]:
        async with run_server(handler, "127.0.0.1", 0) as port:
            yield f"http://127.0.0.1:{port}"

    with run_in_thread(open_server) as url:
        yield url


class CheckedProxy:
    """A check proxy, and the reports that it made."""

    def __init__(self, url: str, reports: list[ExchangeReport]) -> None:
        self.url, self.reports = url, reports

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1].partition("/")[0])

    @property
    def codes(self) -> list[str]:
        return [finding.code for report in self.reports for finding in report.findings]

    def wait_report(self, path: str) -> ExchangeReport:
        """Waits for the only exchange with this path to end. Reports of other tests may come at any time."""
        wait_until(lambda: any(report.path == path for report in self.reports), f"no report of {path}")
        (report,) = (report for report in self.reports if report.path == path)
        return report

    def wait_reports(self, count: int) -> list[ExchangeReport]:
        """Waits for a number of exchanges to end."""
        wait_until(lambda: len(self.reports) >= count, f"{count} reports, not {self.reports}")
        return self.reports


@contextmanager
def run_checked_proxy(upstream_url: str) -> Iterator[CheckedProxy]:
    reports: list[ExchangeReport] = []
    with run_in_thread(lambda: open_check_proxy(upstream_url, "127.0.0.1", 0, reports.append)) as url:
        yield CheckedProxy(url, reports)


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def send_raw(url: str, data: bytes) -> socket.socket:
    """Opens a connection and sends bytes."""
    host, port = url.removeprefix("http://").removesuffix("/v1").rsplit(":", 1)
    client = socket.create_connection((host, int(port)), timeout=HANG_TIMEOUT_S)
    client.sendall(data)
    return client


def make_request(method: str, target: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: 127.0.0.1", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def read_until(client: socket.socket, wanted: bytes) -> bytes:
    """Reads until these bytes have come."""
    data = b""
    while wanted not in data:
        piece = client.recv(1 << 16)
        assert piece, f"the connection ended after {data!r}"
        data += piece
    return data


def read_all(client: socket.socket) -> bytes:
    """Reads until the other side closes. A reset raises `ConnectionResetError`."""
    data = b""
    while piece := client.recv(1 << 16):
        data += piece
    return data
