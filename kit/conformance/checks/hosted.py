"""Checks of calls that the server runs."""

from antiphon.kit.conformance.checks.context import CheckContext
from antiphon.kit.findings import FindingList, quote
from antiphon.kit.json_values import as_objects


def check_approved(context: CheckContext, findings: FindingList) -> None:
    """Checks that each approved call runs once, with the id of the request for its approval."""
    answers = as_objects(context.exchange.request.get("input"))
    approved = [answer.get("approval_request_id") for answer in answers if answer.get("approve") is True]
    calls = [item for item in as_objects(context.exchange.value.get("output")) if item.get("type") == "mcp_call"]
    ran = [call.get("approval_request_id") for call in calls]
    if ran != approved:
        findings.add("live-calls", f"mcp_call items with approval_request_id {quote(approved)}", quote(ran))
