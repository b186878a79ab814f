"""The chunks of a chat choice, entry by entry: what waits for a step's detail, names of tokens, the end, the mean."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import msgspec
import pytest

from antiphon.app.projections.best_of import rank_choices
from antiphon.app.projections.chat.choice import ChoiceFold
from antiphon.app.projections.chat.schema import ChunkChoice
from antiphon.app.turn_types.step_detail import PromptDetail, TokenDetail
from antiphon.events.items import Logprob, TopLogprob
from antiphon.state.segments import PlacedLogprob, Say
from tests.app.projections.fold_helpers import Step, detail, make_entries, run_texts, scored
from tests.app.requests.request_builders import read_chat
from tests.state.machine_helpers import create_machine

TOKEN_IDS = {"return_token_ids": True}
AS_IDS = {"return_tokens_as_token_ids": True, "logprobs": True, "top_logprobs": 1}
MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well: "}]


def make_fold(**fields: Any) -> ChoiceFold:
    return ChoiceFold(3, read_chat(**fields).form)


def feed_steps(fold: ChoiceFold, steps: Sequence[Step]) -> list[list[ChunkChoice]]:
    """Returns the parts after each entry that has some."""
    fed = [fold.feed_entry(entry) for entry in make_entries(steps)]
    assert all(part.index == 3 for parts in fed for part in parts)
    return [parts for parts in fed if parts]


def show_parts(parts: Sequence[ChunkChoice]) -> list[Any]:
    """Returns the content of each part, with its token ids if it has some; the reason of the last one."""
    shown: list[Any] = []
    for part in parts:
        text = part.finish_reason or part.delta.content
        shown.append(text if part.token_ids is msgspec.UNSET else (text, part.token_ids))
    return shown


@pytest.mark.parametrize("fields", [{}, {"logprobs": True, "top_logprobs": 2}])
def test_text_is_shown_at_once(fields: dict[str, Any]) -> None:
    steps = run_texts(("a", detail(tokens=(1,))), ("b", None), last=detail(tokens=(2,)))
    assert [show_parts(parts) for parts in feed_steps(make_fold(**fields), steps)] == [["a"], ["b"], ["stop"]]


def test_text_waits_for_the_ids_of_its_step() -> None:
    steps = run_texts(("a", detail(tokens=(1,))), ("b", None), ("c", detail(tokens=(2, 3))), last=detail(tokens=(4,)))
    fed = feed_steps(make_fold(**TOKEN_IDS), steps)
    assert [show_parts(parts) for parts in fed] == [[("a", (1,))], ["b", ("c", (2, 3))], [("stop", (4,))]]


def test_ids_of_steps_without_text_wait_for_the_next_part() -> None:
    fold, steps = make_fold(**TOKEN_IDS), run_texts(("a", detail(tokens=(3,))), last=detail())
    begin = [([event], detail(tokens=(number,))) for number, event in enumerate(steps[0][0], 1)]
    assert [show_parts(parts) for parts in feed_steps(fold, [*begin, *steps[1:]])] == [[("a", (1, 2, 3))], ["stop"]]


def test_last_part_comes_without_a_detail_as_well() -> None:
    for fields in ({}, TOKEN_IDS):
        fed = feed_steps(make_fold(**fields), run_texts(("a", None)))
        assert [text for parts in fed for text in show_parts(parts)] == ["a", "stop"]


def test_ids_are_not_shown_unless_requested() -> None:
    fed = feed_steps(make_fold(**AS_IDS), run_texts(("a", detail(tokens=(1,))), last=detail(tokens=(2,))))
    assert [show_parts(parts) for parts in fed] == [["a"], ["stop"]]


def logprob(token: str, value: float, top: str = "") -> Logprob:
    candidates = tuple(TopLogprob(token=text, logprob=value, bytes=tuple(text.encode())) for text in top)
    return Logprob(token=token, logprob=value, bytes=tuple(token.encode()), top_logprobs=candidates)


def read_names(entries: Sequence[Logprob], tokens: Sequence[Any]) -> list[str]:
    """Returns the names in the one chunk that says all entries. `tokens`: those of the step's detail."""
    machine = create_machine()
    text = "".join(entry.token for entry in entries)
    offsets = accumulate((len(entry.token) for entry in entries), initial=0)
    said = Say(text, logprobs=tuple(map(PlacedLogprob, offsets, entries)))
    steps: list[Step] = [(machine.begin(), None), (machine.feed(said), detail(logprobs=tuple(tokens)))]
    [[part]] = feed_steps(make_fold(**AS_IDS), steps)
    assert part.logprobs is not None
    return [
        name
        for entry in part.logprobs.content or ()
        for name in (entry.token, *(candidate.token for candidate in entry.top_logprobs))
    ]


