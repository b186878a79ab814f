"""vLLM's fields of chat completions through OpenAI's SDK: prompts, continued messages, token ids and choices."""

import json
from functools import partial
from typing import Any

import openai
import pytest

from antiphon.harmony.detection.detect import bytes_format
from tests.clients.sdk_helpers import open_sdk, post
from tests.conftest import StartServer
from tests.serving import scripted_registry, serve

SCRIPT: list[dict[str, Any]] = [
    {"name": "continued", "when": ["[story]"], "output": [" a time."]},
    {"name": "stops", "when": ["[stop]"], "output": ["one two", " three"]},
    {"name": "special", "when": ["[special]"], "output": ["a<|endoftext|>b"]},
    {"name": "logprobs", "when": ["[logprobs]"], "output": ["<think>x</think>", "ok"]},
    {"name": "other", "output": ["Hello", " there."]},
]
BEGUN = [{"role": "user", "content": "[story]"}, {"role": "assistant", "content": "Once upon"}]
CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}
SERVER = partial(serve, SCRIPT)


def ask(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def create(client: openai.OpenAI, messages: Any, *, extra: dict[str, Any] | None = None, **more: Any) -> Any:
    return client.chat.completions.create(model="scripted", messages=messages, extra_body=extra, **more)


def test_echo_repeats_the_continued_message(client: openai.OpenAI) -> None:
    [choice] = create(client, BEGUN, extra=CONTINUE).choices
    assert choice.message.content == " a time."
    [choice] = create(client, BEGUN, extra=CONTINUE | {"echo": True}).choices
    assert choice.message.content == "Once upon a time."
    chunks = list(create(client, BEGUN, extra=CONTINUE | {"echo": True}, stream=True, n=2))
    for index in range(2):
        parts = [part for chunk in chunks for part in chunk.choices if part.index == index]
        assert "".join(part.delta.content or "" for part in parts) == "Once upon a time."
        assert [part.delta.role for part in parts if part.delta.role] == ["assistant"]


def test_continued_message_ends_the_prompt(client: openai.OpenAI) -> None:
    reply = create(client, BEGUN, extra=CONTINUE | {"return_token_ids": True})
    text = bytes_format("hermes").decode(reply.prompt_token_ids)
    assert text.endswith("<|im_start|>assistant\nOnce upon")


def test_token_ids_are_returned_on_request(client: openai.OpenAI) -> None:
    reply = create(client, ask("hi"), extra={"return_token_ids": True}, n=2)
    assert len(reply.prompt_token_ids) == reply.usage.prompt_tokens
    for choice in reply.choices:
        assert bytes_format("hermes").decode(choice.token_ids).removesuffix("<|im_end|>") == "Hello there."
    assert not hasattr(create(client, ask("hi")), "prompt_token_ids")


def test_include_stop_string_in_output(client: openai.OpenAI) -> None:
    [choice] = create(client, ask("[stop]"), stop=[" tw"]).choices
    assert (choice.message.content, choice.stop_reason) == ("one", " tw")
    extra = {"include_stop_str_in_output": True}
    [choice] = create(client, ask("[stop]"), stop=[" tw"], extra=extra).choices
    assert choice.message.content == "one tw"
    chunks = list(create(client, ask("[stop]"), stop=[" tw"], extra=extra, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "one tw"
    assert chunks[-1].choices[0].stop_reason == " tw"


def test_stop_reason_names_the_stop_token_of_the_request(client: openai.OpenAI) -> None:
    [token] = bytes_format("hermes").encode("w")
    [choice] = create(client, ask("[stop]"), extra={"stop_token_ids": [token]}).choices
    assert choice.stop_reason == token and choice.finish_reason == "stop"
    assert create(client, ask("[stop]")).choices[0].stop_reason is None


def test_tokens_are_named_by_their_ids(client: openai.OpenAI) -> None:
    more: dict[str, Any] = {"logprobs": True, "top_logprobs": 1}
    extra = {"return_tokens_as_token_ids": True}
    [choice] = create(client, ask("[logprobs]"), extra=extra, **more).choices
    expected = [f"token_id:{token}" for token in bytes_format("hermes").encode("ok")]
    assert [entry.token for entry in choice.logprobs.content] == expected
    assert all(entry.top_logprobs[0].token.startswith("token_id:") for entry in choice.logprobs.content)
    chunks = list(create(client, ask("[logprobs]"), extra=extra, stream=True, **more))
    scored = [part.logprobs.content for chunk in chunks for part in chunk.choices if part.logprobs]
    assert [entry.token for entries in scored for entry in entries] == expected


def test_prompt_logprobs_have_an_entry_for_each_token(client: openai.OpenAI) -> None:
    reply = create(client, ask("hi"), extra={"prompt_logprobs": 1, "return_token_ids": True})
    assert len(reply.prompt_logprobs) == reply.usage.prompt_tokens and reply.prompt_logprobs[0] is None
    for token, candidates in zip(reply.prompt_token_ids[1:], reply.prompt_logprobs[1:], strict=True):
        assert str(token) in candidates and candidates[str(token)]["logprob"] <= 0


def test_best_choices_are_returned_and_all_are_counted(client: openai.OpenAI) -> None:
    reply = create(client, ask("hi"), extra={"best_of": 3, "return_token_ids": True}, n=2)
    assert [choice.index for choice in reply.choices] == [0, 1]
    assert reply.usage.completion_tokens == 3 * len(reply.choices[0].token_ids)
    assert all(choice.logprobs is None for choice in reply.choices)


def test_request_id_is_part_of_the_id(client: openai.OpenAI) -> None:
    assert create(client, ask("hi"), extra={"request_id": "mine"}).id == "chatcmpl-mine"
    assert {chunk.id for chunk in create(client, ask("hi"), extra={"request_id": "mine"}, stream=True)} == {
        "chatcmpl-mine"
    }


def test_prompt_is_truncated_at_its_beginning(client: openai.OpenAI) -> None:
    extra = {"truncate_prompt_tokens": 12, "return_token_ids": True}
    reply = create(client, ask("hi"), extra=extra)
    assert reply.usage.prompt_tokens == 12
    assert reply.prompt_token_ids == create(client, ask("hi"), extra={"return_token_ids": True}).prompt_token_ids[-12:]


def test_prompt_that_was_truncated_is_not_part_of_the_history(client: openai.OpenAI) -> None:
    """The history restores generated tokens in later prompts, which must not lose their beginning."""
    create(client, ask("hi"), extra={"truncate_prompt_tokens": 12})
    messages = [*ask("hi"), {"role": "assistant", "content": "Hello there."}, *ask("more")]
    full = create(client, messages, extra={"return_token_ids": True}).prompt_token_ids
    assert bytes_format("hermes").decode(full).startswith("<|im_start|>user\nhi<|im_end|>\n")


def test_special_tokens_are_text_where_the_dialect_has_no_calls(start_server: StartServer) -> None:
    server = start_server(partial(scripted_registry, SCRIPT, dialect="plain"))
    with open_sdk(server) as (plain, _):
        extra = {"skip_special_tokens": False, "ignore_eos": True}
        [choice] = create(plain, ask("[special]"), extra=extra).choices
        assert choice.message.content.startswith("a<|endoftext|>b")
        [choice] = create(plain, ask("[special]"), extra={"ignore_eos": True}).choices
        assert choice.message.content == "ab"


@pytest.mark.parametrize("settings", [{}, {"trust_request_chat_template": True}])
def test_template_of_the_request_is_used_only_with_the_flag(
    start_server: StartServer, settings: dict[str, Any]
) -> None:
    server = start_server(SCRIPT, **settings)
    template = "{% for m in messages %}<{{ m.content }}>{% endfor %}{{ mood }}"
    body = {"model": "scripted", "messages": ask("hi"), "chat_template": template}
    reply = post(
        f"{server.url}/chat/completions",
        json=body | {"chat_template_kwargs": {"mood": "!"}, "return_token_ids": True},
    )
    if settings:
        assert bytes(reply.json()["prompt_token_ids"]) == b"<hi>!"
        broken = post(f"{server.url}/chat/completions", json=body | {"chat_template": "{% for"})
        assert broken.status_code == 400 and broken.json()["error"]["param"] == "chat_template"
        assert json.loads(post(f"{server.root}/tokenize", json=body).content)["tokens"] == list(b"<hi>")
    else:
        error = reply.json()["error"]
        assert (reply.status_code, error["param"]) == (400, "chat_template")
        assert "--trust-request-chat-template" in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"chat_template_kwargs": {"mood": 1}}, "chat_template_kwargs.mood"),
        ({"documents": [{"text": "a"}]}, "documents"),
        ({"skip_special_tokens": False}, "skip_special_tokens"),
        ({"continue_final_message": True}, "continue_final_message"),
    ],
)
def test_field_that_the_model_would_ignore_is_refused_by_name(
    client: openai.OpenAI, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        create(client, ask("hi"), extra=fields)
    assert refused.value.param == param
