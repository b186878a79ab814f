"""Chat requests with vLLM's fields: their values in the turn, and the errors that name them."""

from typing import Any

import pytest

from antiphon.app.errors import ApiError
from antiphon.app.options.settings import Settings
from antiphon.app.requests.chat.request import read_chat_request
from antiphon.app.turn_types.reply_form import ChatForm, ChatOptions
from antiphon.app.turn_types.step_detail import TokenDetailRequest
from antiphon.harmony.format import TemplateOptions
from tests.app.requests.request_builders import make_registry, read_chat, read_chat_spec, summarize_error

USER = {"role": "user", "content": "hi"}
BEGUN = {"role": "assistant", "content": "Once upon"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
NESTED: Any = "x"
for _ in range(9):
    NESTED = [NESTED]

INVALID_FIELDS: list[tuple[dict[str, Any], str, str]] = [
    ({"temperature": 2.1}, "decimal_above_max_value", "temperature"),
    ({"temperature": -0.1}, "decimal_below_min_value", "temperature"),
    ({"top_p": 0}, "decimal_below_min_value", "top_p"),
    ({"top_p": 1.1}, "decimal_above_max_value", "top_p"),
    ({"presence_penalty": -2.1}, "decimal_below_min_value", "presence_penalty"),
    ({"presence_penalty": 2.1}, "decimal_above_max_value", "presence_penalty"),
    ({"frequency_penalty": -2.1}, "decimal_below_min_value", "frequency_penalty"),
    ({"frequency_penalty": 2.1}, "decimal_above_max_value", "frequency_penalty"),
    ({"n": 0}, "integer_below_min_value", "n"),
    ({"best_of": 0}, "integer_below_min_value", "best_of"),
    ({"best_of": 129}, "integer_above_max_value", "best_of"),
    ({"n": 3, "best_of": 2}, "invalid_value", "best_of"),
    ({"best_of": 2, "stream": True}, "invalid_value", "best_of"),
    ({"request_id": "a", "store": True}, "invalid_value", "request_id"),
    ({"request_id": "a b"}, "invalid_value", "request_id"),
    ({"prompt_logprobs": -1}, "integer_below_min_value", "prompt_logprobs"),
    ({"prompt_logprobs": 21}, "integer_above_max_value", "prompt_logprobs"),
    ({"prompt_logprobs": 1, "stream": True}, "invalid_value", "prompt_logprobs"),
    ({"truncate_prompt_tokens": 0}, "integer_below_min_value", "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": -2}, "integer_below_min_value", "truncate_prompt_tokens"),
    ({"continue_final_message": True}, "invalid_value", "continue_final_message"),
    ({"continue_final_message": True, "add_generation_prompt": True, "messages": [USER, BEGUN]}, "invalid_value", "continue_final_message"),
    ({"continue_final_message": True, "messages": [USER, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c", "content": "x"}]}, "invalid_value", "continue_final_message"),
    ({"chat_template": "x"}, "unsupported_parameter", "chat_template"),
    ({"chat_template": "x" * 65_537}, "string_above_max_length", "chat_template"),
    ({"chat_template_kwargs": {"messages": []}}, "unsupported_parameter", "chat_template_kwargs.messages"),
    ({"chat_template_kwargs": {"tools": []}}, "unsupported_parameter", "chat_template_kwargs.tools"),
    ({"chat_template_kwargs": {"add_generation_prompt": False}}, "unsupported_parameter", "chat_template_kwargs.add_generation_prompt"),
    ({"chat_template_kwargs": {"chat_template": "x"}}, "unsupported_parameter", "chat_template_kwargs.chat_template"),
    ({"chat_template_kwargs": {"self": 1}}, "unsupported_parameter", "chat_template_kwargs.self"),
    ({"chat_template_kwargs": {"a-b": 1}}, "invalid_value", "chat_template_kwargs.a-b"),
    ({"chat_template_kwargs": {"enable_thinking": "no"}}, "invalid_type", "chat_template_kwargs.enable_thinking"),
    ({"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "none"}, "invalid_value", "chat_template_kwargs.enable_thinking"),
    ({"chat_template_kwargs": {f"a{n}": 1 for n in range(65)}}, "object_above_max_properties", "chat_template_kwargs"),
    ({"chat_template_kwargs": {"a": "x" * 70_000}}, "object_above_max_size", "chat_template_kwargs"),
    ({"chat_template_kwargs": {"a": [1] * 20_000}}, "object_above_max_size", "chat_template_kwargs"),
    ({"chat_template_kwargs": {"a": NESTED}}, "invalid_value", "chat_template_kwargs"),
    ({"documents": ["x"]}, "invalid_type", "documents[0]"),
    ({"documents": [{}, {"a": NESTED}]}, "invalid_value", "documents[1]"),
    ({"documents": [{}, {"a": [1] * 1024}]}, "object_above_max_size", "documents[1]"),
    ({"documents": [{}] * 257}, "array_above_max_length", "documents"),
    ({"use_beam_search": True}, "unsupported_parameter", "use_beam_search"),
    ({"mm_processor_kwargs": {}}, "unsupported_parameter", "mm_processor_kwargs"),
    ({"kv_transfer_params": {}}, "unsupported_parameter", "kv_transfer_params"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "code", "param"), INVALID_FIELDS, ids=lambda value: str(value)[:60])
def test_invalid_field_is_named(fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_chat_spec(**fields)
    assert summarize_error(caught.value) == (400, code, param)


def test_defaults_change_nothing() -> None:
    spec, form = read_chat().spec, read_chat().form
    assert spec.prompt_input.template == TemplateOptions() and not spec.prompt_input.keep_special_tokens
    assert (form, spec.details, spec.max_prompt_tokens, spec.n) == (ChatForm(), TokenDetailRequest(), None, 1)


def test_prompt_fields_are_read() -> None:
    spec = read_chat_spec(
        messages=[USER, BEGUN],
        continue_final_message=True,
        add_generation_prompt=False,
        add_special_tokens=True,
        documents=[{"text": "a"}],
        chat_template_kwargs={"mood": {"a": [1]}, "enable_thinking": True, "thinking": False, "left_out": None},
        skip_special_tokens=False,
        truncate_prompt_tokens=-1,
        max_tokens=96,
    )
    assert spec.prompt_input.template == TemplateOptions(
        variables={"mood": {"a": [1]}, "enable_thinking": True},
        documents=({"text": "a"},),
        add_generation_prompt=False,
        continue_final_message=True,
        add_special_tokens=True,
    )
    assert spec.prompt_input.effort == "none" and spec.prompt_input.keep_special_tokens
    assert spec.max_prompt_tokens == 4000, "the prompt and the output fit the context"


def test_template_of_the_request_needs_the_operators_consent() -> None:
    source = "{{ messages }}"
    with pytest.raises(ApiError, match="--trust-request-chat-template"):
        read_chat_spec(chat_template=source)
    body = {"model": "tiny", "messages": [USER], "chat_template": source}
    spec = read_chat_request(body, make_registry(), Settings(trust_request_chat_template=True)).spec
    assert spec.prompt_input.template.source == source


@pytest.mark.parametrize(
    ("messages", "echoed"),
    [
        ([USER, BEGUN], "Once upon"),
        ([USER, {"role": "assistant", "name": "bot", "content": "Once"}], "Once"),
        ([USER, {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], "a\nb"),
        ([USER], ""),
        ([USER, BEGUN, USER], ""),
    ],
)  # fmt: skip
def test_echo_repeats_the_last_message_of_the_assistant(messages: list[Any], echoed: str) -> None:
    assert read_chat(messages=messages, echo=True).form.options.echo_text == echoed
    assert read_chat(messages=messages).form.options.echo_text == ""


def test_reply_fields_are_read() -> None:
    parsed = read_chat(
        n=2, best_of=3, return_token_ids=True, return_tokens_as_token_ids=True, include_stop_str_in_output=True,
        stop_token_ids=[7], prompt_logprobs=1, request_id="mine",
    )  # fmt: skip
    spec = parsed.spec
    assert parsed.form.options == ChatOptions(
        num_returned=2, token_ids=True, tokens_as_ids=True, include_stop=True, stop_ids=frozenset({7}),
        prompt_logprobs=1, request_id="mine",
    )  # fmt: skip
    assert spec.n == 3 and spec.sampling.top_logprobs == 0 and not spec.logprobs
    assert spec.details == TokenDetailRequest(logprobs=True, prompt=True, prompt_logprobs=1)


def test_details_are_collected_only_if_the_reply_shows_them() -> None:
    assert read_chat_spec(return_tokens_as_token_ids=True).details == TokenDetailRequest()
    assert read_chat_spec(return_tokens_as_token_ids=True, logprobs=True).details == TokenDetailRequest(logprobs=True)
    assert read_chat_spec(best_of=1).details == TokenDetailRequest()
    assert read_chat(n=2, best_of=2).form.options.num_returned is None
