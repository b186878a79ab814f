"""Citations inside the text become sources of it; what only looks like one is text."""

import pytest

from antiphon.events.inputs import InputFunctionCall
from antiphon.state.segments import Cite, Say, Think
from tests.harmony import parser_helpers
from tests.harmony.test_soup import drive

CALLS = tuple(InputFunctionCall(call_id=f"call_{name}", name=name, arguments="{}") for name in ("add", "write"))
TALK = parser_helpers.conversation(items=CALLS)
TEXT = "<|START_RESPONSE|>It is <co>4 degrees 😀</co: 1:[0]> and <co>wet</co: 0:[1,2],1:[0],7:[0]>.<|END_RESPONSE|>"


def test_what_was_cited_and_of_what() -> None:
    for ready in parser_helpers.formats("cohere"):
        tokens = ready.encode(TEXT)
        said, _ = parser_helpers.read(ready, tokens, talk=TALK)
        assert "".join(one.text for one in said if isinstance(one, Say)) == "It is 4 degrees 😀 and wet."
        cited = [(one.annotation.file_id, one.length) for one in said if isinstance(one, Cite)]  # type: ignore[union-attr]
        assert cited == [("call_write", 11), ("call_add", 3), ("call_write", 3)]
        for cut in range(len(tokens)):
            assert parser_helpers.read(ready, tokens, [cut], talk=TALK)[0] == said
        drive(said, natural=True, broken=False)


@pytest.mark.parametrize(
    "text",
    [
        "A <co>tag</co> as it is",
        "A <co>tag</co: of mine>",
        "<co>never closed",
        "<co>" + "long " * 1000 + "</co: 0:[0]>",
        "<co>cut</co: 0:[",
        "</co: 0:[1]>",
    ],
)
def test_what_only_looks_like_one_is_text(text: str) -> None:
    for ready in parser_helpers.formats("cohere"):
        said, _ = parser_helpers.read(ready, ready.encode(text), natural=False, talk=TALK)
        assert [one.text for one in said if isinstance(one, Say)] == [text]
        assert not any(isinstance(one, Cite) for one in said)


def test_reasoning_has_no_sources() -> None:
    for ready in parser_helpers.formats("cohere"):
        text = "<|START_THINKING|>It is <co>wet</co: 0:[0]>.<|END_THINKING|><|START_RESPONSE|>Wet.<|END_RESPONSE|>"
        said, _ = parser_helpers.read(ready, ready.encode(text), talk=TALK)
        assert said[0] == Think("It is wet.") and not any(isinstance(one, Cite) for one in said)
