"""The parts of a text completion's choice: text, log-probabilities with their offsets, ids, the prompt and the end."""

from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from antiphon.app.projections.completions.fold import CompletionFold, build_logprobs, join_parts
from antiphon.app.projections.completions.schema import CompletionChoice, CompletionCounts
from antiphon.app.turn_types.reply_form import CompletionForm
from antiphon.app.turn_types.step_detail import PromptDetail, TokenDetail
from antiphon.events import stream as ev
from antiphon.events.response import IncompleteDetails
from tests.app.projections.fold_helpers import Step, detail, make_entries, run_texts, scored
from tests.state.machine_helpers import create_machine

PROMPT = PromptDetail(
    tokens=(21, 22), text="Hi.",
    logprobs=(scored(21, "Hi", None, 0, -0.1, -0.2, -0.3), scored(22, ".", -2.0, 2, -0.4, -0.5, -0.6)),
)  # fmt: skip


def fold_steps(steps: list[Step], **options: Any) -> tuple[CompletionFold, list[CompletionChoice]]:
    fold = CompletionFold(3, CompletionForm(**options))
    parts = [fold.feed_event(entry.event, entry.detail) for entry in make_entries(steps)]
    return fold, [part for part in parts if part is not None]


def read_parts(
    *steps: tuple[str, TokenDetail | None], end: str = "stop", last: Any = None, **options: Any
) -> list[CompletionChoice]:
    """Returns the parts of a choice that says these texts; `last` is the detail of its end."""
    return fold_steps(run_texts(*steps, end=end, last=last or detail()), **options)[1]


def test_parts_without_anything_are_left_out_except_the_last() -> None:
    parts = read_parts(("a", detail(tokens=(1,))), ("", detail()), ("b", None), ("c", detail()))
    assert [(part.index, part.text, part.finish_reason) for part in parts] == [
        (3, "a", None),
        (3, "bc", None),
        (3, "", "stop"),
    ]


@pytest.mark.parametrize(
    ("each", "options"),
    [
        (detail(tokens=(1,)), {"token_ids": True}),
        (detail(logprobs=(scored(1, "", -1.0, 0),)), {"logprobs": 0}),
        (detail(prompt=PROMPT, tokens=()), {"token_ids": True}),
    ],
)
def test_part_without_text_is_shown_for_what_else_it_has(each: TokenDetail, options: dict[str, Any]) -> None:
    steps = run_texts(("a", detail()), ("b", detail()), last=detail())
    without_text = [ev.InProgress(sequence_number=0, response=create_machine().response)]
    for extra, texts in [(detail(), ["a", "b", ""]), (each, ["a", "", "b", ""])]:
        parts = fold_steps([*steps[:2], (without_text, extra), *steps[2:]], **options)[1]
        assert [part.text for part in parts] == texts


def test_prompt_begins_the_text_with_echo_only() -> None:
    first = detail(prompt=PROMPT, logprobs=(scored(1, "a", -1.0, 0),))
    for options, text, tokens, offsets in [
        ({"echo": True, "logprobs": 1}, "Hi.ab", ("Hi", ".", "a", "b"), (0, 2, 3, 4)),
        ({"logprobs": 1}, "ab", ("a", "b"), (0, 1)),
        ({"echo": True}, "Hi.ab", None, None),
        ({}, "ab", None, None),
    ]:
        parts = read_parts(("a", first), ("b", detail(logprobs=(scored(2, "b", -1.0, 1),))), **options)
        choice = join_parts(parts, 0, logprobs="logprobs" in options)
        assert choice.text == text
        assert "logprobs" in options or all(part.logprobs is None for part in parts), "nor in a chunk"
        assert (choice.logprobs and choice.logprobs.tokens, choice.logprobs and choice.logprobs.text_offset) == (
            tokens,
            offsets,
        )


@pytest.mark.parametrize(("logprobs", "prompt_logprobs"), [(1, 2), (2, 1), (0, 3)])
def test_numbers_of_candidates_are_those_of_their_own_field(logprobs: int, prompt_logprobs: int) -> None:
    step = detail(prompt=PROMPT, logprobs=(scored(1, "x", -1.0, 0, -0.1, -0.2, -0.3),))
    (part, _) = read_parts(("x", step), echo=True, logprobs=logprobs, prompt_logprobs=prompt_logprobs)
    assert part.logprobs is not None and part.prompt_logprobs is not UNSET
    assert [None if top is None else len(top) for top in part.logprobs.top_logprobs] == [
        None,
        logprobs + 1,
        logprobs + 1,
    ]
    assert [None if top is None else len(top) for top in part.prompt_logprobs] == [None, prompt_logprobs + 1]


