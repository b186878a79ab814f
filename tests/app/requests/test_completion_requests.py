"""Requests for text completions: every field's value in the turns and the reply's form, and the errors that name it."""

from typing import Any

import pytest

from antiphon.app.errors import ApiError
from antiphon.app.turn_types.step_detail import TokenDetailRequest
from tests.app.requests.request_builders import read_completion, summarize_error

INVALID_FIELDS: list[tuple[dict[str, Any], str, str]] = [
    ({"model": ...}, "missing_required_parameter", "model"),
    ({"prompt": ...}, "missing_required_parameter", "prompt"),
    ({"prompt": []}, "empty_array", "prompt"),
    ({"prompt": [[]]}, "invalid_value", "prompt[0]"),
    ({"prompt": [[1], []]}, "invalid_value", "prompt[1]"),
    ({"prompt": 5}, "invalid_type", "prompt"),
    ({"prompt": ["a", 5]}, "invalid_type", "prompt[1]"),
    ({"prompt": [5, "a"]}, "invalid_type", "prompt[1]"),
    ({"prompt": [True]}, "invalid_type", "prompt[0]"),
    ({"prompt": [-1]}, "integer_below_min_value", "prompt[0]"),
    ({"prompt": [[1, -1]]}, "integer_below_min_value", "prompt[0][1]"),
    ({"prompt": [1, 256]}, "invalid_value", "prompt[1]"),
    ({"prompt": [[1], [2, 256]]}, "invalid_value", "prompt[1][1]"),
    ({"prompt": ["a"] * 129}, "array_above_max_length", "prompt"),
    ({"max_tokens": -1}, "integer_below_min_value", "max_tokens"),
    ({"temperature": 2.1}, "decimal_above_max_value", "temperature"),
    ({"temperature": -0.1}, "decimal_below_min_value", "temperature"),
    ({"top_p": 0}, "decimal_below_min_value", "top_p"),
    ({"top_p": 1.1}, "decimal_above_max_value", "top_p"),
    ({"presence_penalty": -2.1}, "decimal_below_min_value", "presence_penalty"),
    ({"frequency_penalty": 2.1}, "decimal_above_max_value", "frequency_penalty"),
    ({"n": 0}, "integer_below_min_value", "n"),
    ({"n": 129}, "integer_above_max_value", "n"),
    ({"n": 65, "prompt": ["a", "b"]}, "invalid_value", "n"),
    ({"best_of": 65, "prompt": ["a", "b"]}, "invalid_value", "best_of"),
    ({"n": 3, "best_of": 2}, "invalid_value", "best_of"),
    ({"best_of": 2, "stream": True}, "invalid_value", "best_of"),
    ({"logprobs": 6}, "integer_above_max_value", "logprobs"),
    ({"logprobs": -1}, "integer_below_min_value", "logprobs"),
    ({"prompt_logprobs": 1, "stream": True}, "invalid_value", "prompt_logprobs"),
    ({"prompt_logprobs": -1}, "integer_below_min_value", "prompt_logprobs"),
    ({"min_tokens": 17}, "invalid_value", "min_tokens"),
    ({"stop": ""}, "invalid_value", "stop"),
    ({"stop_token_ids": [256]}, "invalid_value", "stop_token_ids[0]"),
    ({"logit_bias": {"256": 1}}, "invalid_value", "logit_bias"),
    ({"stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
    ({"truncate_prompt_tokens": 0}, "integer_below_min_value", "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": -2}, "integer_below_min_value", "truncate_prompt_tokens"),
    ({"priority": -1}, "integer_below_min_value", "priority"),
    ({"request_id": "a b"}, "invalid_value", "request_id"),
    ({"guided_choice": []}, "invalid_value", "guided_choice"),
    ({"guided_json": "{"}, "invalid_value", "guided_json"),
    ({"structured_outputs": {"structural_tag": "x"}}, "unknown_parameter", "structured_outputs.structural_tag"),
    ({"guided_regex": "a", "structured_outputs": {"choice": ["a"]}}, "invalid_value", "guided_regex"),
    ({"messages": []}, "unknown_parameter", "messages"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "code", "param"), INVALID_FIELDS, ids=lambda value: str(value)[:60])
def test_invalid_field_is_named(fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_completion(**fields)
    assert summarize_error(caught.value) == (400, code, param)


@pytest.mark.parametrize(
    ("prompt", "sources"),
    [
        ("a", ["a"]),
        ("", [""]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [(1, 2)]),
        ([[1, 2], [3]], [(1, 2), (3,)]),
    ],
)
def test_each_prompt_is_a_turn(prompt: Any, sources: list[Any]) -> None:
    specs, options = read_completion(prompt=prompt, n=2)
    assert [spec.text_completion.prompt.source for spec in specs if spec.text_completion] == sources
    assert [spec.n for spec in specs] == [2] * len(sources) and options.n == options.best_of == 2


def test_defaults() -> None:
    [spec], options = read_completion()
    turn = spec.text_completion
    assert turn is not None and turn.prompt.add_special_tokens and not turn.keep_special_tokens
    assert spec.sampling.max_tokens == 16 and spec.sampling.temperature == 0.6
    assert spec.details == TokenDetailRequest() and not spec.base_response.store
    assert options.logprobs is None and not options.echo


def test_sampling_fields_reach_the_engine() -> None:
    body: dict[str, Any] = {
        "max_tokens": 5,
        "temperature": 0,
        "top_p": 0.5,
        "top_k": -1,
        "min_p": 0.1,
        "seed": 7,
        "min_tokens": 2,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "repetition_penalty": 1.5,
        "logit_bias": {"3": 4},
        "stop_token_ids": [9],
        "ignore_eos": True,
        "logprobs": 3,
        "stop": ["x", "y"],
        "cache_salt": "s",
        "priority": 4,
    }
    [spec], options = read_completion(**body)
    sampling = spec.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (5, 0, 0.5, 0)
    assert (sampling.min_p, sampling.seed, sampling.min_tokens, sampling.ignore_eos) == (0.1, 7, 2, True)
    penalties = (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty)
    assert (penalties, sampling.logit_bias) == ((1, -1, 1.5), {3: 4})
    assert (sampling.stop_ids, sampling.top_logprobs, spec.stop_strings) == ((9,), 3, ("x", "y"))
    assert (spec.cache_salt, spec.priority) == ("s", -4), "the engine runs higher priorities first"
    assert options.stop_ids == {9}


def test_details_are_collected_only_if_the_reply_shows_them() -> None:
    def details(**body: Any) -> TokenDetailRequest:
        return read_completion(**body)[0][0].details

    assert details(echo=True) == TokenDetailRequest(prompt=True)
    assert details(return_token_ids=True) == TokenDetailRequest(prompt=True)
    assert details(logprobs=0) == TokenDetailRequest(logprobs=True)
    assert details(best_of=2) == TokenDetailRequest(logprobs=True)
    assert details(echo=True, logprobs=2, prompt_logprobs=1).prompt_logprobs == 2
    assert details(prompt_logprobs=0) == TokenDetailRequest(prompt_logprobs=0)
    [spec], options = read_completion(best_of=2)
    assert spec.sampling.top_logprobs == 0 and spec.n == 2 and options.logprobs is None


def test_prompt_fields() -> None:
    [spec], _ = read_completion(
        add_special_tokens=False, skip_special_tokens=False, truncate_prompt_tokens=3, echo=True, logprobs=1
    )
    assert spec.text_completion is not None
    prompt = spec.text_completion.prompt
    assert (prompt.add_special_tokens, prompt.max_tokens, prompt.locate_tokens) == (False, 3, True)
    assert spec.text_completion.keep_special_tokens
    [spec], _ = read_completion(truncate_prompt_tokens=-1, max_tokens=96)
    turn = spec.text_completion
    assert turn is not None and turn.prompt.max_tokens == 4000, "the prompt and the output fit the context"


def test_no_output_is_a_prefill() -> None:
    [spec], options = read_completion(max_tokens=0)
    assert spec.prefill_only and spec.sampling.max_tokens == 1 and options.prompt_only


@pytest.mark.parametrize(
    ("fields", "form", "is_json"),
    [
        ({"guided_json": {"type": "array"}}, {"schema": {"type": "array"}}, True),
        ({"guided_json": '{"type": "array"}'}, {"schema": {"type": "array"}}, True),
        ({"structured_outputs": {"json": {"type": "array"}}}, {"schema": {"type": "array"}}, True),
        ({"structured_outputs": {"json_object": True}}, {"schema": {"type": "object"}}, True),
        ({"response_format": {"type": "json_object"}}, {"schema": {"type": "object"}}, True),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array"}}}},
            {"schema": {"type": "array"}},
            True,
        ),
        ({"guided_regex": "a+"}, {"regex": "a+"}, False),
        ({"structured_outputs": {"choice": ["a", "b"]}}, {"choice": ("a", "b")}, False),
        ({"guided_grammar": 'start: "a"'}, {"lark": 'start: "a"'}, False),
        ({"response_format": {"type": "text"}}, None, False),
        ({"structured_outputs": {"json_object": False}}, None, False),
    ],
    ids=lambda value: str(value)[:50],
)
def test_required_form_of_the_text(fields: dict[str, Any], form: dict[str, Any] | None, is_json: bool) -> None:
    [spec], _ = read_completion(stop="x", **fields)
    assert spec.text_completion is not None
    found = spec.text_completion.output_constraint
    set_fields = found and {
        name: getattr(found, name) for name in ("schema", "regex", "choice", "lark") if getattr(found, name) is not None
    }
    assert set_fields == form
    assert spec.stop_strings == (() if is_json else ("x",)), "a stop string never cuts JSON"
    assert len(spec.constraints) == (form is not None and "choice" not in form)
