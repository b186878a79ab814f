"""The events of an Anthropic message, one by one, for the events of the state machine."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from antiphon.app.projections.messages.accumulator import MessageAccumulator
from antiphon.app.projections.messages.fold import MessagesFold, message_usage
from antiphon.app.turn_types.step_detail import TokenDetail
from antiphon.events import stream as ev
from antiphon.events.base import Event
from antiphon.events.items import FileCitation, FilePath, UrlCitation
from antiphon.events.response import IncompleteDetails, InputTokensDetails, Usage
from antiphon.state.drafts import ReasoningOutput
from antiphon.state.segments import Arguments, Call, Cite, Close, Refuse, Say, Segment, Think
from tests.state.machine_helpers import END_STEPS, create_machine

URL = UrlCitation(url="http://a.example", title="A", start_index=0, end_index=0)


def run_machine(
    *segments: Segment, end: str = "stop", reasoning: ReasoningOutput = "content", seals: bool = False
) -> list[Event]:
    """Returns all events of a turn. `seals`: reasoning that is done has an encrypted text."""
    machine = create_machine(reasoning, (lambda text: f"<{text}>") if seals else None)
    steps = [machine.begin(), *map(machine.feed, segments), END_STEPS[end](machine)]
    return [event for step in steps for event in step]


def fold_events(events: Sequence[Event], detail: TokenDetail | None = None, **options: Any) -> list[dict[str, Any]]:
    """Returns the events of the message as JSON. `detail` belongs to the last event of the response."""
    fold, result = MessagesFold(**options), []
    for event in events:
        result += fold.feed_event(event, detail if event is events[-1] else None)
    return [json.loads(msgspec.json.encode(each)) for each in result]


def show_blocks(events: Sequence[dict[str, Any]]) -> list[str]:
    """Returns each event of a block in a word: its start by type and index, its deltas by value, its end by index."""
    words = []
    for event in events:
        match event["type"]:
            case "content_block_start":
                words.append(f"{event['content_block']['type']}{event['index']}")
            case "content_block_delta":
                (value,) = [value for key, value in event["delta"].items() if key != "type"]
                words.append(value if isinstance(value, str) else value["cited_text"])
            case "content_block_stop":
                words.append(f"/{event['index']}")
    return words


def stop_of(events: Sequence[dict[str, Any]]) -> tuple[str | None, str | None]:
    (update,) = [event for event in events if event["type"] == "message_delta"]
    return update["delta"]["stop_reason"], update["delta"]["stop_sequence"]


THOUGHT = (Think("Hm"), Think("."))
FUNCTION, CUSTOM = (Call("f"), Arguments('{"a":'), Arguments("1}")), (Call("g", kind="custom"), Arguments('say "x"\n'))
CUSTOM_WORDS = ["tool_use0", '{"input": "', 'say \\"x\\"\\n']

BLOCKS: list[tuple[Sequence[Segment], dict[str, Any], list[str]]] = [
    ((Say("a"), Say("b")), {}, ["text0", "a", "b", "/0"]),
    ((Say("a"), Refuse("b")), {}, ["text0", "a", "/0", "text1", "b", "/1"]),
    ((Refuse("a"), Say("b")), {}, ["text0", "a", "/0", "text1", "b", "/1"]),
    ((*THOUGHT, Say("a")), {}, ["thinking0", "Hm", ".", "/0", "text1", "a", "/1"]),
    ((Say("a"), *THOUGHT), {}, ["text0", "a", "/0", "thinking1", "Hm", ".", "/1"]),
    ((Think("a"), Close(), Think("b")), {}, ["thinking0", "a", "/0", "thinking1", "b", "/1"]),
    ((*FUNCTION, Close()), {}, ["tool_use0", '{"a":', "1}", "/0"]),
    ((*CUSTOM, Close()), {}, [*CUSTOM_WORDS, '"}', "/0"]),
    ((*FUNCTION, Close(), Say("a")), {}, ["tool_use0", '{"a":', "1}", "/0", "text1", "a", "/1"]),
    # Reasoning that is sealed ends with its signature; that which is summarized as well is shown once.
    (THOUGHT, {"seals": True}, ["thinking0", "Hm", ".", "<Hm.>", "/0"]),
    (THOUGHT, {"reasoning": "summary"}, ["thinking0", "Hm", ".", "/0"]),
    ((*THOUGHT, Say("a"), Think("b")), {"reasoning": "both", "seals": True},
     ["thinking0", "Hm", ".", "<Hm.>", "/0", "text1", "a", "/1", "thinking2", "b", "<b>", "/2"]),
    # A cancellation ends text and reasoning. A call that was cut off stays open: no client may run it.
    ((Say("a"),), {"end": "cancel"}, ["text0", "a", "/0"]),
    (THOUGHT, {"end": "cancel", "seals": True}, ["thinking0", "Hm", ".", "/0"]),
    (FUNCTION, {"end": "cancel"}, ["tool_use0", '{"a":', "1}"]),
    (CUSTOM, {"end": "cut"}, CUSTOM_WORDS),
    ((Say("a"), Close()), {"end": "cancel"}, ["text0", "a", "/0"]),
    (THOUGHT, {"end": "cut", "seals": True}, ["thinking0", "Hm", ".", "<Hm.>", "/0"]),
]  # fmt: skip


@pytest.mark.parametrize(("segments", "options", "words"), BLOCKS)
def test_blocks_of_a_message(segments: Sequence[Segment], options: dict[str, Any], words: list[str]) -> None:
    assert show_blocks(fold_events(run_machine(*segments, **options))) == words


@pytest.mark.parametrize(
    ("segments", "options", "words"),
    [
        ((*THOUGHT, Say("a")), {"seals": True}, ["thinking0", "<Hm.>", "/0", "text1", "a", "/1"]),
        ((*THOUGHT, Say("a")), {}, ["text0", "a", "/0"]),
        ((Think("a"), Close(), Think("b")), {"seals": True}, ["thinking0", "<a>", "/0", "thinking1", "<b>", "/1"]),
        ((*THOUGHT, Say("a")), {"reasoning": "both", "seals": True}, ["thinking0", "<Hm.>", "/0", "text1", "a", "/1"]),
        (THOUGHT, {"end": "cancel", "seals": True}, []),
    ],
)
def test_hidden_reasoning_leaves_its_signature(
    segments: Sequence[Segment], options: dict[str, Any], words: list[str]
) -> None:
    assert show_blocks(fold_events(run_machine(*segments, **options), show_thinking=False)) == words


@pytest.mark.parametrize(
    "first", [(Say("Some text."), *FUNCTION, Close()), (Say("Some text.", phase="commentary"), Close()), ()]
)
def test_citation_is_cut_from_the_text_of_its_own_block(first: Sequence[Segment]) -> None:
    rest = (Say("It is"), Say(" wet"), Cite(URL, 3), Say(" now"), Cite(URL, 4))
    words = show_blocks(fold_events(run_machine(*first, *rest)))
    assert words[-6:-1] == ["It is", " wet", "wet", " now", " now"]


@pytest.mark.parametrize(
    ("annotation", "citation"),
    [
        (URL, {"type": "web_search_result_location", "url": "http://a.example", "title": "A", "cited_text": "wet"}),
        (msgspec.structs.replace(URL, title=""), {"type": "web_search_result_location", "title": None}),
        (FileCitation(file_id="f1", filename="b", index=0), {"type": "search_result_location", "source": "f1", "title": "b"}),
        (FileCitation(file_id="f1", filename="", index=0), {"source": "f1", "title": None}),
        (FilePath(file_id="f2", index=0), {"source": "f2", "title": None, "cited_text": ""}),
    ],
)  # fmt: skip
def test_annotation_becomes_a_citation(annotation: Any, citation: dict[str, Any]) -> None:
    events = fold_events(run_machine(Say("wet"), Cite(annotation, 3)))
    (delta,) = [event["delta"] for event in events if event.get("delta", {}).get("type") == "citations_delta"]
    assert delta["citation"].items() >= citation.items()


STOP_STRING = TokenDetail(stop_string="END")
STOPS: list[tuple[Sequence[Segment], str, TokenDetail | None, tuple[str, str | None]]] = [
    ((Say("a"),), "stop", None, ("end_turn", None)),
    ((Say("a"),), "stop", TokenDetail(stop_string=""), ("stop_sequence", "")),
    ((Say("a"),), "stop", STOP_STRING, ("stop_sequence", "END")),
    ((Say("a"),), "cut", STOP_STRING, ("max_tokens", None)),
    ((Say("a"),), "cancel", None, ("max_tokens", None)),
    ((*FUNCTION, Close()), "stop", STOP_STRING, ("tool_use", None)),
    ((*CUSTOM, Close()), "stop", None, ("tool_use", None)),
    ((*FUNCTION, Close()), "cut", None, ("max_tokens", None)),
    ((Refuse("a"),), "stop", STOP_STRING, ("refusal", None)),
    ((Refuse("a"), Say("b")), "stop", None, ("refusal", None)),
    ((Refuse("a"), *FUNCTION, Close()), "cut", None, ("refusal", None)),
]


@pytest.mark.parametrize(("segments", "end", "detail", "stop"), STOPS)
def test_reason_of_the_stop(
    segments: Sequence[Segment], end: str, detail: TokenDetail | None, stop: tuple[str, str | None]
) -> None:
    assert stop_of(fold_events(run_machine(*segments, end=end), detail)) == stop


@pytest.mark.parametrize(("reason", "stop"), [("content_filter", "refusal"), ("max_output_tokens", "max_tokens")])
def test_filtered_answer_is_a_refusal(reason: Any, stop: str) -> None:
    *events, last = run_machine(Say("a"), end="cut")
    assert isinstance(last, ev.Incomplete)
    response = msgspec.structs.replace(last.response, incomplete_details=IncompleteDetails(reason=reason))
    assert stop_of(fold_events([*events, msgspec.structs.replace(last, response=response)]))[0] == stop


@pytest.mark.parametrize("has_usage", [True, False])
def test_usage_splits_the_prompt_at_the_end(*, has_usage: bool) -> None:
    *events, last = run_machine(Say("a"))
    assert isinstance(last, ev.Completed)
    usage = Usage(
        input_tokens=10, output_tokens=7, total_tokens=17, input_tokens_details=InputTokensDetails(cached_tokens=4)
    )
    response = msgspec.structs.replace(last.response, usage=usage if has_usage else None)
    (update,) = [
        event
        for event in fold_events([*events, msgspec.structs.replace(last, response=response)])
        if event["type"] == "message_delta"
    ]
    counts = [update["usage"][key] for key in ("input_tokens", "cache_read_input_tokens", "output_tokens")]
    assert counts == ([6, 4, 7] if has_usage else [0, 0, 0])


@pytest.mark.parametrize("cached_tokens", [9, 10, 11, 209])
def test_input_tokens_are_never_negative(cached_tokens: int) -> None:
    """Responses that older servers have stored may count more cached tokens than their prompts have."""
    usage = message_usage(10, cached_tokens, 7)
    assert usage.input_tokens == max(10 - cached_tokens, 0)
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == 10


def test_repeated_progress_is_a_ping() -> None:
    machine = create_machine()
    events = [*machine.begin(), *machine.keepalive(), *machine.keepalive()]
    assert [event["type"] for event in fold_events(events)] == ["message_start", "ping", "ping"]
    (start,) = fold_events(create_machine().begin()[1:], TokenDetail(input_tokens=10, cached_tokens=4))
    assert start["message"]["id"] == "msg_1"
    assert (start["message"]["usage"]["input_tokens"], start["message"]["usage"]["cache_read_input_tokens"]) == (6, 4)


@pytest.mark.parametrize("segments", [(), (Say("a"),), FUNCTION])
def test_failure_ends_the_message_with_an_error(segments: Sequence[Segment]) -> None:
    events = fold_events(run_machine(*segments, end="fail"))
    assert events[-1] == {"type": "error", "error": {"type": "api_error", "message": "broken"}}
    assert not [event for event in events if event["type"] in ("message_delta", "message_stop")]


def test_failure_without_a_reason_has_a_message() -> None:
    *events, last = run_machine(end="fail")
    assert isinstance(last, ev.Failed)
    response = msgspec.structs.replace(last.response, error=None)
    error = fold_events([*events, msgspec.structs.replace(last, response=response)])[-1]["error"]
    assert error["message"] == "The response failed."


def read_message(*segments: Segment, **options: Any) -> dict[str, Any]:
    """Returns the complete message of a turn."""
    fold, accumulator = MessagesFold(), MessageAccumulator()
    assert accumulator.message is None
    for event in run_machine(*segments, **options):
        for each in fold.feed_event(event):
            accumulator.add_event(each)
    message: dict[str, Any] = json.loads(msgspec.json.encode(accumulator.message))
    return message


def test_complete_message_is_the_sum_of_its_events() -> None:
    message = read_message(
        *THOUGHT,
        Say("It is "),
        Say("wet"),
        Cite(URL, 3),
        Cite(URL, 9),
        *FUNCTION,
        Close(),
        *CUSTOM,
        Close(),
        seals=True,
    )
    thinking, text, function, custom = message["content"]
    assert thinking == {"type": "thinking", "thinking": "Hm.", "signature": "<Hm.>"}
    assert text["text"] == "It is wet"
    assert [citation["cited_text"] for citation in text["citations"]] == ["wet", "It is wet"]
    assert (function["name"], function["input"]) == ("f", {"a": 1})
    assert (custom["name"], custom["input"]) == ("g", {"input": 'say "x"\n'})
    assert (message["stop_reason"], message["usage"]["output_tokens"]) == ("tool_use", 4)


@pytest.mark.parametrize("end", ["cut", "cancel"])
def test_complete_message_lacks_a_call_that_was_cut_off(end: str) -> None:
    assert [block["type"] for block in read_message(Say("a"), *FUNCTION, end=end)["content"]] == ["text"]


@pytest.mark.parametrize(
    ("arguments", "parsed"),
    [('{"a": [1]}', {"a": [1]}), ("[1]", {"arguments": "[1]"}), ('{"a": ', {"arguments": '{"a": '}), (" ", {})],
)
def test_input_of_a_call_is_an_object(arguments: str, parsed: Any) -> None:
    (call,) = read_message(Call("f"), Arguments(arguments), Close())["content"]
    assert call["input"] == parsed
