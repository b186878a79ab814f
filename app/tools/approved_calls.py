"""The answers of a client to requests for approval: the calls that it has approved, and each answer's single use."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import structlog
from msgspec import Struct

from antiphon.app.errors import ApiError, clip_text
from antiphon.app.requests.turn_spec import ApprovalAnswer, TurnSpec
from antiphon.app.store.store import ResponseStore
from antiphon.app.tools.approvals import ApprovalError, ApprovalSigner
from antiphon.app.tools.call_rules import ApprovedCall
from antiphon.app.tools.hosted_turn import HostedTurn
from antiphon.app.turn_types.event_log import EventLog
from antiphon.events.hosted_inputs import InputApprovalRequest, InputApprovalResponse
from antiphon.harmony.prompt.hosted_items import find_newest_answers, find_run_ids
from antiphon.state.segments import Call

NO_REQUEST = "No approval request found with id '{id}'."
ANSWERED_BEFORE = "Approval request '{id}' was answered before. Each one is answered once: leave the answer out."
STAY_USED = "answers to requests for approval may stay used"
_log = structlog.get_logger(__name__)


class ReadAnswers(Struct, frozen=True):
    """The answers in the input of a turn, and the calls that they approve."""

    answers: tuple[ApprovalAnswer, ...] = ()
    approved: tuple[ApprovedCall, ...] = ()


class ApprovalReader:
    """Signs requests for approvals, and reads the answers. `now` is in seconds since 1970."""

    def __init__(self, signer: ApprovalSigner) -> None:
        self._signer = signer

    def sign(self, owner: str, now: float, label: str, name: str, arguments: str, nonce: str) -> str:
        """Returns the id of a request to approve a call."""
        return self._signer.create_id(owner, label, name, arguments, nonce, now=now)

    def read_denials(self, spec: TurnSpec, owner: str, now: float) -> tuple[ApprovalAnswer, ...]:
        """Returns the denials in a request without tools that could be called. Raises `ApiError` 400 for an approval.

        A denial of what this server did not ask has no effect. A compaction runs no call, and keeps the answers that
        the model has not read.
        """
        requests, denials = _find_requests(spec), list[ApprovalAnswer]()
        for answer in () if spec.compact else _list_due_answers(spec):
            if answer.approve:
                raise _no_request(answer.approval_request_id)
            found = requests.get(answer.approval_request_id)
            with suppress(ApprovalError):
                denials += [self._verify(found, owner, now)] if found is not None else []
        return tuple(denials)

    def read(self, spec: TurnSpec, offered: Mapping[str, frozenset[str]], owner: str, now: float) -> ReadAnswers:
        """Returns the answers in the input. Raises `ApiError` 400 for a request that this server did not make.

        The client sends the request back, or the store has it. In both cases its id proves what was asked. `offered`
        has the names of the tools by the label of their server.
        """
        requests, answers, approved = _find_requests(spec), list[ApprovalAnswer](), list[ApprovedCall]()
        for answer in _list_due_answers(spec):
            found = requests.get(answer.approval_request_id)
            if found is None:
                raise _no_request(answer.approval_request_id)
            try:
                answers.append(self._verify(found, owner, now))
            except ApprovalError:
                raise _no_request(found.id) from None
            if not answer.approve:
                continue
            label, name = found.server_label, found.name
            if name not in offered.get(label, ()):
                message = f"The approved tool '{clip_text(name)}' of '{clip_text(label)}' is not in 'tools'."
                raise ApiError(400, "invalid_value", message, "tools")
            call = Call(name, "mcp", None, label, server_label=label, approval_request_id=found.id)
            approved.append(ApprovedCall(call, found.arguments))
        return ReadAnswers(tuple(answers), tuple(approved))

    def _verify(self, request: InputApprovalRequest, owner: str, now: float) -> ApprovalAnswer:
        """Returns the answer to a request. Raises `ApprovalError` for one that this server did not make."""
        asked = request.server_label, request.name, request.arguments
        return ApprovalAnswer(request.id, self._signer.verify(owner, request.id, *asked, now=now))


class AnswerClaim:
    """Claims the answers of one request in the store, so that no other request can use them.

    A claim is made before the first event. It is released if the turn is refused before that, or fails or is cancelled
    later, since clients send such a request again; an approval whose call has begun to run stays claimed. A claim whose
    server is killed is never released: a call runs at most once.
    """

    def __init__(self, store: ResponseStore, owner: str) -> None:
        self._store, self.owner = store, owner
        self._nonces: list[str] = []
        self._claim: asyncio.Task[bool] | None = None

    async def claim_answers(self, answers: Sequence[ApprovalAnswer]) -> None:
        """Claims all answers or none. Raises `ApiError` 400 if one of the requests was answered before."""
        self._nonces = [answer.nonce for answer in answers]
        if not self._nonces:
            return
        # The store continues with a change whose caller is cancelled, so the result is needed then, too.
        self._claim = asyncio.create_task(self._store.use_approvals(self.owner, self._nonces))
        if not await asyncio.shield(self._claim):
            ids = "', '".join(clip_text(answer.request_id) for answer in answers)
            raise ApiError(400, None, ANSWERED_BEFORE.format(id=ids), "input")

    async def release_answers(self, *, has_begun: bool) -> None:
        """Makes the answers good again that are claimed, unless a turn has begun with them."""
        claim, self._claim = self._claim, None
        if claim is None or has_begun:
            return
        try:
            if await claim:
                await self._store.release_approvals(self.owner, self._nonces).wait_done()
        except ApiError as error:  # the caller has an error of its own to report
            _log.warning(STAY_USED, error=str(error))

    def release_failed(self, log: EventLog, answers: Sequence[ApprovalAnswer], tools: HostedTurn | None) -> None:
        """Makes the answers of a turn good again that has failed or was cancelled, except for calls that have begun.

        Call it before the last event is written: the store commits both in this order, so that a client which has read
        that the turn failed can answer again. A turn that continues elsewhere has no last event here.
        """
        if log.stats is None or log.stats.status not in ("failed", "cancelled") or log.is_lost:
            return
        run = frozenset[str]() if tools is None else tools.run_approvals
        if unused := [answer.nonce for answer in answers if answer.request_id not in run]:
            self._store.release_approvals(self.owner, unused).done.add_done_callback(_report_unreleased)


def _report_unreleased(released: "asyncio.Future[Any]") -> None:
    if not released.cancelled() and (error := released.exception()) is not None:
        _log.warning(STAY_USED, error=str(error))


def _find_requests(spec: TurnSpec) -> dict[str, InputApprovalRequest]:
    return {item.id: item for item in spec.prompt_input.items if isinstance(item, InputApprovalRequest)}


def _list_due_answers(spec: TurnSpec) -> list[InputApprovalResponse]:
    """Returns the answers in the input that the model has not read, and those to a request that is nowhere.

    Clients send whole conversations again, in which earlier answers are settled: their calls have run, or the model
    continued without them. Those of other servers' requests are, too.
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
