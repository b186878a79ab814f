"""Runs cases: sends their steps one after another and collects what is wrong."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Literal

import msgspec

from antiphon.kit.conformance.checks.context import CheckContext, LostReplyError, UnsupportedError
from antiphon.kit.conformance.checks.registry import run_check
from antiphon.kit.conformance.client import LiveClient, LiveReply, UnreachableError
from antiphon.kit.conformance.exchanges import Exchange, check_arrival, check_error_body, read_events, read_reply
from antiphon.kit.conformance.expectations import StepVerdict, check_error, check_expectation
from antiphon.kit.conformance.request_builder import BodyBuilder
from antiphon.kit.conformance.sockets import LiveSocket, RefusedUpgradeError, is_last_event
from antiphon.kit.conformance.suites import CaseSuite, LiveCase, LiveStep
from antiphon.kit.conformance.templates import MissingValueError
from antiphon.kit.findings import Finding, FindingList, load_codes, quote, quote_start
from antiphon.kit.json_values import Json

Outcome = Literal["passed", "failed", "skipped", "unsupported"]
ABSENT_STATUSES = (404, 405, 501)
"""Statuses of an endpoint that a server does not have."""
FIELDS_OF_CAPABILITIES = {
    "background": ("background",),
    "compaction": ("compaction",),
    "conversations": ("conversation",),
    "images": ("image", "multimodal", "modalit"),
    "logprobs": ("logprobs",),
    "mcp": ("mcp", "server_label", "server_url", "connector_id"),
    "tools": ("not support tool", "tool-call-parser", "requires --jinja"),
    "store": ("store", "previous_response_id"),
}
"""Words in an error of status 400 by which a server says that it lacks a capability."""


class CaseFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A finding, and the request of the case that it is about."""

    place: str
    finding: Finding


class CaseReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one case. `reason` says why it was skipped, or why the server does not support it."""

    suite: str
    case: LiveCase
    outcome: Outcome
    reason: str
    findings: tuple[CaseFinding, ...]
    remarks: tuple[str, ...]
    seconds: float


class _CaseEndError(Exception):
    """Raised to end a case early: what follows has no meaning."""


class CaseRunner:
    """Runs cases against one server. Findings of a level in `failing_levels` fail a case.

    In the suites of `required_suites`, a case that the server does not support is an error.
    """

    def __init__(
        self,
        client: LiveClient,
        model: str,
        *,
        context_length: int | None = None,
        required_suites: tuple[str, ...] = (),
        is_strict: bool = False,
        max_output_tokens: int | None = None,
        mcp_label: str | None = None,
    ) -> None:
        self._client = client
        self._bodies = BodyBuilder(model, context_length, max_output_tokens, mcp_label)
        self._required_suites = required_suites
        self._failing_levels = ("error", "warning") if is_strict else ("error",)

    def run_case(self, suite: CaseSuite, case: LiveCase) -> CaseReport:
        """Returns the report about one case."""
        start = time.monotonic()
        run = _CaseRun(self._client, self._bodies, suite, case)
        reason = ""
        try:
            self._check_label(case)
            run.run_steps()
        except UnsupportedError as error:
            reason = str(error)
        findings = list(run.findings)
        if reason and suite.name in self._required_suites:
            missing = Finding(code="capability-missing", expected=" and ".join(case.needs), actual=reason)
            findings.append(CaseFinding(place="", finding=missing))
        if any(load_codes()[entry.finding.code].level in self._failing_levels for entry in findings):
            outcome: Outcome = "failed"
        elif reason:
            outcome = "unsupported"
        else:
            outcome, reason = ("skipped", "; ".join(run.misses)) if run.misses else ("passed", "")
        return CaseReport(
            suite=suite.name,
            case=case,
            outcome=outcome,
            reason=reason,
            findings=tuple(findings),
            remarks=tuple(run.remarks),
            seconds=time.monotonic() - start,
        )

    def _check_label(self, case: LiveCase) -> None:
        """Raises `UnsupportedError` if a case needs an MCP server and none is named."""
        if "mcp" in case.needs and self._bodies.mcp_label is None:
            raise UnsupportedError("no MCP server is known: name one that the server can reach with --mcp-label")


class _CaseRun:
    """State of a running case: the values of its steps, its WebSocket, what was found."""

    def __init__(self, client: LiveClient, bodies: BodyBuilder, suite: CaseSuite, case: LiveCase) -> None:
        self._client, self._bodies, self._suite, self._case = client, bodies, suite, case
        self._values: dict[int, Json] = {}
        self._socket: LiveSocket | None = None
        self.findings: list[CaseFinding] = []
        self.misses: list[str] = []
        self.remarks: list[str] = []

    def run_steps(self) -> None:
        """Runs all steps, or up to the first one after which the others have no meaning."""
        try:
            for number, step in enumerate(self._case.step, 1):
                self._run_step(number, step)
        except _CaseEndError:
            return
        except UnreachableError as error:
            lost = Finding(code="http-disconnect", expected="a connection", actual=str(error))
            self.findings.append(CaseFinding(place="", finding=lost))
        finally:
            if self._socket is not None:
                self._socket.close()

    def _run_step(self, number: int, step: LiveStep) -> None:
        try:
            step, request = self._bodies.build(self._suite, self._case, number, step, self._values)
        except MissingValueError as error:
            self._end_without_value(number, str(error))
        place = f"step {number}"
        with self._collect(place) as findings:
            verdict = StepVerdict(step, findings)
            if step.drops:
                self._client.drop(step.path, request, self._headers(step))
                return
            exchange = (
                self._run_on_socket(step, request, verdict)
                if step.transport == "websocket"
                else self._run_over_http(step, request, verdict)
            )
            self.misses += verdict.misses
            if exchange is None:
                return
            check_expectation(step, exchange, self._values, verdict)
            self.misses += [miss for miss in verdict.misses if miss not in self.misses]
        self._run_checks(step, exchange, place)
        if verdict.is_last:
            raise _CaseEndError
        self._values[number] = exchange.value

    def _run_over_http(self, step: LiveStep, request: Json, verdict: StepVerdict) -> Exchange | None:
        body = None if step.method != "POST" or (step.body is None and step.raw is None) else request
        reply = self._client.send(
            step.method,
            step.path,
            body,
            raw=step.raw,
            headers=self._headers(step),
            root=step.root,
            zstd=step.zstd,
        )
        if reply.status not in step.expect.status:
            self._check_unsupported(step, reply.status, reply.body)
            self._report_status(step, reply, verdict)
        if reply.status >= 400:
            error = check_error_body(reply, verdict.findings)
            if step.expect.error is not None:
                check_error(step.expect.error, error, verdict)
            return None
        return read_reply(step.path.partition("?")[0], request, reply, verdict.findings)

    def _run_on_socket(self, step: LiveStep, request: Json, verdict: StepVerdict) -> Exchange | None:
        findings = verdict.findings
        if self._socket is None:
            try:
                self._socket = LiveSocket(self._client, self._headers(step))
            except RefusedUpgradeError as error:
                if error.status in step.expect.status:
                    raise _CaseEndError from None
                if "websocket" in self._case.needs:
                    raise UnsupportedError(str(error)) from None
                findings.add("http-status", _join_statuses(step), str(error.status), "handshake")
                raise _CaseEndError from None
        message = step.raw if step.raw is not None else json.dumps({"type": "response.create"} | request)
        events = self._socket.run_turn(message, findings)
        if not events or not is_last_event(events):
            raise _CaseEndError
        if events[-1].get("type") == "error":
            self._check_error_event(step, events[-1], verdict)
            return None
        if step.expect.error is not None and "failed" not in step.expect.ending:
            verdict.report("error", "websocket-error", "an error event", f"the end {events[-1].get('type')}")
        return read_events(events, request | {"stream": True}, findings)

    def _check_error_event(self, step: LiveStep, event: Json, verdict: StepVerdict) -> None:
        error, status = event.get("error"), event.get("status")
        if not isinstance(error, dict) or not isinstance(status, int):
            expected = '{"type": "error", "status", "error": {"code", "message"}}'
            verdict.findings.add("websocket-error", expected, quote(event))
            raise _CaseEndError
        if step.expect.error is None or status not in step.expect.status:
            if step.expect.error is None:
                self._check_unsupported(step, status, json.dumps(error).encode())
            verdict.report("status", "websocket-error", _join_statuses(step), quote(event))
            raise _CaseEndError
        check_error(step.expect.error, error, verdict)

    def _report_status(self, step: LiveStep, reply: LiveReply, verdict: StepVerdict) -> None:
        """Reports an unexpected status, and ends the case."""
        expected, actual = _join_statuses(step), f"{reply.status}: {quote_start(reply.body)}"
        if reply.status == 0:
            check_arrival(reply, verdict.findings)
        elif reply.status == 422 and 400 in step.expect.status:
            verdict.report("status", "http-validation-status", expected, actual)
        elif reply.status >= 500:
            verdict.report("status", "http-server-error", expected, actual)
        else:
            verdict.report("status", "http-status", expected, actual)
        self.misses += verdict.misses
        raise _CaseEndError

    def _check_unsupported(self, step: LiveStep, status: int, body: bytes) -> None:
        """Raises `UnsupportedError` if a status says that the server lacks what the case needs."""
        if not self._case.needs:
            return
        text = body.decode(errors="replace").lower()
        words = [word for need in self._case.needs for word in FIELDS_OF_CAPABILITIES.get(need, ())]
        is_named = status in (400, 422) and any(word in text for word in words)
        if status in (*ABSENT_STATUSES, *step.lenient_status) or is_named:
            raise UnsupportedError(f"{step.method} {step.path.partition('?')[0]} gets {status}: {quote_start(body)}")

    def _run_checks(self, step: LiveStep, exchange: Exchange, place: str) -> None:
        if step.checks and not exchange.value:
            return  # there is no response to check, which has been reported
        context = CheckContext(
            client=self._client,
            exchange=exchange,
            path=step.path,
            headers=self._headers(step),
            values=self._values,
            absent_statuses=(*ABSENT_STATUSES, *step.lenient_status) if self._case.needs else (),
        )
        try:
            for name in step.checks:
                with suppress(LostReplyError):
                    run_check(name, context)
        finally:
            self.findings += [
                CaseFinding(place=f"{place}, {request}", finding=finding) for request, finding in context.findings
            ]
            self.remarks += context.remarks

    @contextmanager
    def _collect(self, place: str) -> Iterator[FindingList]:
        findings = FindingList()
        try:
            yield findings
        finally:
            self.findings += [CaseFinding(place=place, finding=each) for each in findings.list_findings()]

    def _end_without_value(self, number: int, path: str) -> None:
        """Ends the case at a step that needs a value that did not come."""
        if not self.misses and not self.findings:
            missing = Finding(code="live-field", expected="a value", actual="no such field", subject=path)
            self.findings.append(CaseFinding(place=f"step {number}", finding=missing))
        raise _CaseEndError

    def _headers(self, step: LiveStep) -> Mapping[str, str]:
        return self._suite.defaults.headers | step.headers


def _join_statuses(step: LiveStep) -> str:
    return " or ".join(map(str, step.expect.status))
