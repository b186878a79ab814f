"""Values that all endpoints share: limits at the value itself, defaults, and what a response echoes."""

from typing import Any

import pytest

from antiphon.app.errors import ApiError
from antiphon.app.requests import shared
from antiphon.app.requests.chat.body import ChatBody
from antiphon.app.requests.fields import decode_body
from antiphon.app.requests.responses.body import ResponsesBody
from antiphon.engine.protocol import EngineInfo, Sampling
from tests.app.requests.request_builders import summarize_error

INFO = EngineInfo(max_model_len=100, vocab_size=50, default_sampling=Sampling(temperature=0.6, max_tokens=40, seed=3))


def make_chat(**fields: Any) -> ChatBody:
    return decode_body(ChatBody, fields)


def check_invalid(code: str, param: str, call: Any) -> None:
    with pytest.raises(ApiError) as caught:
        call()
    assert summarize_error(caught.value) == (400, code, param)


@pytest.mark.parametrize(
    ("body", "limit", "changed"),
    [
        ({}, None, {}),
        ({"temperature": 0, "top_p": None}, None, {"temperature": 0.0}),
        ({"top_k": -1, "seed": 0}, 16, {"top_k": 0, "seed": 0, "max_tokens": 16}),
        ({"top_k": 5, "seed": None}, 0, {"top_k": 5, "max_tokens": 0}),
        ({"logit_bias": {"49": 1}}, None, {"logit_bias": {49: 1.0}}),
        ({"logit_bias": {}}, None, {}),
    ],
)
def test_sampling_is_the_clients_or_the_models(
    body: dict[str, Any], limit: int | None, changed: dict[str, Any]
) -> None:
    sampling = shared.read_sampling(make_chat(**body), INFO, limit, 2)
    expected = {name: getattr(INFO.default_sampling, name) for name in Sampling.__struct_fields__} | changed
    assert {name: getattr(sampling, name) for name in Sampling.__struct_fields__} == expected | {"top_logprobs": 2}


def test_tokens_of_a_request_are_tokens_of_the_model() -> None:
    check_invalid(
        "invalid_value", "logit_bias", lambda: shared.read_sampling(make_chat(logit_bias={"50": 1}), INFO, None, None)
    )
    read = shared.read_engine_fields
    assert read(make_chat(stop_token_ids=[49]), INFO, Sampling()).stop_ids == (49,)
    check_invalid(
        "invalid_value", "stop_token_ids[1]", lambda: read(make_chat(stop_token_ids=[0, 50]), INFO, Sampling())
    )


@pytest.mark.parametrize(("min_tokens", "limit"), [(None, 16), (15, 16), (16, 16), (99, None), (0, 0)])
def test_min_tokens_up_to_the_limit_are_accepted(min_tokens: int | None, limit: int | None) -> None:
    sampling = shared.read_engine_fields(make_chat(min_tokens=min_tokens), INFO, Sampling(max_tokens=limit))
    assert sampling.min_tokens == (min_tokens or 0)


@pytest.mark.parametrize(("min_tokens", "limit"), [(17, 16), (1, 0)])
def test_min_tokens_beyond_the_limit_are_refused(min_tokens: int, limit: int) -> None:
    sampling = Sampling(max_tokens=limit)
    check_invalid(
        "invalid_value",
        "min_tokens",
        lambda: shared.read_engine_fields(make_chat(min_tokens=min_tokens), INFO, sampling),
    )


@pytest.mark.parametrize(
    ("sent", "max_tokens", "kept"),
    [(None, 16, None), (0, 16, 0), (12, 16, 12), (-1, 16, 84), (-1, None, 99), (-1, 0, 99), (-1, 99, 1), (-1, 100, 1), (-1, 200, 1)],
)  # fmt: skip
def test_tokens_of_a_prompt_to_keep(sent: int | None, max_tokens: int | None, kept: int | None) -> None:
    assert shared.read_truncation(sent, INFO, Sampling(max_tokens=max_tokens)) == kept


@pytest.mark.parametrize(
    ("body", "count"),
    [({}, 1), ({"n": 2}, 2), ({"n": 2, "best_of": 2}, 2), ({"n": 2, "best_of": 3}, 3), ({"best_of": 3}, 3),
     ({"n": 2, "best_of": 2, "stream": True}, 2), ({"best_of": 3, "stream": False}, 3)],
)  # fmt: skip
def test_number_of_choices_to_sample(body: dict[str, Any], count: int) -> None:
    assert shared.check_best_of(make_chat(**body)) == count


@pytest.mark.parametrize("body", [{"n": 3, "best_of": 2}, {"n": 2, "best_of": 3, "stream": True}])
def test_impossible_number_of_choices_is_refused(body: dict[str, Any]) -> None:
    check_invalid("invalid_value", "best_of", lambda: shared.check_best_of(make_chat(**body)))


@pytest.mark.parametrize(("stream", "count"), [(False, 0), (False, 5), (True, None), (None, 0)])
def test_prompt_logprobs_need_a_whole_reply(stream: bool | None, count: int | None) -> None:
    assert shared.check_prompt_logprobs(make_chat(prompt_logprobs=count, stream=stream)) == count
    check_invalid(
        "invalid_value",
        "prompt_logprobs",
        lambda: shared.check_prompt_logprobs(make_chat(prompt_logprobs=0, stream=True)),
    )


def test_stream_options_need_a_stream() -> None:
    for body in ({}, {"stream": True, "stream_options": {}}, {"stream_options": None}):
        shared.check_stream_options(make_chat(**body))
    check_invalid("invalid_value", "stream_options", lambda: shared.check_stream_options(make_chat(stream_options={})))


@pytest.mark.parametrize(("sent", "expected"), [(None, ()), ("a", ("a",)), ([], ()), (["a", "b"], ("a", "b"))])
def test_stop_strings(sent: Any, expected: tuple[str, ...]) -> None:
    assert make_chat(stop=sent).stop_strings == expected


@pytest.mark.parametrize("sent", ["", ["a", ""]])
def test_empty_stop_string_is_refused(sent: Any) -> None:
    check_invalid("invalid_value", "stop", lambda: make_chat(stop=sent))


def test_priority_is_negated() -> None:
    assert [shared.read_priority(make_chat(priority=value)) for value in (None, 0, 5)] == [0, 0, -5]


FIRST_ECHO = {
    "tool_choice": "auto",
    "top_logprobs": 0,
    "service_tier": "default",
    "metadata": {},
    "parallel_tool_calls": True,
}


@pytest.mark.parametrize(
    ("body", "top_logprobs", "echo"),
    [
        ({}, None, {}),
        ({"tool_choice": "none", "metadata": {"a": "b"}, "service_tier": "flex", "parallel_tool_calls": False}, 3,
         {"tool_choice": "none", "metadata": {"a": "b"}, "service_tier": "flex", "top_logprobs": 3, "parallel_tool_calls": False}),
        ({"service_tier": "auto", "metadata": None, "parallel_tool_calls": None}, 0, {}),
    ],
)  # fmt: skip
def test_response_echoes_the_request(body: dict[str, Any], top_logprobs: int | None, echo: dict[str, Any]) -> None:
    decoded = decode_body(ResponsesBody, {"model": "m", **body})
    response = shared.base_response(decoded, Sampling(top_logprobs=top_logprobs))
    assert {name: getattr(response, name) for name in FIRST_ECHO} == FIRST_ECHO | echo
