"""Calls in gpt-oss's format are calls only if the request allows them."""

import pytest

from antiphon.state.segments import Call
from tests.harmony import parser_helpers

CALL_TEXT = '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>'


@pytest.mark.parametrize(("tool_choice", "num_calls"), [("auto", 1), ("none", 0)])
def test_forbidden_call_is_not_a_call(tool_choice: str, num_calls: int) -> None:
    prompt_input = parser_helpers.build_prompt_input(tool_choice=tool_choice)
    for model_format in parser_helpers.load_formats("gpt-oss"):
        segments, _ = parser_helpers.parse_tokens(
            model_format, model_format.encode(CALL_TEXT), prompt_input=prompt_input
        )
        assert sum(isinstance(segment, Call) for segment in segments) == num_calls
