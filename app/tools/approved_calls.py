"""The calls that a client has approved, and the ids of the requests for it."""

import secrets
from collections.abc import Mapping

from antiphon.app.base.errors import ApiError, clip_text
from antiphon.app.requests.turn_spec import TurnSpec
from antiphon.app.tools.approvals import NONCE_HEX_DIGITS, ApprovalError, ApprovalSigner
from antiphon.app.tools.hosted_turn import NO_REQUEST, ApprovedCall
from antiphon.events.hosted_inputs import InputApprovalRequest, InputApprovalResponse, InputMcpCall
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
        """Raises `ApiError` 400 for an approval in a request without tools that could be called."""
        for item in _list_new_answers(spec):
            if item.approve:
                raise _no_request(item.approval_request_id)

    def read(
        self, spec: TurnSpec, offered: Mapping[str, frozenset[str]], owner: str, now: float
    ) -> tuple[ApprovedCall, ...]:
        """Returns the calls that the input approves. Raises `ApiError` 400 for a request that this server did not make.

        The client sends the request back, or the store has it. In both cases its id proves what was asked. A call that
        is not approved needs no proof: nothing runs. `offered` has the names of the tools by the label of their server.
        """
        requests = {item.id: item for item in spec.prompt_input.items if isinstance(item, InputApprovalRequest)}
        approved: list[ApprovedCall] = []
        for item in _list_new_answers(spec):
            found = requests.get(item.approval_request_id)
            if found is None:
                raise _no_request(item.approval_request_id)
            if not item.approve:
                continue
            label, name, arguments = found.server_label, found.name, found.arguments
            try:
                nonce = self._signer.verify(owner, item.approval_request_id, label, name, arguments, now=now)
            except ApprovalError:
                raise _no_request(item.approval_request_id) from None
            if name not in offered.get(label, ()):
                message = f"The approved tool '{clip_text(name)}' of '{clip_text(label)}' is not in 'tools'."
                raise ApiError(400, "invalid_value", message, "tools")
            call = Call(name, "mcp", None, label, server_label=label, approval_request_id=found.id)
            approved.append(ApprovedCall(call, arguments, nonce))
        return tuple(approved)


def _list_new_answers(spec: TurnSpec) -> list[InputApprovalResponse]:
    """Returns the answers to requests of which the conversation has no call yet.

    Clients send a whole conversation again, with the answers of earlier turns.
    """
    called = {item.approval_request_id for item in spec.prompt_input.items if isinstance(item, InputMcpCall)}
    answers = (item for item in spec.input_items if isinstance(item, InputApprovalResponse))
    return [item for item in answers if item.approval_request_id not in called]


def _no_request(request_id: str) -> ApiError:
    return ApiError(400, None, NO_REQUEST.format(id=clip_text(request_id)), "input")
