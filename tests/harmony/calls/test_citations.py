"""Citation markers inside text become annotations; malformed ones stay text."""

import pytest

from antiphon.events.inputs import InputFunctionCall
from antiphon.events.items import FileCitation, Message, OutputText
from antiphon.state.segments import Cite, Say, Think
from tests.harmony import parser_helpers
from tests.state.machine_helpers import create_machine

HISTORY_CALLS = tuple(InputFunctionCall(call_id=f"call_{name}", name=name, arguments="{}") for name in ("add", "write"))
PROMPT_INPUT = parser_helpers.build_prompt_input(items=HISTORY_CALLS)
CITED_TEXT = (
    "<|START_RESPONSE|>It is <co>4 degrees 😀</co: 1:[0]> and <co>wet</co: 0:[1,2],1:[0],7:[0]>.<|END_RESPONSE|>"
)


def test_citations_name_their_source_and_length() -> None:
    for model_format in parser_helpers.load_formats("cohere"):
        tokens = model_format.encode(CITED_TEXT)
        segments, _ = parser_helpers.parse_tokens(model_format, tokens, prompt_input=PROMPT_INPUT)
        assert (
            "".join(segment.text for segment in segments if isinstance(segment, Say)) == "It is 4 degrees 😀 and wet."
        )
        cited = [(segment.annotation.file_id, segment.length) for segment in segments if isinstance(segment, Cite)]  # type: ignore[union-attr]
        assert cited == [("call_write", 11), ("call_add", 3), ("call_write", 3)]
        for cut in range(len(tokens)):
            assert parser_helpers.parse_tokens(model_format, tokens, [cut], prompt_input=PROMPT_INPUT)[0] == segments
        parser_helpers.check_machine_accepts(segments, natural=True, call_failed=False)


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
def test_malformed_citations_are_text(text: str) -> None:
    for model_format in parser_helpers.load_formats("cohere"):
        segments, _ = parser_helpers.parse_tokens(
            model_format, model_format.encode(text), natural=False, prompt_input=PROMPT_INPUT
        )
        assert [segment.text for segment in segments if isinstance(segment, Say)] == [text]
        assert not any(isinstance(segment, Cite) for segment in segments)


def test_citation_markers_in_reasoning_are_removed() -> None:
    for model_format in parser_helpers.load_formats("cohere"):
        text = "<|START_THINKING|>It is <co>wet</co: 0:[0]>.<|END_THINKING|><|START_RESPONSE|>Wet.<|END_RESPONSE|>"
        segments, _ = parser_helpers.parse_tokens(model_format, model_format.encode(text), prompt_input=PROMPT_INPUT)
        assert segments[0] == Think("It is wet.") and not any(isinstance(segment, Cite) for segment in segments)


@pytest.mark.parametrize("blank", [" ", "\n", "  \n"])
def test_trailing_blank_is_outside_the_citation(blank: str) -> None:
    for model_format in parser_helpers.load_formats("cohere"):
        tokens = model_format.encode(f"<|START_RESPONSE|>It is <co>wet{blank}</co: 0:[1]>today.<|END_RESPONSE|>")
        segments, _ = parser_helpers.parse_tokens(model_format, tokens, prompt_input=PROMPT_INPUT)
        assert [segment.length for segment in segments if isinstance(segment, Cite)] == [len("wet")]
        machine = create_machine()
        machine.begin()
        for segment in segments:
            machine.feed(segment)
        machine.stop()
        (message,) = machine.response.output
        assert isinstance(message, Message) and isinstance(message.content[0], OutputText)
        assert message.content[0].text == f"It is wet{blank}today."
        (annotation,) = message.content[0].annotations
        assert isinstance(annotation, FileCitation) and annotation.index == len("It is wet")