def test_prompt_ids_and_candidates_are_shown_if_requested() -> None:
    steps = [("w", detail(tokens=(6,))), ("x", detail(prompt=PROMPT, tokens=(7,))), ("y", detail(tokens=(8,)))]
    for options in ({"token_ids": True}, {"prompt_logprobs": 0}, {}):
        choice = join_parts(read_parts(*steps, last=detail(tokens=(9,)), **options), 0, logprobs=False)
        assert choice.token_ids == ((6, 7, 8, 9) if "token_ids" in options else UNSET)
        assert choice.prompt_token_ids == ((21, 22) if "token_ids" in options else UNSET)
        assert (choice.prompt_logprobs is not UNSET) == ("prompt_logprobs" in options)


def test_token_waits_until_its_text_is_shown() -> None:
    """A token whose offset is the length of the text has not been shown; at the end, all are."""
    tokens = (scored(1, "a", -1.0, 0), scored(2, "b", -1.0, 1), scored(3, "c", -1.0, 2), scored(4, "d", -1.0, 9))
    parts = read_parts(("a", detail(logprobs=tokens)), ("b", detail()), logprobs=0)
    shown = [(part.logprobs.tokens, part.logprobs.text_offset) if part.logprobs else None for part in parts]
    assert shown == [(("a",), (0,)), (("b",), (1,)), (("c", "d"), (2, 2))]


def test_dropped_blanks_are_text() -> None:
    parts = read_parts(("a", detail(dropped_text="\n")), last=detail(dropped_text=" "))
    assert [part.text for part in parts] == ["a\n", " "]


STOPS: list[tuple[dict[str, Any], TokenDetail, str, int | str | None]] = [
    ({}, detail(stop_string="END"), "", "END"),
    ({"include_stop": True}, detail(stop_string="END"), "END", "END"),
    ({"include_stop": True}, detail(), "", None),
    ({"stop_ids": frozenset((5,))}, detail(stop_id=5), "", 5),
    ({"stop_ids": frozenset((5,))}, detail(stop_id=6), "", None),
    ({"stop_ids": frozenset((5,))}, detail(stop_id=5, stop_string=""), "", ""),
]


@pytest.mark.parametrize(("options", "last", "text", "stop_reason"), STOPS)
def test_stop_of_a_choice(options: dict[str, Any], last: TokenDetail, text: str, stop_reason: int | str | None) -> None:
    first, end = read_parts(("a", last), last=last, **options)
    assert (first.text, first.stop_reason, first.finish_reason) == ("a", None, None)
    assert (end.text, end.stop_reason, end.finish_reason) == (text, stop_reason, "stop")


@pytest.mark.parametrize(
    ("end", "reason", "options", "finish"),
    [
        ("stop", None, {}, "stop"),
        ("stop", None, {"prompt_only": True}, "length"),
        ("cut", None, {}, "length"),
        ("cut", "content_filter", {}, "content_filter"),
        ("cut", "", {}, "stop"),
        ("cancel", None, {}, "length"),
        ("fail", None, {}, "stop"),
    ],
)
def test_finish_reason(end: str, reason: str | None, options: dict[str, Any], finish: str) -> None:
    steps = run_texts(("a", detail()), end=end, last=detail())
    if reason is not None:
        last: Any = steps[-1][0][-1]
        response = msgspec.structs.replace(last.response, incomplete_details=IncompleteDetails(reason=reason or None))
        steps[-1] = ([*steps[-1][0][:-1], msgspec.structs.replace(last, response=response)], detail())
    fold, parts = fold_steps(steps, **options)
    assert parts[-1].finish_reason == finish
    assert isinstance(steps[-1][0][-1], ev.Completed | ev.Incomplete | ev.Failed)
    assert fold.terminal == steps[-1][0][-1].response


def test_counts_and_mean_are_those_of_all_steps() -> None:
    steps = run_texts(
        (
            "a",
            detail(
                tokens=(1, 2), input_tokens=10, cached_tokens=4, logprobs=(scored(1, "a", -1.0), scored(2, "b", None))
            ),
        ),
        ("b", detail(tokens=(3,), input_tokens=99, cached_tokens=98, logprobs=(scored(3, "c", -5.0),))),
        last=detail(),
    )
    fold, _ = fold_steps(steps)
    assert fold.counts == CompletionCounts(input_tokens=10, cached_tokens=4, output_tokens=3)
    assert fold.mean_logprob == -2.0
    assert CompletionFold(0, CompletionForm()).mean_logprob == 0.0


def test_candidates_of_a_token() -> None:
    token = scored(9, "b", -3.0, 0, -1.0, -2.0)
    assert build_logprobs([token], CompletionForm(logprobs=1)).top_logprobs == ({"a": -1.0, "b": -3.0},)
    assert build_logprobs([token], CompletionForm(logprobs=2)).top_logprobs == ({"a": -1.0, "b": -2.0},)
    by_id = build_logprobs([token], CompletionForm(logprobs=1, tokens_as_ids=True))
    assert by_id.tokens == ("token_id:9",) and by_id.top_logprobs == ({"token_id:100": -1.0, "token_id:9": -3.0},)
