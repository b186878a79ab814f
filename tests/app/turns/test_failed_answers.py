"""Answers to requests for approval whose response fails: they can be sent again, unless a call has begun to run."""

import json
from dataclasses import replace
from typing import Any

import pytest

from antiphon.app.errors import ApiError
from antiphon.app.projections import responses as responses_projection
from antiphon.app.turn_types.event_log import EventLog
from antiphon.events.inputs import AnyInput
from tests.snapshots.cases import FAULT
from tests.snapshots.tool_cases import ASKED, FOUND, HARBOUR, STALL, answer_request, cancel, continue_response
from tests.snapshots.tool_runs import QUESTION, Reply, ToolCase, ToolRun, open_run

DENIED = ("did not approve",)
RETRIED: dict[str, Any] = {"role": "user", "content": "Once more."}
AGAIN = Reply(["As you like."], when=(*DENIED, "Once more."))


async def read_response(log: EventLog) -> dict[str, Any]:
    await log.wait_published()
    await log.wait_finished()
    response: dict[str, Any] = json.loads(await responses_projection.final_response(log))
    return response


def make_case(*rounds: Reply) -> ToolCase:
    return ToolCase("failed_answer", list(rounds), answers=FOUND, request=ASKED.request, earlier=ASKED)


async def ask(run: ToolRun) -> dict[str, Any]:
    return await read_response(await run.start_turn(**ASKED.request))


def answer(asked: dict[str, Any], *items: dict[str, Any], approve: bool, **fields: Any) -> dict[str, Any]:
    answered = continue_response(asked, answer_request(asked, approve=approve), *items)
    return {**ASKED.request, **answered, **fields}


async def assert_spent(run: ToolRun, body: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="was answered before") as caught:
        await run.start_turn(**body)
    assert (caught.value.status, caught.value.param) == (400, "input")


@pytest.mark.parametrize("store", [True, False])
async def test_denial_of_a_response_that_failed_can_be_sent_again(*, store: bool) -> None:
    async with open_run(make_case(Reply(["As", FAULT], when=DENIED), AGAIN)) as run:
        asked = await ask(run)
        failed = await read_response(await run.start_turn(**answer(asked, approve=False, store=store)))
        assert failed["status"] == "failed"
        again = answer(asked, RETRIED, approve=False, store=store)
        assert (await read_response(await run.start_turn(**again)))["status"] == "completed"
        await assert_spent(run, again)


async def test_denial_of_a_response_that_was_cancelled_can_be_sent_again() -> None:
    async with open_run(make_case(Reply(["As", STALL], when=DENIED), AGAIN)) as run:
        asked = await ask(run)
        log = await run.start_turn(**answer(asked, approve=False))
        await run.wait_for("output_text.delta")
        cancel(run)
        assert (await read_response(log))["status"] == "cancelled"
        again = answer(asked, RETRIED, approve=False)
        assert (await read_response(await run.start_turn(**again)))["status"] == "completed"


async def test_approval_whose_call_ran_is_spent_though_the_response_failed() -> None:
    async with open_run(make_case(Reply(["It", FAULT], when=(HARBOUR,)))) as run:
        asked = await ask(run)
        failed = await read_response(await run.start_turn(**answer(asked, approve=True)))
        assert failed["status"] == "failed" and len(run.servers.calls) == 1
        await assert_spent(run, answer(asked, RETRIED, approve=True))
        assert len(run.servers.calls) == 1


async def test_approval_whose_call_was_cancelled_while_it_ran_is_spent() -> None:
    async with open_run(replace(make_case(), waits=True)) as run:
        asked = await ask(run)
        log = await run.start_turn(**answer(asked, approve=True))
        await run.wait_called()
        cancel(run)
        assert (await read_response(log))["status"] == "cancelled"
        await assert_spent(run, answer(asked, RETRIED, approve=True))


async def test_approval_whose_call_could_not_be_stored_can_be_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call is not run before the store has it."""
    async with open_run(make_case(Reply(["It is there."], when=(HARBOUR,)))) as run:
        asked = await ask(run)

        def lose_log(log: EventLog, _: tuple[AnyInput, ...] | None = None) -> None:
            log.mark_given_up()

        with monkeypatch.context() as context:
            context.setattr(run.store, "add_log", lose_log)
            failed = await read_response(await run.start_turn(**answer(asked, approve=True)))
        assert failed["status"] == "failed" and not run.servers.calls
        done = await read_response(await run.start_turn(**answer(asked, approve=True)))
        assert done["status"] == "completed" and len(run.servers.calls) == 1


async def test_answers_of_which_one_has_run_are_good_again_each_for_itself() -> None:
    """A request with an approval and a denial: only the approved call has run."""
    case = make_case(Reply(["It", FAULT], when=(HARBOUR,)), AGAIN)
    async with open_run(case) as run:
        first, second = await ask(run), await ask(run)
        requests = [item for asked in (first, second) for item in asked["output"] if item["type"] != "reasoning"]
        yes, no = answer_request(first, approve=True), answer_request(second, approve=False)
        question = {"role": "user", "content": QUESTION}
        both = {**ASKED.request, "input": [question, *requests, yes, no]}
        assert (await read_response(await run.start_turn(**both)))["status"] == "failed"
        await assert_spent(run, both)
        await assert_spent(run, answer(first, RETRIED, approve=True))
        assert (await read_response(await run.start_turn(**answer(second, RETRIED, approve=False))))["status"] == (
            "completed"
        )
