"""What the machine does with blanks, log-probabilities, ids, seals, refusals and half calls."""

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
from tests.invariants import check
from tests.state.machine_helpers import CITATION, machine, plain


def speak(*segments, ending="stop", **options):
    """All events of a turn that says these segments, and its response."""
    m = machine(**options)
    said = m.begin()
    for segment in segments:
        said += m.feed(segment)
    if not m.is_ended:
        said += {"stop": m.stop, "cut": m.cut, "cancel": m.cancel, "fail": lambda: m.fail("server_error", "x")}[
            ending
        ]()
    check(plain(said))
    return said, m.response


def text_of(response) -> str:
    return "".join(part.text for item in response.output if isinstance(item, Message) for part in item.content)


def test_a_leading_blank_is_kept_with_the_first_text() -> None:
    assert text_of(speak(Say("\n"), Say("  Hi"))[1]) == "\n  Hi"


def test_a_trailing_blank_belongs_to_the_message() -> None:
    assert text_of(speak(Say("Hi \n"))[1]) == "Hi \n"
    assert text_of(speak(Say("Hi \n"), ending="cut")[1]) == "Hi \n"


@pytest.mark.parametrize("blank", ["\n\n", " ", "\t\u00a0"])
def test_blanks_between_items_are_dropped(blank: str) -> None:
    m = machine()
    m.begin()
    for segment in (Think("a"), Say(blank), Call("f"), Close(), Say(blank), Call("f"), Close(), Say(blank)):
        m.feed(segment)
    m.stop()
    assert [item.type for item in map(_typed, m.response.output)] == ["reasoning", "function_call", "function_call"]
    assert m.dropped_text == blank * 3


def _typed(item):
    class Named:
        type = type(item).__struct_config__.tag

    return Named


def test_a_blank_before_a_call_is_dropped_from_the_message() -> None:
    _, response = speak(Say("Look:\n\n"), Call("f"), Close())
    assert text_of(response) == "Look:"


def test_nothing_but_blanks_is_no_message() -> None:
    for ending in ("stop", "cut"):
        _, response = speak(Say(" "), Say("\n"), ending=ending)
        assert response.output == ()


def test_reasoning_has_no_blanks_around_it() -> None:
    _, response = speak(Think("\n hm "), Think("so\n"), Say("x"))
    reasoning = response.output[0]
    assert isinstance(reasoning, Reasoning) and reasoning.content
    assert reasoning.content[0].text == "hm so"


def logprob(token: str) -> Logprob:
    return Logprob(token=token, bytes=tuple(token.encode()), logprob=-1.0)


def test_log_probabilities_share_the_fate_of_their_text() -> None:
    entries = (
        PlacedLogprob(0, logprob(" ")),
        PlacedLogprob(1, logprob("a")),
        PlacedLogprob(1, logprob("completes")),
        PlacedLogprob(2, logprob("\n")),
    )
    said, response = speak(Think("t"), Say(" a\n", logprobs=entries), Call("f"), Close())
    deltas = [event for event in said if isinstance(event, TextDelta)]
    assert [[entry.token for entry in delta.logprobs] for delta in deltas] == [["a", "completes"]]
    message = response.output[1]
    assert isinstance(message, Message) and isinstance(message.content[0], OutputText)
    assert message.content[0].logprobs == deltas[0].logprobs


def test_a_held_blank_brings_its_log_probability_along() -> None:
    said, _ = speak(
        Say("a "[:1], logprobs=(PlacedLogprob(0, logprob("a")),)),
        Say(" ", logprobs=(PlacedLogprob(0, logprob(" ")),)),
        Say("b", logprobs=(PlacedLogprob(0, logprob("b")),)),
    )
    deltas = [event for event in said if isinstance(event, TextDelta)]
    assert [(d.delta, [e.token for e in d.logprobs]) for d in deltas] == [("a", ["a"]), (" b", [" ", "b"])]


def test_a_call_without_arguments_gets_an_empty_object() -> None:
    _, response = speak(Call("f"), Close())
    assert [item.arguments for item in response.output if isinstance(item, FunctionCall)] == ["{}"]


def test_a_custom_call_without_input_stays_empty() -> None:
    _, response = speak(Call("g", kind="custom"), Close())
    assert [item.input for item in response.output if isinstance(item, CustomToolCall)] == [""]


def test_native_call_ids_are_kept_and_made_unique() -> None:
    _, response = speak(
        *[s for _ in range(3) for s in (Call("f", call_id="f:0"), Close())], Call("f", call_id="f:0_2"), Close()
    )
    assert [item.call_id for item in response.output if isinstance(item, FunctionCall)] == [
        "f:0",
        "f:0_2",
        "f:0_3",
        "f:0_2_2",
    ]


@pytest.mark.parametrize("kind", ["function", "custom"])
@pytest.mark.parametrize("ending", ["stop", "cut", "cancel", "fail"])
def test_half_a_call_is_never_done(kind: str, ending: str) -> None:
    said, response = speak(Say("x"), Call("f", kind=kind), Arguments('{"cmd": "rm'), ending=ending)  # type: ignore[arg-type]
    assert [event.item.id for event in said if isinstance(event, ItemDone)] == [response.output[0].id]
    half = response.output[1]
    assert isinstance(half, FunctionCall | CustomToolCall) and half.status == "incomplete"
    assert response.status == {"stop": "failed", "cut": "incomplete", "cancel": "cancelled", "fail": "failed"}[ending]


