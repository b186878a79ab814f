"""The items that a compaction keeps as they are: the newest, whole if they fit, and calls with their outputs."""

import random

import msgspec
import pytest

from antiphon.app.requests.responses.compaction import (
    CompactedConversation,
    encode_compacted,
    expand_compacted,
    is_summary,
    summary_message,
)
from antiphon.app.requests.responses.input_items import read_item
from antiphon.app.turns.prompts.kept_items import KeptItems, cut_middle
from antiphon.events.hosted_inputs import InputApprovalRequest, InputApprovalResponse, InputMcpCall, InputMcpList
from antiphon.events.inputs import (
    AdditionalToolsInput,
    AnyInput,
    InputCall,
    InputFunctionCall,
    InputFunctionOutput,
    InputMessage,
    InputOutput,
    InputReasoning,
)
from antiphon.events.items import ReasoningText
from antiphon.harmony.prompt.hosted_items import find_open_approvals

LONG = "word " * 200


def user(text: str) -> InputMessage:
    return InputMessage(role="user", content=text)


def assistant(text: str) -> InputMessage:
    return InputMessage(role="assistant", content=text)


def call(number: int, output: str = "ok") -> list[AnyInput]:
    call_id = f"call_{number}"
    return [
        InputReasoning(content=(ReasoningText(text=f"think {number}"),)),
        InputFunctionCall(call_id=call_id, name="read", arguments="{}"),
        InputFunctionOutput(call_id=call_id, output=output),
    ]


DEVELOPER = InputMessage(role="developer", content="Be brief. " + LONG)
TOOLS = AdditionalToolsInput(tools=({"type": "function", "name": "f"},))
SUMMARY = summary_message("They said much.")


def select(items: list[AnyInput], budget: int) -> list[AnyInput]:
    """Selects items, where a token is a character."""
    return list(KeptItems(items, budget, len).select())


def size_of(*items: AnyInput) -> int:
    return sum(len(msgspec.json.encode(item)) for item in items)


def test_everything_stays_if_it_fits_but_earlier_answers_and_calls() -> None:
    items = [DEVELOPER, user("one"), assistant("1"), *call(1), user("two"), *call(2), assistant("2")]
    assert select(items, 10_000) == [DEVELOPER, user("one"), user("two"), *call(2), assistant("2")]


def test_instructions_and_tools_stay_whatever_they_need() -> None:
    items = [TOOLS, user("one"), DEVELOPER, assistant("1"), user("two")]
    assert select(items, size_of(user("two")) * 2) == [TOOLS, user("one"), DEVELOPER, user("two")]
    assert select(items, 0) == [TOOLS, DEVELOPER]


def test_newest_calls_stay_before_earlier_ones_and_earlier_messages() -> None:
    items = [user("zero"), user("one"), *call(1), *call(2), *call(3)]
    room = size_of(user("one"), *call(3), *call(2)) + 10
    assert select(items, room) == [user("one"), *call(2), *call(3)]


def test_newest_output_is_cut_if_it_does_not_fit() -> None:
    items = [user("one"), *call(1), *call(2, LONG)]
    kept = select(items, 600)
    assert kept[:3] == [user("one"), *call(2)[:2]]
    (output,) = kept[3:]
    assert isinstance(output, InputFunctionOutput) and isinstance(output.output, str)
    assert output.output.startswith("word word") and output.output.endswith("word ")
    assert "characters were left out]" in output.output and len(output.output) < 400


def test_long_last_message_is_cut_to_half_of_the_room() -> None:
    (message,) = select([user(LONG)], 400)
    assert isinstance(message, InputMessage) and isinstance(message.content, str)
    assert 100 < len(message.content) < 300 and message.content.startswith("word")


def test_first_earlier_message_that_does_not_fit_is_cut_and_those_before_it_are_left_out() -> None:
    kept = select([user("zero"), user(LONG), user("two"), user("three")], 500)
    assert len(kept) == 3 and kept[1:] == [user("two"), user("three")]
    assert isinstance(kept[0], InputMessage) and "characters were left out]" in str(kept[0].content)


def test_summary_of_an_earlier_compaction_is_not_kept() -> None:
    assert select([SUMMARY, user("one"), assistant("1"), user("two")], 1000) == [user("one"), user("two")]
    assert select([SUMMARY, *call(1)], 1000) == call(1)


def test_calls_keep_their_outputs_and_order_for_any_budget() -> None:
    dice = random.Random(5)
    makers = (lambda n: [user(f"u{n} " + "x" * dice.randrange(300))], lambda n: [assistant(f"a{n}")],
              lambda n: call(n, "y" * dice.randrange(600)), lambda _: [DEVELOPER])  # fmt: skip
    for _ in range(300):
        drawn = [item for number in range(dice.randrange(1, 12)) for item in dice.choice(makers)(number)]
        items = [msgspec.structs.replace(item, id=str(number)) for number, item in enumerate(drawn)]
        for budget in (0, 50, 200, 500, 1000, 5000):
            kept = select(items, budget)
            open_calls = [item.call_id for item in kept if isinstance(item, InputCall)]
            assert open_calls == [item.call_id for item in kept if isinstance(item, InputOutput)]
            numbers = [int(item.id or -1) for item in kept]
            assert numbers == sorted(set(numbers))