def test_scored_tokens_are_named_by_their_ids() -> None:
    entries = [logprob("a", -1.0, "x"), logprob("b", -2.0, "y")]
    tokens = [scored(7, "a", -1.0, 0, -0.5), scored(8, "b", -2.0, 0, -0.5)]
    assert read_names(entries, tokens) == ["token_id:7", "token_id:100", "token_id:8", "token_id:100"]


def test_tokens_that_no_event_shows_are_passed_over() -> None:
    """Reasoning and markers have scores, too. A token is found by its text and its score together."""
    entries = [logprob("a", -1.0), logprob("a", -3.0)]
    tokens = [
        scored(5, "a", -9.0),
        scored(6, "b", -1.0),
        scored(7, "a", -1.0),
        scored(8, "a", -2.0),
        scored(9, "a", -3.0),
    ]
    assert read_names(entries, tokens) == ["token_id:7", "token_id:9"]
    assert read_names([logprob("a", -1.0)], [scored(5, "b", -1.0)]) == ["a"], "not found"


def test_entry_without_bytes_has_an_empty_text() -> None:
    entry = msgspec.structs.replace(logprob("a", -1.0), bytes=())
    assert read_names([entry], [scored(4, "a", -1.0), scored(5, "", -1.0)]) == ["token_id:5"]


def test_text_that_is_repeated_comes_first() -> None:
    assert [part.delta.content for part in make_fold(messages=MESSAGES, echo=True).begin()] == ["", "Well: "]
    assert [part.delta.content for part in make_fold(messages=MESSAGES).begin()] == [""]


STOPS: list[tuple[dict[str, Any], TokenDetail | None, list[str | None], int | str | None]] = [
    ({}, None, ["stop"], None),
    ({}, detail(stop_string="END"), ["stop"], "END"),
    ({"stop_token_ids": [5]}, detail(stop_id=5), ["stop"], 5),
    ({"stop_token_ids": [5]}, detail(stop_id=6), ["stop"], None),
    ({"stop_token_ids": [5]}, detail(stop_string="", stop_id=5), ["stop"], ""),
    ({"include_stop_str_in_output": True}, detail(stop_string="END"), ["END", "stop"], "END"),
    ({"include_stop_str_in_output": True}, detail(), ["stop"], None),
    ({"include_stop_str_in_output": True}, detail(stop_string=""), ["stop"], ""),
]


@pytest.mark.parametrize(("fields", "last", "shown", "stop_reason"), STOPS)
@pytest.mark.parametrize("waits", [False, True])
def test_end_of_a_choice(
    fields: dict[str, Any],
    last: TokenDetail | None,
    shown: list[str | None],
    stop_reason: int | str | None,
    *,
    waits: bool,
) -> None:
    fed = feed_steps(make_fold(**fields, return_token_ids=waits), run_texts(("a", detail()), last=last))
    assert show_parts(fed[-1]) == shown
    assert fed[-1][-1].stop_reason == stop_reason


@pytest.mark.parametrize("fields", [{}, TOKEN_IDS])
def test_failed_choice_has_no_end(fields: dict[str, Any]) -> None:
    fold = make_fold(**fields)
    fed = feed_steps(fold, run_texts(("a", detail()), end="fail"))
    assert [show_parts(parts) for parts in fed] == [["a"]]
    assert fold.terminal is not None and fold.terminal.status == "failed"


def test_prompt_is_kept() -> None:
    prompt = PromptDetail(tokens=(1, 2), text="hi")
    fold = make_fold()
    feed_steps(fold, run_texts(("a", detail(prompt=prompt)), ("b", detail())))
    assert fold.prompt == prompt


def fold_scores(*steps: Sequence[float | None]) -> ChoiceFold:
    fold = make_fold()
    details = [detail(logprobs=tuple(scored(1, "x", value) for value in values)) for values in steps]
    feed_steps(fold, run_texts(*[("x", each) for each in details]))
    return fold


def test_mean_is_that_of_all_tokens_of_a_choice() -> None:
    assert fold_scores([-1.0, -2.0], [-6.0]).mean_logprob == -3.0
    assert fold_scores([None, -4.0]).mean_logprob == -2.0
    assert fold_scores().mean_logprob == 0.0


def test_choices_rank_by_their_mean_not_by_their_sum_or_last_step() -> None:
    choices = [fold_scores([-1.0, -1.0, -1.0], [-1.0]), fold_scores([-3.0]), fold_scores([-5.0], [-0.5, -0.5])]
    means = [choice.mean_logprob for choice in choices]
    assert means == [-1.0, -3.0, -2.0]
    assert rank_choices(means, 2) == [0, 2]
    assert rank_choices(means, 3) == [0, 1, 2], "all keep their order"
