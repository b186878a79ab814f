"""Objects that the checks of a step use."""

from collections.abc import Mapping

import msgspec

from antiphon.kit.conformance.client import LiveClient, LiveReply
from antiphon.kit.conformance.exchanges import Exchange, check_arrival
from antiphon.kit.findings import Finding, FindingList
from antiphon.kit.json_values import Json


class UnsupportedError(Exception):
    """Raised if the server lacks what a case needs."""


class LostReplyError(Exception):
    """Raised to end a check if no reply came."""


class CheckContext(msgspec.Struct, kw_only=True):
    """Objects that a check uses: the exchange of the step, the client, and where to report."""

    client: LiveClient
    exchange: Exchange
    path: str
    headers: Mapping[str, str]
    values: Mapping[int, Json]
    """Replies to the earlier steps."""
    absent_statuses: tuple[int, ...] = ()
    """Statuses that mean that the server lacks what the case needs."""
    findings: list[tuple[str, Finding]] = []
    """Findings, each with the request that it is about."""
    remarks: list[str] = []

    @property
    def response_id(self) -> str:
        """Id of the response of the step."""
        return str(self.exchange.value.get("id"))

    def fetch(self, method: str, path: str, body: Json | None = None) -> LiveReply:
        """Sends a request. Raises `UnsupportedError` if its status says that the server lacks the endpoint."""
        reply = self.send(method, path, body)
        if reply.status in self.absent_statuses:
            raise UnsupportedError(f"{method} {path.partition('?')[0]} gets {reply.status}")
        return reply

    def send(self, method: str, path: str, body: Json | None = None) -> LiveReply:
        """Sends a request. Raises `LostReplyError` if no reply comes, which is reported."""
        reply = self.client.send(method, path, body, headers=self.headers)
        if reply.status == 0:
            findings = FindingList()
            check_arrival(reply, findings)
            self.report(f"{method} {path.partition('?')[0]}", findings)
            raise LostReplyError
        return reply

    def report(self, place: str, findings: FindingList) -> None:
        """Adds the findings about one request."""
        self.findings += [(place, finding) for finding in findings.list_findings()]
