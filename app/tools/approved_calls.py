"""The calls that a client has approved, and the ids of the requests for it."""

import secrets
from collections.abc import Mapping

from antiphon.app.base.errors import ApiError, clip_text
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.app.tools.approvals import NONCE_HEX_DIGITS, ApprovalError, ApprovalSigner
from antiphon.app.tools.hosted_turn import NO_REQUEST, ApprovedCall
from antiphon.events.hosted_inputs import InputApprovalRequest, InputApprovalResponse
from antiphon.harmony.prompt.hosted_items import find_newest_answers, find_run_ids
from antiphon.state.segments import Call


class ApprovalReader:
    """Signs requests for approvals, and reads the answers. `now` is in seconds since 1970."""

    def __init__(self, signer: ApprovalSigner) -> None:
        self._signer = signer

    def sign(self, owner: str, now: float, label: str, name: str, arguments: str) -> str:
        """Returns the id of a request to approve a call."""
        nonce = secrets.token_hex(NONCE_HEX_DIGITS // 2)
        return self._signer.create_id(owner, label, name, arguments, nonce, now=now)

    def refuse(self, spec: TurnSpec) -> None:
        """Raises `ApiError` 400 for an approval in a request without tools that could be called.

        A compaction runs none, and keeps the answers that the model has not read.
        """
        for answer in _list_due_answers(spec):
            if answer.approve and not spec.compact:
                raise _no_request(answer.approval_request_id)

    def read(
        self, spec: TurnSpec, offered: Mapping[str, frozenset[str]], owner: str, now: float
    ) -> tuple[ApprovedCall, ...]:
        """Returns the calls that the input approves. Raises `ApiError` 400 for a request that this server did not make.

        The client sends the request back, or the store has it. In both cases its id proves what was asked. `offered`
        has the names of the tools by the label of their server.
        """
        requests = {item.id: item for item in spec.prompt_input.items if isinstance(item, InputApprovalRequest)}
        approved: list[ApprovedCall] = []
        for answer in _list_due_answers(spec):
            found = requests.get(answer.approval_request_id)
            if found is None:
                raise _no_request(answer.approval_request_id)
            label, name, arguments = found.server_label, found.name, found.arguments
            try:
                nonce = self._signer.verify(owner, found.id, label, name, arguments, now=now)
            except ApprovalError:
                raise _no_request(found.id) from None
            if not answer.approve:
                continue
            if name not in offered.get(label, ()):
                message = f"The approved tool '{clip_text(name)}' of '{clip_text(label)}' is not in 'tools'."
                raise ApiError(400, "invalid_value", message, "tools")
            call = Call(name, "mcp", None, label, server_label=label, approval_request_id=found.id)
            approved.append(ApprovedCall(call, arguments, nonce))
        return tuple(approved)


def _list_due_answers(spec: TurnSpec) -> list[InputApprovalResponse]:
    """Returns the answers in the input that the model has not read, and those to a request that is nowhere.

    Clients send whole conversations again, in which earlier answers are settled: their calls have run, or the model
    went on without them. Those of other servers' requests are, too.
    """
    items = spec.prompt_input.items
    known = {item.id for item in items if isinstance(item, InputApprovalRequest)} | find_run_ids(items)
    due = find_newest_answers(items)
    return [
        item
        for item in spec.input_items
        if isinstance(item, InputApprovalResponse)
        and (item.approval_request_id in due or item.approval_request_id not in known)
    ]


def _no_request(request_id: str) -> ApiError:
    return ApiError(400, None, NO_REQUEST.format(id=clip_text(request_id)), "input")
