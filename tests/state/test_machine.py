"""The machine's treatment of whitespace, logprobs, ids, seals, refusals, citations and incomplete calls."""

import pytest

from antiphon.events.items import (
    CustomToolCall,
    FileCitation,
    FunctionCall,
    Logprob,
    Message,
    OutputText,
    Reasoning,
    Refusal,
    UrlCitation,
)
from antiphon.events.stream import Failed, Incomplete, ItemAdded, ItemDone, TextDelta
from antiphon.state.machine import STOPPED_IN_CALL
from antiphon.state.segments import Arguments, Call, Cite, Close, PlacedLogprob, Refuse, Say, Think
from tests.invariants import check_stream
from tests.state.machine_helpers import CITATION, convert_events_to_json, create_machine


def run_machine(*segments, ending="stop", **options):
    """Feeds the segments and ends the turn. Returns all events and the response."""
    machine = create_machine(**options)
    events = machine.begin()
    for segment in segments:
        events += machine.feed(segment)
    if not machine.is_ended:
        events += {
            "stop": machine.stop,
            "cut": machine.cut,
            "cancel": machine.cancel,
            "fail": lambda: machine.fail("server_error", "x"),
        }[ending]()
    check_stream(convert_events_to_json(events))
    return events, machine.response


def collect_text(response) -> str:
    return "".join(part.text for item in response.output if isinstance(item, Message) for part in item.content)


def test_leading_whitespace_is_kept_with_the_first_text() -> None:
    assert collect_text(run_machine(Say("\n"), Say("  Hi"))[1]) == "\n  Hi"


def test_trailing_whitespace_belongs_to_the_message() -> None:
    assert collect_text(run_machine(Say("Hi \n"))[1]) == "Hi \n"
    assert collect_text(run_machine(Say("Hi \n"), ending="cut")[1]) == "Hi \n"


@pytest.mark.parametrize("whitespace", ["\n\n", " ", "\t\u00a0"])
def test_whitespace_between_items_is_dropped(whitespace: str) -> None:
    machine = create_machine()
    machine.begin()
    for segment in (
        Think("a"),
        Say(whitespace),
        Call("f"),
        Close(),
        Say(whitespace),
        Call("f"),
        Close(),
        Say(whitespace),
    ):
        machine.feed(segment)
    machine.stop()
    assert [_item_type(item) for item in machine.response.output] == ["reasoning", "function_call", "function_call"]
    assert machine.dropped_text == whitespace * 3


def _item_type(item) -> str:
    return type(item).__struct_config__.tag


def test_whitespace_before_a_call_is_dropped_from_the_message() -> None:
    _, response = run_machine(Say("Look:\n\n"), Call("f"), Close())
    assert collect_text(response) == "Look:"


def test_deltas_and_dropped_whitespace_are_all_the_text() -> None:
    machine = create_machine()
    segments = [Think("\n one\t"), Say("\n\n"), Say(" two "), Call("f"), Close(), Say(" \r"), Say("\f")]
    events = machine.begin() + [event for segment in segments for event in machine.feed(segment)] + machine.stop()
    deltas = [str(event["delta"]) for event in convert_events_to_json(events) if "delta" in event]
    fed = "".join(segment.text for segment in segments if isinstance(segment, Think | Say))
    assert sorted("".join(deltas) + machine.dropped_text) == sorted(fed + "{}")
    assert machine.dropped_text


def test_whitespace_alone_makes_no_message() -> None:
    for ending in ("stop", "cut"):
        _, response = run_machine(Say(" "), Say("\n"), ending=ending)
        assert response.output == ()


def test_reasoning_is_stripped_of_surrounding_whitespace() -> None:
    _, response = run_machine(Think("\n hm "), Think("so\n"), Say("x"))
    reasoning = response.output[0]
    assert isinstance(reasoning, Reasoning) and reasoning.content
    assert reasoning.content[0].text == "hm so"


def create_logprob(token: str) -> Logprob:
    return Logprob(token=token, bytes=tuple(token.encode()), logprob=-1.0)


def test_logprobs_are_dropped_with_their_text() -> None:
    first, second = (Logprob(token="\ufffd", bytes=(byte,), logprob=-1.0) for byte in "é".encode())
    entries = (
        PlacedLogprob(0, create_logprob(" ")),
        PlacedLogprob(1, first),
        PlacedLogprob(1, second),
        PlacedLogprob(2, create_logprob("\n")),
    )
    events, response = run_machine(Think("t"), Say(" é\n", logprobs=entries), Call("f"), Close())
    deltas = [event for event in events if isinstance(event, TextDelta)]
    assert [delta.logprobs for delta in deltas] == [(first, second)]
    message = response.output[1]
    assert isinstance(message, Message) and isinstance(message.content[0], OutputText)
    assert message.content[0].logprobs == deltas[0].logprobs


