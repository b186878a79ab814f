"""Stop strings: nothing of them is said, nothing else is lost, however the text is cut."""

import random

import pytest

from antiphon.app.turns.stop_strings import StopStringFilter
from antiphon.events.items import Logprob
from antiphon.state.segments import Arguments, Call, Close, PlacedLogprob, Say, Segment, Think


def heard(stops: list[str], *segments: Segment) -> tuple[list[Segment], str | None]:
    watch = StopStringFilter(stops)
    said = [out for segment in segments for out in watch.filter_segment(segment)]
    return said + watch.release_held(), watch.matched


def text(said: list[Segment]) -> str:
    return "".join(segment.text for segment in said if isinstance(segment, Say))


@pytest.mark.parametrize(
    ("stops", "whole", "said", "matched"),
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
def test_every_cut_gives_the_same(stops: list[str], whole: str, said: str, matched: str | None) -> None:
    for at in range(len(whole) + 1):
        pieces, found = heard(stops, Say(whole[:at]), Say(whole[at:]))
        assert text(pieces) == said
        assert found == matched
    assert text(heard(stops, *map(Say, whole))[0]) == said


def test_only_what_may_be_a_stop_string_is_held_back() -> None:
    watch = StopStringFilter(["STOP"])
    assert watch.filter_segment(Say("one ST")) == [Say("one ")]
    assert watch.filter_segment(Say("A")) == [Say("STA")]


def test_reasoning_and_arguments_are_never_matched() -> None:
    segments = [Think("STOP"), Say("a"), Call("f"), Arguments('"STOP"'), Close(), Say("b STOP")]
    said, matched = heard(["STOP"], *segments)
    assert said == [*segments[:-1], Say("b ")] and matched == "STOP"


def test_what_is_held_goes_out_before_something_else_begins() -> None:
    assert heard(["STOP"], Say("ST"), Call("f"))[0] == [Say("ST"), Call("f")]
    assert heard(["STOP"], Say("ST", "commentary"), Say("OP", "final_answer"))[0] == [
        Say("ST", "commentary"), Say("OP", "final_answer"),
    ]  # fmt: skip


def test_log_probabilities_stay_with_their_text() -> None:
    whole, stops = "a STOP b", ["STOP"]
    entries = [PlacedLogprob(0, Logprob(token=char, logprob=-1.0)) for char in whole]
    said, _ = heard(stops, *[Say(char, logprobs=(entry,)) for char, entry in zip(whole, entries, strict=True)])
    tokens = "".join(e.logprob.token for segment in said if isinstance(segment, Say) for e in segment.logprobs)
    assert tokens == text(said) == "a "
    for segment in said:
        assert isinstance(segment, Say)
        assert all(segment.text[entry.offset] == entry.logprob.token for entry in segment.logprobs)


def test_random_texts_agree_with_a_search_in_the_whole() -> None:
    dice = random.Random(7)
    for _ in range(2000):
        whole = "".join(dice.choice("ab") for _ in range(dice.randrange(12)))
        stop = "".join(dice.choice("ab") for _ in range(dice.randrange(1, 5)))
        pieces = []
        rest = whole
        while rest:
            size = dice.randrange(1, len(rest) + 1)
            pieces.append(Say(rest[:size]))
            rest = rest[size:]
        said, matched = heard([stop], *pieces)
        assert text(said) == whole.partition(stop)[0]
        assert matched == (stop if stop in whole else None)
