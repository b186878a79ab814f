"""Earlier items from the store: chains of responses, conversations, compactions, and content sealed for one owner."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from antiphon.app.errors import ApiError
from antiphon.app.store.base import StoredConversation
from antiphon.app.store.sqlite.store import MemoryStore
from antiphon.app.turn_types.encryption import SEAL_KEY_BYTES, Sealer
from antiphon.app.turn_types.event_log import EventLog
from antiphon.app.turns import stored_history
from antiphon.app.turns.stored_history import StoredHistory, after_compaction, with_ids
from antiphon.events.hosted_inputs import (
    InputApprovalRequest,
    InputApprovalResponse,
    InputCodeCall,
    InputFileSearchCall,
    InputMcpCall,
    InputMcpList,
    InputWebSearchCall,
)
from antiphon.events.inputs import (
    AdditionalToolsInput,
    AnyInput,
    CompactionInput,
    HostedInput,
    InputCustomCall,
    InputFunctionCall,
    InputMessage,
    InputReasoning,
)
from antiphon.events.items import ReasoningText
from antiphon.events.response import ConversationRef, Response
from antiphon.state.machine import Machine
from antiphon.state.segments import Arguments, Call, Say, Think
from tests.app.requests.request_builders import summarize_error
from tests.state.machine_helpers import USAGE, MachineStep

SEALER = Sealer(b"k" * SEAL_KEY_BYTES)


def user(text: str, **more: Any) -> InputMessage:
    return InputMessage(role="user", content=text, **more)


def assistant(text: str) -> InputMessage:
    return InputMessage(role="assistant", content=text)


def system(text: str) -> InputMessage:
    return InputMessage(role="system", content=text)


def summary(text: str) -> CompactionInput:
    return CompactionInput(encrypted_content=text)


TOOLS = AdditionalToolsInput(tools=({"type": "custom", "name": "note"},))
CALL = InputFunctionCall(call_id="c1", name="f", arguments="{}")


async def add_response(
    store: MemoryStore,
    name: str,
    items: Sequence[AnyInput] = (),
    *,
    output: Sequence[Any] = (Say("yes"),),
    owner: str = "me",
    end: MachineStep | None = Machine.stop,
    **fields: Any,
) -> EventLog:
    """Stores a response that has ended, unless `end` is None. The ids of its output items contain its name."""
    response = Response(id=f"resp_{name}", created_at=1, model="m", metadata={}, **fields)
    numbers = itertools.count()
    machine = Machine(
        response, new_id=lambda prefix: f"{prefix}_{name}{next(numbers)}", clock=lambda: 2, usage=lambda: USAGE,
    )  # fmt: skip
    log = EventLog(response, owner, with_ids(tuple(items), response.id))
    log.append_step(machine.begin())
    store.add_log(log)
    for segment in output:
        log.append_step(machine.feed(segment))
    if end is not None:
        log.append_step(end(machine))
        log.end_log()
        await log.wait_published()
    return log


def history_of(store: MemoryStore, owner: str = "me") -> StoredHistory:
    return StoredHistory(store, owner, SEALER)


def texts_of(items: Sequence[AnyInput]) -> list[str]:
    """Returns the text of each message and summary, and the type of each other item."""
    texts = []
    for item in items:
        if isinstance(item, InputMessage):
            texts.append(item.content if isinstance(item.content, str) else "".join(part.text for part in item.content))  # type: ignore[union-attr]
        else:
            texts.append(getattr(item, "encrypted_content", None) or str(item.__struct_config__.tag))
    return texts


async def test_chain_has_the_items_of_all_turns_in_order(memory_store: MemoryStore) -> None:
    await add_response(memory_store, "a", [user("1")], output=[Think("hm"), Say("one")], instructions="never inherited")
    await add_response(memory_store, "b", [user("2"), user("3")], output=[Say("two")], previous_response_id="resp_a")
    assert texts_of(history_of(memory_store).response_chain("resp_b")) == ["1", "reasoning", "one", "2", "3", "two"]
    assert texts_of(history_of(memory_store).items_before_input("resp_a", None)) == [
        "1",
        "reasoning",
        "one",
    ]


async def test_response_that_is_not_ended_or_not_published_is_not_continued(memory_store: MemoryStore) -> None:
    await add_response(memory_store, "b", [user("1")], end=None)
    check_in_progress(memory_store, "resp_b")
    log = await add_response(memory_store, "a", [user("1")])
    log.withhold(len(log.entries) - 1)
    check_in_progress(memory_store, "resp_a")
    log.publish(len(log.entries))
    assert texts_of(history_of(memory_store).response_chain("resp_a")) == ["1", "yes"]


def check_in_progress(store: MemoryStore, response_id: str) -> None:
    with pytest.raises(ApiError, match=f"'{response_id}' is still in progress") as caught:
        history_of(store).response_chain(response_id)
    assert summarize_error(caught.value) == (400, "previous_response_in_progress", "previous_response_id")


async def test_unpublished_response_in_the_middle_of_a_chain_is_not_continued(memory_store: MemoryStore) -> None:
    (await add_response(memory_store, "a", [user("1")])).withhold(2)
    await add_response(memory_store, "b", [user("2")], previous_response_id="resp_a")
    check_not_continued(memory_store, "resp_b", "previous_response_in_progress")


@pytest.mark.parametrize(("response_id", "owner"), [("resp_x", "me"), ("resp_a", "you")])
async def test_response_of_nobody_or_of_another_owner_is_not_found(
    memory_store: MemoryStore, response_id: str, owner: str
) -> None:
    await add_response(memory_store, "a", [user("1")])
    check_not_continued(memory_store, response_id, "previous_response_not_found", owner)


def check_not_continued(store: MemoryStore, response_id: str, code: str, owner: str = "me") -> None:
    with pytest.raises(ApiError) as caught:
        history_of(store, owner).response_chain(response_id)
    assert summarize_error(caught.value) == (400, code, "previous_response_id")


async def test_chain_of_exactly_the_maximum_is_continued(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_response(memory_store, "a", [user("1")])
    await add_response(memory_store, "b", [user("2"), user("3")], previous_response_id="resp_a")
    monkeypatch.setattr(stored_history, "MAX_CHAIN_ITEMS", 5)
    assert len(history_of(memory_store).response_chain("resp_b")) == 5
    monkeypatch.setattr(stored_history, "MAX_CHAIN_ITEMS", 4)
    with pytest.raises(ApiError) as caught:
        history_of(memory_store).response_chain("resp_b")
    assert summarize_error(caught.value) == (400, "context_length_exceeded", "input")


async def test_incomplete_call_is_left_out_of_the_chain(memory_store: MemoryStore) -> None:
    await add_response(
        memory_store, "a", [user("1")], output=[Say("I run it."), Call("f"), Arguments('{"x')], end=Machine.cut
    )
    assert texts_of(history_of(memory_store).response_chain("resp_a")) == ["1", "I run it."]


async def add_conversation(store: MemoryStore, items: Sequence[AnyInput] = (), owner: str = "me") -> None:
    await store.create_conversation(owner, StoredConversation(id="conv_1", created_at=1, metadata={}))
    await store.add_items(owner, "conv_1", with_ids(tuple(items), "conv_1"))


async def test_items_of_a_conversation_precede_the_input(memory_store: MemoryStore) -> None:
    await add_conversation(memory_store, [user("1"), assistant("one"), summary("s"), user("2")])
    assert texts_of(history_of(memory_store).items_before_input(None, "conv_1")) == ["1", "s", "2"]
    with pytest.raises(ApiError) as caught:
        history_of(memory_store, "you").items_before_input(None, "conv_1")
    assert summarize_error(caught.value) == (404, None, "conversation")


async def test_chain_through_a_conversation_begins_with_what_preceded_the_response_there(
    memory_store: MemoryStore,
) -> None:
    await add_conversation(memory_store, [user("1", id="msg_1"), user("2", id="msg_2")])
    await add_response(memory_store, "a", [user("3")], conversation=ConversationRef(id="conv_1"))
    await memory_store.add_items("me", "conv_1", [user("4", id="msg_4")])
    await add_response(memory_store, "b", [user("5")], previous_response_id="resp_a")
    assert texts_of(history_of(memory_store).response_chain("resp_b")) == ["1", "2", "3", "yes", "5", "yes"]


async def test_response_whose_items_were_deleted_from_its_conversation_has_none_before_it(
    memory_store: MemoryStore,
) -> None:
    await add_conversation(memory_store, [user("1", id="msg_1")])
    log = await add_response(memory_store, "a", [user("3")], conversation=ConversationRef(id="conv_1"))
    for item in memory_store.history.load_conversation("me", "conv_1")[1:]:
        assert await memory_store.delete_item("me", "conv_1", item.id or "")
    assert log.conversation_id and texts_of(history_of(memory_store).response_chain("resp_a")) == ["3", "yes"]


async def test_nothing_precedes_the_input_of_a_first_turn(memory_store: MemoryStore) -> None:
    assert history_of(memory_store).items_before_input(None, None) == ()


COMPACTIONS: list[tuple[list[AnyInput], list[str]]] = [
    ([], []),
    ([user("1"), assistant("a"), user("2")], ["1", "a", "2"]),
    ([user("1"), assistant("a"), summary("s"), user("2")], ["1", "s", "2"]),
    ([summary("s"), assistant("a"), user("1")], ["s", "a", "1"]),
    # The last of two compactions decides, and removes the first
    ([user("1"), summary("s"), assistant("a"), summary("t"), user("2"), assistant("b")], ["1", "t", "2", "b"]),
    # Of what precedes it, messages of the client and tools stay
    ([system("x"), TOOLS, CALL, assistant("a"), summary("s")], ["x", "additional_tools", "s"]),
    ([CALL, summary("s"), CALL, TOOLS], ["s", "function_call", "additional_tools"]),
    # One that was cut before it had content replaces nothing
    ([user("1"), assistant("a"), summary("")], ["1", "a", "compaction"]),
    ([user("1"), summary("s"), assistant("a"), summary(""), user("2")], ["1", "s", "a", "compaction", "2"]),
]


@pytest.mark.parametrize(("items", "texts"), COMPACTIONS)
def test_items_before_the_last_compaction_are_removed(items: list[AnyInput], texts: list[str]) -> None:
    assert texts_of(after_compaction(tuple(items))) == texts


def sealed(purpose: Any, text: str = "secret", owner: str = "me") -> str:
    return SEALER.seal(owner, purpose, text, "")


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (InputReasoning(encrypted_content=sealed("reasoning")), "secret"),
        (InputReasoning(encrypted_content=sealed("reasoning", "")), ""),
        (CompactionInput(encrypted_content=sealed("compaction")), "secret"),
        (InputReasoning(encrypted_content=sealed("compaction")), None),
        (CompactionInput(encrypted_content=sealed("reasoning")), None),
        (InputReasoning(encrypted_content=sealed("reasoning", owner="you")), None),
        (InputReasoning(encrypted_content="forged"), None),
        (InputReasoning(content=(ReasoningText(text="open"),)), None),
    ],
)
async def test_only_content_sealed_for_this_owner_and_purpose_is_decrypted(
    memory_store: MemoryStore, item: InputReasoning | CompactionInput, text: str | None
) -> None:
    assert history_of(memory_store).decrypt(item) == text


async def test_item_is_found_by_its_owner_only(memory_store: MemoryStore) -> None:
    log = await add_response(memory_store, "a", [user("1", id="msg_sent")])
    assert history_of(memory_store).find_item("msg_sent") == log.input_items[0]
    assert history_of(memory_store, "you").find_item("msg_sent") is None


def test_items_get_ids_of_their_kind_unless_the_client_has_sent_one() -> None:
    items = (
        user("1"),
        user("2", id="msg_own"),
        CALL,
        InputCustomCall(call_id="c2", name="g", input="x"),
        InputReasoning(),
        HostedInput(kind="computer_call", payload={}),
        TOOLS,
        InputMcpCall(server_label="s", name="f", arguments="{}"),
        InputMcpList(server_label="s"),
        InputApprovalRequest(id="mcpr_own", server_label="s", name="f", arguments="{}"),
        InputApprovalResponse(approval_request_id="mcpr_own", approve=True),
        InputWebSearchCall(),
        InputCodeCall(),
        InputFileSearchCall(),
    )
    assert [item.id for item in with_ids(items, "resp_ab")] == [
        "msg_ab0000",
        "msg_own",
        "fc_ab0002",
        "ctc_ab0003",
        "rs_ab0004",
        "item_ab0005",
        "item_ab0006",
        "mcp_ab0007",
        "mcpl_ab0008",
        "mcpr_own",
        "mcprs_ab000a",
        "ws_ab000b",
        "ci_ab000c",
        "fs_ab000d",
    ]