def test_held_whitespace_keeps_its_logprob() -> None:
    events, _ = run_machine(
        Say("a "[:1], logprobs=(PlacedLogprob(0, create_logprob("a")),)),
        Say(" ", logprobs=(PlacedLogprob(0, create_logprob(" ")),)),
        Say("b", logprobs=(PlacedLogprob(0, create_logprob("b")),)),
    )
    deltas = [event for event in events if isinstance(event, TextDelta)]
    assert [(delta.delta, [entry.token for entry in delta.logprobs]) for delta in deltas] == [
        ("a", ["a"]),
        (" b", [" ", "b"]),
    ]


@pytest.mark.parametrize("ending", ["stop", "cut"])
@pytest.mark.parametrize("split", [False, True])
def test_trailing_whitespace_keeps_its_logprobs(ending: str, split: bool) -> None:
    text, blank = PlacedLogprob(0, create_logprob("a")), create_logprob("\n")
    segments = (
        [Say("a", logprobs=(text,)), Say("\n", logprobs=(PlacedLogprob(0, blank),))]
        if split
        else [Say("a\n", logprobs=(text, PlacedLogprob(1, blank)))]
    )
    events, response = run_machine(*segments, ending=ending)
    deltas = [event for event in events if isinstance(event, TextDelta)]
    assert [entry.token for delta in deltas for entry in delta.logprobs] == ["a", "\n"]
    (message,) = response.output
    assert isinstance(message, Message) and isinstance(message.content[0], OutputText)
    assert message.content[0].text == "a\n"
    assert [entry.token for entry in message.content[0].logprobs or ()] == ["a", "\n"]


def test_call_without_arguments_gets_an_empty_object() -> None:
    _, response = run_machine(Call("f"), Close())
    assert [item.arguments for item in response.output if isinstance(item, FunctionCall)] == ["{}"]


def test_custom_call_without_input_stays_empty() -> None:
    _, response = run_machine(Call("g", kind="custom"), Close())
    assert [item.input for item in response.output if isinstance(item, CustomToolCall)] == [""]


def test_native_call_ids_are_kept_and_made_unique() -> None:
    _, response = run_machine(
        *[segment for _ in range(3) for segment in (Call("f", call_id="f:0"), Close())],
        Call("f", call_id="f:0_2"),
        Close(),
    )
    assert [item.call_id for item in response.output if isinstance(item, FunctionCall)] == [
        "f:0",
        "f:0_2",
        "f:0_3",
        "f:0_2_2",
    ]


@pytest.mark.parametrize("kind", ["function", "custom"])
@pytest.mark.parametrize("ending", ["stop", "cut", "cancel", "fail"])
def test_incomplete_call_is_never_done(kind: str, ending: str) -> None:
    events, response = run_machine(Say("x"), Call("f", kind=kind), Arguments('{"cmd": "rm'), ending=ending)  # type: ignore[arg-type]
    assert [event.item.id for event in events if isinstance(event, ItemDone)] == [response.output[0].id]
    call = response.output[1]
    assert isinstance(call, FunctionCall | CustomToolCall) and call.status == "incomplete"
    assert response.status == {"stop": "failed", "cut": "incomplete", "cancel": "cancelled", "fail": "failed"}[ending]


def test_stop_inside_a_call_fails_the_response() -> None:
    events, response = run_machine(Call("f"), Arguments("{"))
    assert isinstance(events[-1], Failed) and response.error and response.error.message == STOPPED_IN_CALL


@pytest.mark.parametrize("intruder", [Think("a"), Say("a "), Refuse("a"), Call("g")])
def test_other_segments_inside_a_call_fail_the_response(intruder) -> None:
    events, response = run_machine(Call("f"), Arguments("{"), intruder)
    assert response.status == "failed" and len(response.output) == 1
    assert not [event for event in events if isinstance(event, ItemDone)]


def test_refusal_is_a_separate_part() -> None:
    _, response = run_machine(Say("Well. "), Refuse("No"), Refuse("."), Say("Sorry"))
    message = response.output[0]
    assert isinstance(message, Message)
    assert message.content == (OutputText(text="Well. "), Refusal(refusal="No."), OutputText(text="Sorry"))