REQUEST = InputApprovalRequest(id="mcpr_1", server_label="s", name="f", arguments='{"a": 1}')
YES, NO = (InputApprovalResponse(approval_request_id="mcpr_1", approve=approve) for approve in (True, False))
RUN = InputMcpCall(id="mcp_1", server_label="s", name="f", arguments="{}", output="x", approval_request_id="mcpr_1")
MCP_LIST = InputMcpList(server_label="s", tools=({"name": LONG},))


@pytest.mark.parametrize("answers", [(), (YES,), (NO,), (YES, user("")), (user(""), NO)])
def test_open_approval_stays_whatever_it_needs(answers: tuple[AnyInput, ...]) -> None:
    items = [user(LONG), MCP_LIST, REQUEST, *answers]
    kept = select(items, 0)
    assert [item for item in kept if item != user("")] == [item for item in items[2:] if item != user("")]
    content = encode_compacted(CompactedConversation(summary="S", items=tuple(kept)))
    assert list(find_open_approvals(expand_compacted(content, ()))) == ["mcpr_1"]


def test_settled_approval_is_kept_with_its_call_or_not_at_all() -> None:
    for items in ([REQUEST, YES, RUN], [REQUEST, NO, assistant("1")]):
        assert select([user("one"), *items], 10_000) == [user("one"), *items]
        assert select([user("one"), *items, assistant("2")], size_of(user("one"), assistant("2")) + 10) == [
            user("one"), assistant("2"),
        ]  # fmt: skip


def test_list_of_tools_takes_no_room() -> None:
    assert select([user("one"), RUN, MCP_LIST], size_of(user("one")) * 2 + size_of(RUN)) == [user("one"), RUN]


def test_newest_output_of_a_hosted_call_is_cut() -> None:
    (message, kept) = select([user("one"), msgspec.structs.replace(RUN, output=LONG)], 600)
    assert message == user("one") and isinstance(kept, InputMcpCall)
    assert kept.output is not None and "characters were left out]" in kept.output and len(kept.output) < 500
    unread = msgspec.structs.replace(RUN, arguments=LONG, output=None)
    assert select([unread], 100) == [unread], "a call without an output has nothing to cut"


@pytest.mark.parametrize(("length", "cut"), [
    (201, "a" * 100 + "b" * 101),
    (4, "aa\n[197 characters were left out]\nbb"),
    (3, "aa\n[198 characters were left out]\nb"),
    (0, "\n[201 characters were left out]\n"),
])  # fmt: skip
def test_cut_middle(length: int, cut: str) -> None:
    assert cut_middle("a" * 100 + "b" * 101, length) == cut
    assert cut_middle("a" * 200, length) == "a" * 200, "the note would be longer than what it saves"


def test_content_is_read_back_as_summary_and_items() -> None:
    items = (DEVELOPER, TOOLS, user("one"), *call(1))
    content = encode_compacted(CompactedConversation(summary="They said much.", items=items))
    assert expand_compacted(content, ()) == (DEVELOPER, TOOLS, SUMMARY, user("one"), *call(1))
    assert is_summary(expand_compacted(content, ())[2])


def test_items_before_a_compaction_are_left_out_but_instructions_and_tools_replace_those_in_it() -> None:
    content = encode_compacted(CompactedConversation(summary="S", items=(DEVELOPER, user("two"))))
    newer = InputMessage(role="developer", content="Be polite.")
    assert expand_compacted(content, (user("one"), assistant("1"), newer)) == (newer, summary_message("S"), user("two"))


def test_content_of_an_earlier_version_is_a_summary() -> None:
    assert expand_compacted("They said much.", (user("one"),)) == (user("one"), SUMMARY)


def test_compaction_without_a_summary_is_the_conversation() -> None:
    content = encode_compacted(CompactedConversation(summary="", items=(user("one"), assistant("1"))))
    assert expand_compacted(content, (user("zero"),)) == (user("one"), assistant("1"))


@pytest.mark.parametrize("damage", ["", "{", '{"summary":1,"items":[]}', '{"summary":"a","items":[{"type":"x"}]}'])
def test_damaged_content_is_an_error(damage: str) -> None:
    mark = encode_compacted(CompactedConversation(summary="", items=())).partition("{")[0]
    with pytest.raises(ValueError, match="not a compacted conversation"):
        expand_compacted(mark + damage, ())


KINDS: list[dict[str, object]] = [
    {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"], "timeout_ms": 5}},
    {
        "type": "shell_call_output",
        "call_id": "c",
        "output": [{"stdout": "a", "outcome": {"type": "exit", "exit_code": 1}}],
    },
    {"type": "apply_patch_call", "call_id": "c", "operation": {"type": "delete_file", "path": "a"}},
    {"type": "apply_patch_call_output", "call_id": "c", "status": "failed", "output": "no"},
    {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"},
    {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
    {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_image", "image_url": "data:,"}, {"type": "input_text", "text": "a"}],
    },
]


@pytest.mark.parametrize("sent", KINDS, ids=lambda sent: str(sent["type"]))
def test_every_kind_of_item_survives_the_content(sent: dict[str, object]) -> None:
    item = read_item(sent, "input[0]")
    content = encode_compacted(CompactedConversation(summary="S", items=(item,)))
    assert expand_compacted(content, ()) == (summary_message("S"), item)