def test_a_model_that_falls_silent_inside_a_call_fails_loudly() -> None:
    said, response = speak(Call("f"), Arguments("{"))
    assert isinstance(said[-1], Failed) and response.error and response.error.message == STOPPED_IN_CALL


@pytest.mark.parametrize("intruder", [Think("a"), Say("a "), Refuse("a"), Call("g")])
def test_something_else_inside_a_call_fails_it(intruder) -> None:
    said, response = speak(Call("f"), Arguments("{"), intruder)
    assert response.status == "failed" and len(response.output) == 1
    assert not [event for event in said if isinstance(event, ItemDone)]


def test_a_refusal_is_a_part_of_its_own() -> None:
    _, response = speak(Say("Well. "), Refuse("No"), Refuse("."), Say("Sorry"))
    message = response.output[0]
    assert isinstance(message, Message)
    assert message.content == (OutputText(text="Well. "), Refusal(refusal="No."), OutputText(text="Sorry"))


def test_citations_count_within_their_part() -> None:
    said, _response = speak(Say("a"), Cite(CITATION), Cite(CITATION), Refuse("no"), Say("b"), Cite(CITATION))
    indices = [event["annotation_index"] for event in plain(said) if "annotation_index" in event]
    assert indices == [0, 1, 0]


def test_a_citation_of_what_was_said_last_stands_where_the_text_does() -> None:
    """Blanks that are held back do not count until they are said."""
    file, url = FileCitation(file_id="f", index=0), UrlCitation(url="u", start_index=0, end_index=0)
    said, response = speak(Say("One two "), Cite(file, 3), Cite(url, 3), Say("three"), Cite(url, 99))
    (message,) = response.output
    assert isinstance(message, Message) and isinstance(message.content[0], OutputText)
    assert [*message.content[0].annotations] == [
        FileCitation(file_id="f", index=7),
        UrlCitation(url="u", start_index=4, end_index=7),
        UrlCitation(url="u", start_index=0, end_index=13),
    ]
    told = [event["annotation"] for event in plain(said) if "annotation" in event]
    assert [one.get("index", one.get("end_index")) for one in told] == [7, 7, 13]


def test_reasoning_is_sealed_when_it_closes() -> None:
    said, response = speak(Think("secret"), Say("x"), seal=lambda text: f"<{text}>")
    added = next(e for e in plain(said) if e["type"] == "response.output_item.added")
    assert "encrypted_content" not in added["item"]  # type: ignore[operator]
    assert response.output[0].encrypted_content == "<secret>"  # type: ignore[union-attr]


def test_half_reasoning_is_not_sealed() -> None:
    _, response = speak(Think("secret"), ending="fail", seal=lambda text: f"<{text}>")
    assert (
        "encrypted_content"
        not in plain([ItemAdded(sequence_number=0, output_index=0, item=response.output[0])])[0]["item"]
    )  # type: ignore[operator]


def test_both_tellings_of_reasoning_say_the_same() -> None:
    _, response = speak(Think("a "), Think("b"), Say("x"), reasoning_as="both")
    reasoning = response.output[0]
    assert isinstance(reasoning, Reasoning) and reasoning.content
    assert reasoning.summary[0].text == reasoning.content[0].text == "a b"


def test_a_cancelled_response_ends_with_an_event_that_every_sdk_knows() -> None:
    said, response = speak(Say("x"), ending="cancel")
    assert isinstance(said[-1], Incomplete) and response.status == "cancelled"


def test_reminders_repeat_the_last_stage() -> None:
    m = machine()
    said = [*m.queue(), *m.keepalive(), *m.begin(), *m.keepalive(), *m.keepalive(), *m.feed(Say("x")), *m.stop()]
    assert [e["type"].removeprefix("response.") for e in plain(said)[:6]] == [  # type: ignore[attr-defined]
        "created", "queued", "queued", "in_progress", "in_progress", "in_progress",
    ]  # fmt: skip
    check(plain(said))


def test_input_after_the_end_of_the_same_text_is_dropped_not_raised() -> None:
    m = machine()
    m.begin()
    m.feed(Call("f"))
    m.feed(Say("a "))
    assert m.is_ended and m.dropped_text == " "


@pytest.mark.parametrize("text", ["ab  cd \n ef", " \n", "x", "  x", "x  ", "a\u2028b "])
def test_cutting_text_anywhere_changes_nothing(text: str) -> None:
    def merged(pieces: list[str]) -> tuple[str, str]:
        m = machine()
        m.begin()
        for piece in pieces:
            m.feed(Say(piece))
        m.stop()
        return text_of(m.response), m.dropped_text

    whole = merged([text])
    for at in range(len(text) + 1):
        assert merged([text[:at], text[at:]]) == whole
    assert merged(list(text)) == whole