def test_annotation_indices_count_within_their_part() -> None:
    events, _response = run_machine(Say("a"), Cite(CITATION), Cite(CITATION), Refuse("no"), Say("b"), Cite(CITATION))
    indices = [event["annotation_index"] for event in convert_events_to_json(events) if "annotation_index" in event]
    assert indices == [0, 1, 0]


def test_citation_offsets_count_within_their_part() -> None:
    _, response = run_machine(Refuse("no"), Say("abc"), Cite(FileCitation(file_id="f", index=0), 2))
    (message,) = response.output
    assert isinstance(message, Message) and isinstance(message.content[1], OutputText)
    assert message.content[1].annotations == (FileCitation(file_id="f", index=3),)


def test_citation_offsets_exclude_held_whitespace() -> None:
    """Whitespace that is held back does not count until it is part of the text."""
    file, url = FileCitation(file_id="f", index=0), UrlCitation(url="u", start_index=0, end_index=0)
    events, response = run_machine(Say("One two "), Cite(file, 3), Cite(url, 3), Say("three"), Cite(url, 99))
    (message,) = response.output
    assert isinstance(message, Message) and isinstance(message.content[0], OutputText)
    assert [*message.content[0].annotations] == [
        FileCitation(file_id="f", index=7),
        UrlCitation(url="u", start_index=4, end_index=7),
        UrlCitation(url="u", start_index=0, end_index=13),
    ]
    annotations = [event["annotation"] for event in convert_events_to_json(events) if "annotation" in event]
    assert [annotation.get("index", annotation.get("end_index")) for annotation in annotations] == [7, 7, 13]


def test_reasoning_is_sealed_when_it_closes() -> None:
    events, response = run_machine(Think("secret"), Say("x"), seal=lambda text: f"<{text}>")
    added = next(e for e in convert_events_to_json(events) if e["type"] == "response.output_item.added")
    assert "encrypted_content" not in added["item"]  # type: ignore[operator]
    assert response.output[0].encrypted_content == "<secret>"  # type: ignore[union-attr]


def test_incomplete_reasoning_is_not_sealed() -> None:
    _, response = run_machine(Think("secret"), ending="fail", seal=lambda text: f"<{text}>")
    assert (
        "encrypted_content"
        not in convert_events_to_json([ItemAdded(sequence_number=0, output_index=0, item=response.output[0])])[0][
            "item"
        ]
    )  # type: ignore[operator]


def test_reasoning_summary_and_content_are_equal() -> None:
    _, response = run_machine(Think("a "), Think("b"), Say("x"), reasoning_output="both")
    reasoning = response.output[0]
    assert isinstance(reasoning, Reasoning) and reasoning.content
    assert reasoning.summary[0].text == reasoning.content[0].text == "a b"


def test_cancelled_response_ends_with_response_incomplete() -> None:
    events, response = run_machine(Say("x"), ending="cancel")
    assert isinstance(events[-1], Incomplete) and response.status == "cancelled"


def test_keepalives_repeat_the_last_lifecycle_event() -> None:
    machine = create_machine()
    events = [
        *machine.queue(),
        *machine.keepalive(),
        *machine.begin(),
        *machine.keepalive(),
        *machine.keepalive(),
        *machine.feed(Say("x")),
        *machine.stop(),
    ]
    assert [e["type"].removeprefix("response.") for e in convert_events_to_json(events)[:6]] == [  # type: ignore[attr-defined]
        "created", "queued", "queued", "in_progress", "in_progress", "in_progress",
    ]  # fmt: skip
    check_stream(convert_events_to_json(events))


def test_text_after_a_failure_in_the_same_segment_is_dropped() -> None:
    machine = create_machine()
    machine.begin()
    machine.feed(Call("f"))
    machine.feed(Say("a "))
    assert machine.is_ended and machine.dropped_text == " "


@pytest.mark.parametrize("text", ["ab  cd \n ef", " \n", "x", "  x", "x  ", "a\u2028b "])
def test_splitting_text_anywhere_changes_nothing(text: str) -> None:
    def run_pieces(pieces: list[str]) -> tuple[str, str]:
        machine = create_machine()
        machine.begin()
        for piece in pieces:
            machine.feed(Say(piece))
        machine.stop()
        return collect_text(machine.response), machine.dropped_text

    expected = run_pieces([text])
    for index in range(len(text) + 1):
        assert run_pieces([text[:index], text[index:]]) == expected
    assert run_pieces(list(text)) == expected
