"""Answers to approval requests in the input of a turn: what runs, what has run, what is refused."""

import asyncio
import threading
from typing import Any

import pytest

from antiphon.app.errors import ApiError
from antiphon.app.requests.turn_spec import ApprovalAnswer
from antiphon.app.store.database import Database
from antiphon.app.store.sqlite.store import MemoryStore
from antiphon.app.tools.approvals import ApprovalSigner
from antiphon.app.tools.approved_calls import AnswerClaim, ApprovalReader
from antiphon.app.tools.call_rules import ApprovedCall
from tests.app.requests.request_builders import read_responses_spec
from tests.progress import HANG_TIMEOUT_S

OWNER, NOW, LATER = "ann", 2_000_000_000.0, 2_000_000_000.0 + 40 * 86_400
READER = ApprovalReader(ApprovalSigner(b"k" * 32))
CALL = {"server_label": "tools", "name": "add", "arguments": '{"a":1}'}
REQUEST = {"type": "mcp_approval_request", "id": READER.sign(OWNER, NOW, *CALL.values(), "0" * 32), **CALL}
YES: dict[str, Any] = {"type": "mcp_approval_response", "approval_request_id": REQUEST["id"], "approve": True}
NO = {**YES, "approve": False}
RAN = {"type": "mcp_call", "id": "mcp_1", "approval_request_id": REQUEST["id"], "output": "2", **CALL}
HI = {"role": "user", "content": "Hi"}


def read_approved(*items: dict[str, Any], owner: str = OWNER, now: float = NOW) -> tuple[ApprovedCall, ...]:
    spec = read_responses_spec(input=[HI, *items])
    return READER.read(spec, {"tools": frozenset({"add"})}, owner, now).approved


def read_denials(*items: dict[str, Any], owner: str = OWNER, now: float = NOW) -> tuple[str, ...]:
    denials = READER.read_denials(read_responses_spec(input=[HI, *items]), owner, now)
    return tuple(denial.request_id for denial in denials)


def test_approved_call_is_what_was_asked() -> None:
    (approved,) = read_approved(REQUEST, YES)
    assert (approved.call.server_label, approved.call.name, approved.arguments) == tuple(CALL.values())
    assert approved.call.approval_request_id == REQUEST["id"]


@pytest.mark.parametrize("fields", [{}, {"output": None, "status": "incomplete"}], ids=["whole", "incomplete"])
def test_call_that_has_run_stays_in_a_conversation_that_is_sent_again(fields: dict[str, Any]) -> None:
    """Agents send the whole conversation in each turn, and the answer with it. It is not an approval of another call."""
    history = (REQUEST, YES, RAN | fields, HI)
    assert read_approved(*history) == ()
    assert read_approved(*history, now=LATER) == (), "the secret or the time of the request no longer matter"
    assert read_denials(*history) == ()


def test_refused_call_stays_in_a_conversation_that_is_sent_again() -> None:
    history = (REQUEST, NO, {"role": "assistant", "content": "As you like."}, HI)
    assert read_approved(*history) == read_approved(*history, now=LATER) == ()
    assert read_denials(*history) == ()


@pytest.mark.parametrize(
    ("items", "options"),
    [
        ((YES,), {}),
        ((NO,), {}),
        (({**REQUEST, "arguments": '{"a":2}'}, YES), {}),
        ((REQUEST, YES), {"owner": "bob"}),
        ((REQUEST, YES), {"now": LATER}),
    ],
    ids=["no request", "no request to refuse", "changed", "another owner", "too late"],
)
def test_answer_without_a_request_of_ours_is_refused(items: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="No approval request found with id") as caught:
        read_approved(*items, **options)
    assert (caught.value.status, caught.value.param) == (400, "input")


def test_approval_without_the_tool_is_refused() -> None:
    spec = read_responses_spec(input=[HI, REQUEST, YES])
    with pytest.raises(ApiError, match=r"The approved tool 'add' of 'tools' is not in 'tools'\."):
        READER.read(spec, {"tools": frozenset({"sub"})}, OWNER, NOW)
    with pytest.raises(ApiError, match="No approval request found with id"):
        READER.read_denials(spec, OWNER, NOW)


def test_answer_after_which_the_model_continued_is_history() -> None:
    for call_id in (None, "mcpr_1"):
        assert read_approved(REQUEST, YES, {**RAN, "approval_request_id": call_id}, now=LATER) == ()


def test_denial_is_an_answer_with_tools_and_without() -> None:
    spec = read_responses_spec(input=[HI, REQUEST, NO])
    (answer,) = READER.read(spec, {}, OWNER, NOW).answers
    assert answer.request_id == REQUEST["id"] and answer.nonce in answer.request_id
    assert READER.read_denials(spec, OWNER, NOW) == (answer,)


def test_denial_of_what_was_not_asked_is_no_answer_without_tools() -> None:
    """It has no effect. With tools, it is refused as any answer is."""
    assert read_denials(NO) == read_denials(REQUEST, NO, owner="bob") == read_denials(REQUEST, NO, now=LATER) == ()


@pytest.mark.parametrize("used_before", [False, True])
async def test_answer_of_a_client_that_leaves_while_it_is_claimed(*, used_before: bool) -> None:
    """The store continues with a change whose caller is cancelled. The answer is good again, unless it was used."""
    store, answer = MemoryStore(), ApprovalAnswer("mcpr_1", "n" * 32)
    if used_before:
        assert await store.use_approvals(OWNER, [answer.nonce])
    writing, may_go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def keep_busy(_: Database) -> None:
        loop.call_soon_threadsafe(writing.set)
        may_go_on.wait(HANG_TIMEOUT_S)

    busy = asyncio.create_task(store.change(keep_busy))
    await writing.wait()
    claim = AnswerClaim(store, OWNER)
    claiming = asyncio.create_task(claim.claim_answers([answer]))
    await asyncio.sleep(0)
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    may_go_on.set()
    await claim.release_answers(has_begun=False)
    await busy
    assert await store.use_approvals(OWNER, [answer.nonce]) is not used_before
    await store.close()
