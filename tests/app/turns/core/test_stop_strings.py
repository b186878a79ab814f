"""Stop strings are removed from the output, and no other text, however the output is split into segments."""

import random

import pytest

from antiphon.app.turns.core.stop_strings import StopStringFilter
from antiphon.events.items import Logprob
from antiphon.state.segments import Arguments, Call, Close, PlacedLogprob, Say, Segment, Think


def filter_segments(stops: list[str], *segments: Segment) -> tuple[list[Segment], str | None]:
    """Returns the filtered segments and the stop string that matched."""
    stop_filter = StopStringFilter(stops)
    output = [out for segment in segments for out in stop_filter.filter_segment(segment)]
    return output + stop_filter.release_held(), stop_filter.matched


def join_text(segments: list[Segment]) -> str:
    return "".join(segment.text for segment in segments if isinstance(segment, Say))


@pytest.mark.parametrize(
    ("stops", "text", "expected", "matched"),
    [
        (["STOP"], "a STOP b", "a ", "STOP"),
        (["STOP"], "a STO", "a STO", None),
        (["STOP"], "STOP", "", "STOP"),
        (["aab"], "aaab", "a", "aab"),
        (["b", "abc"], "xabc", "xa", "b"),
        (["ab", "abc"], "xabc", "x", "ab"),
        (["\n\n"], "one\ntwo\n\nthree", "one\ntwo", "\n\n"),
        (["é😀"], "xé😀", "x", "é😀"),
    ],
)
def test_segment_boundaries_do_not_change_the_output(
    stops: list[str], text: str, expected: str, matched: str | None
) -> None:
    for index in range(len(text) + 1):
        segments, found = filter_segments(stops, Say(text[:index]), Say(text[index:]))
        assert join_text(segments) == expected
        assert found == matched
    assert join_text(filter_segments(stops, *map(Say, text))[0]) == expected


def test_only_a_possible_start_of_a_stop_string_is_held() -> None:
    stop_filter = StopStringFilter(["STOP"])
    assert stop_filter.filter_segment(Say("one ST")) == [Say("one ")]
    assert stop_filter.filter_segment(Say("A")) == [Say("STA")]


def test_log_probabilities_stay_with_their_text() -> None:
    def score(text: str) -> tuple[PlacedLogprob, ...]:
        return tuple(
            PlacedLogprob(index, Logprob(token=letter, bytes=(), logprob=-1.0)) for index, letter in enumerate(text)
        )

    stop_filter = StopStringFilter(["END"])
    assert stop_filter.filter_segment(Say("abEN", logprobs=score("abEN"))) == [Say("ab", logprobs=score("ab"))]
    assert stop_filter.release_held() == [Say("EN", logprobs=score("EN"))]
    stop_filter.filter_segment(Say("cEN", logprobs=score("cEN")))
    assert stop_filter.filter_segment(Say("X", logprobs=score("X"))) == [Say("ENX", logprobs=score("ENX"))]


def test_reasoning_and_arguments_are_never_matched() -> None:
    segments = [Think("STOP"), Say("a"), Call("f"), Arguments('"STOP"'), Close(), Say("b STOP")]
    output, matched = filter_segments(["STOP"], *segments)
    assert output == [*segments[:-1], Say("b ")] and matched == "STOP"


def test_held_text_is_released_before_another_segment() -> None:
    assert filter_segments(["STOP"], Say("ST"), Call("f"))[0] == [Say("ST"), Call("f")]
    assert filter_segments(["STOP"], Say("ST", "commentary"), Say("OP", "final_answer"))[0] == [
        Say("ST", "commentary"), Say("OP", "final_answer"),
    ]  # fmt: skip


def test_logprobs_stay_with_their_text() -> None:
    text, stops = "a STOP b", ["STOP"]
    entries = [PlacedLogprob(0, Logprob(token=char, logprob=-1.0)) for char in text]
    output, _ = filter_segments(
        stops, *[Say(char, logprobs=(entry,)) for char, entry in zip(text, entries, strict=True)]
    )
    tokens = "".join(e.logprob.token for segment in output if isinstance(segment, Say) for e in segment.logprobs)
    assert tokens == join_text(output) == "a "
    for segment in output:
        assert isinstance(segment, Say)
        assert all(segment.text[entry.offset] == entry.logprob.token for entry in segment.logprobs)


def test_random_texts_agree_with_a_search_in_the_whole_text() -> None:
    dice = random.Random(7)
    for _ in range(2000):
        text = "".join(dice.choice("ab") for _ in range(dice.randrange(12)))
        stop = "".join(dice.choice("ab") for _ in range(dice.randrange(1, 5)))
        segments = []
        remaining = text
        while remaining:
            size = dice.randrange(1, len(remaining) + 1)
            segments.append(Say(remaining[:size]))
            remaining = remaining[size:]
        output, matched = filter_segments([stop], *segments)
        assert join_text(output) == text.partition(stop)[0]
        assert matched == (stop if stop in text else None)


@pytest.mark.parametrize("stop", ["\n", "\n\n", " ", "\n \n"])
@pytest.mark.parametrize("blank", ["\n", "\n\n", "\n \n", "\n\n\n"])
def test_stop_string_in_blanks_before_a_call_ends_nothing(stop: str, blank: str) -> None:
    segments = [Think("a"), Close(), Say(blank), Call("f"), Arguments("{}"), Close()]
    assert filter_segments([stop], *segments) == (segments, None)
    assert filter_segments([stop], Think("a"), Close(), *map(Say, blank), Call("f"))[1] is None


def test_stop_string_in_blanks_before_text_ends_the_message() -> None:
    for index in range(8):
        text = "\n\nHello"
        segments, matched = filter_segments(["\n\n"], Say(text[:index]), Say(text[index:]))
        assert (join_text(segments), matched) == ("", "\n\n")


def test_blanks_after_a_call_are_the_start_of_another_message() -> None:
    segments = [Say("Hi"), Call("f"), Close(), Say("\n"), Call("g"), Close()]
    assert filter_segments(["\n"], *segments) == (segments, None)
