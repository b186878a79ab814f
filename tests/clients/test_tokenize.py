"""`/tokenize`, `/detokenize`, `/version` and `/load` over a real socket."""

import json
from functools import partial
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from antiphon import __version__
from antiphon.harmony.detection.detect import bytes_format
from antiphon.harmony.tokens.vocabulary import TokenizerVocabulary
from tests.clients.sdk_helpers import get, post, wait_until
from tests.conftest import StartServer
from tests.serving import RunningServer, scripted_registry, serve

REPLIES = [
    {"name": "stalls", "output": ["Hm", {"stall": True}], "when": ["[stall]"]},
    {"name": "any", "output": ["Yes."]},
]
SERVER = partial(serve, partial(scripted_registry, REPLIES, names=("org/model", "alias")))
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Héllo <|im_end|>"}]


def test_prompt_is_tokenized_and_detokenized(server: RunningServer) -> None:
    text = "Héllo<|im_end|> 👋"
    reply = post(f"{server.root}/tokenize", json={"model": "alias", "prompt": text}).json()
    assert reply["tokens"] == bytes_format("hermes").encode(text)
    assert (reply["count"], reply["token_strs"]) == (len(reply["tokens"]), None)
    assert reply["max_model_len"] == server.engine.info.max_model_len
    back = post(f"{server.root}/detokenize", json={"tokens": reply["tokens"]})
    assert back.json() == {"prompt": text}


def test_token_texts_are_returned_on_request(server: RunningServer) -> None:
    reply = post(f"{server.root}/tokenize", json={"prompt": "ab<|im_end|>", "return_token_strs": True}).json()
    assert reply["token_strs"] == ["a", "b", "<|im_end|>"]


def test_chat_has_as_many_tokens_as_its_completion_reports(server: RunningServer) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    for fields in ({}, {"tools": tools}):
        reply = post(f"{server.root}/tokenize", json={"messages": CHAT, **fields}).json()
        completion = post(f"{server.url}/chat/completions", json={"model": "alias", "messages": CHAT, **fields}).json()
        assert reply["count"] == len(reply["tokens"]) == completion["usage"]["prompt_tokens"]
    text = post(f"{server.root}/detokenize", json={"tokens": reply["tokens"]}).json()["prompt"]
    assert text.endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({"add_generation_prompt": False}, "Sure<|im_end|>\n"),
        ({"continue_final_message": True}, "<|im_start|>assistant\nSure"),
        ({"add_special_tokens": True}, "<|im_start|>assistant\n"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "<think>\n\n</think>\n\n"),
    ],
)
def test_chat_has_the_prompt_that_its_fields_ask_for(server: RunningServer, fields: dict[str, Any], end: str) -> None:
    body = {"messages": [*CHAT, {"role": "assistant", "content": "Sure"}], **fields}
    tokens = post(f"{server.root}/tokenize", json=body).json()["tokens"]
    assert post(f"{server.root}/detokenize", json={"tokens": tokens}).json()["prompt"].endswith(end)
    completion = post(f"{server.url}/chat/completions", json={"model": "alias", **body}).json()
    assert completion["usage"]["prompt_tokens"] == len(tokens)


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "param"),
    [
        ("/tokenize", {}, 400, "missing_required_parameter", "prompt"),
        ("/tokenize", {"prompt": "a", "messages": CHAT}, 400, "invalid_value", "prompt"),
        ("/tokenize", {"prompt": 5}, 400, "invalid_type", "prompt"),
        ("/tokenize", {"prompt": "a", "model": "gpt-9"}, 404, "model_not_found", "model"),
        ("/tokenize", {"prompt": "a", "model": 5}, 400, "invalid_type", "model"),
        ("/tokenize", {"prompt": "a", "wisdom": 1}, 400, "unknown_parameter", "wisdom"),
        ("/tokenize", {"messages": [{"role": "cat", "content": "a"}]}, 400, "invalid_value", "messages[0].role"),
        ("/tokenize", {"messages": CHAT, "continue_final_message": True}, 400, "invalid_value", "continue_final_message"),
        ("/tokenize", {"messages": CHAT, "documents": [{"a": "b"}]}, 400, "unsupported_parameter", "documents"),
        ("/tokenize", {"messages": CHAT, "chat_template_kwargs": {"x": 1}}, 400, "unsupported_parameter", "chat_template_kwargs.x"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": False}, 400, "invalid_value", "add_generation_prompt"),
        ("/tokenize", {"messages": CHAT, "chat_template": "x"}, 400, "unsupported_parameter", "chat_template"),
        ("/detokenize", {}, 400, "missing_required_parameter", "tokens"),
        ("/detokenize", {"tokens": ["a"]}, 400, "invalid_type", "tokens[0]"),
        ("/detokenize", {"tokens": [1, -1]}, 400, "integer_below_min_value", "tokens[1]"),
        ("/detokenize", {"tokens": [262_143, 262_144]}, 400, "invalid_value", "tokens[1]"),
    ],
)  # fmt: skip
def test_invalid_request_names_its_field(
    server: RunningServer, path: str, body: Any, status: int, code: str, param: str
) -> None:
    reply = post(server.root + path, json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (status, code, param)


def test_version_is_that_of_the_package(server: RunningServer) -> None:
    assert get(f"{server.root}/version").json() == {"version": __version__}


def test_load_counts_running_turns(server: RunningServer) -> None:
    def read_load() -> Any:
        return get(f"{server.root}/load").json()["server_load"]

    assert wait_until(10, lambda: read_load() == 0)
    body = {"model": "alias", "input": "[stall]", "stream": True, "store": False}
    with httpx.stream("POST", f"{server.url}/responses", json=body) as reply:
        lines = reply.iter_lines()  # the stream is closed when this iterator is deleted
        assert next(lines) and read_load() == 1
    assert wait_until(10, lambda: read_load() == 0)


def test_endpoints_require_the_api_key(start_server: StartServer) -> None:
    server = start_server(REPLIES, api_keys=("sk-one",))
    for reply in (
        get(f"{server.root}/version"),
        get(f"{server.root}/load"),
        post(f"{server.root}/tokenize", json={"prompt": "a"}),
        post(f"{server.root}/detokenize", json={"tokens": [1]}),
    ):
        assert reply.status_code == 401


def test_special_tokens_are_those_of_the_tokenizer() -> None:
    tokenizer = Tokenizer(models.WordLevel({"<s>": 0, "a": 1, "</s>": 2}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    state = json.loads(tokenizer.to_str()) | {
        "decoder": {"type": "ByteLevel"} | dict.fromkeys(("add_prefix_space", "trim_offsets", "use_regex"), True)
    }
    vocabulary = TokenizerVocabulary(Tokenizer.from_str(json.dumps(state)))
    assert vocabulary.encode("a a") == [1, 1]
    assert vocabulary.encode("a a", add_special_tokens=True) == [0, 1, 1, 2]
