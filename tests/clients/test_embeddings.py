"""Embeddings, reranking and scores over a real socket, read by the openai SDK.

The tiny models run in a worker process or, since importing torch takes seconds, in threads.
"""

import base64
import json
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from msgspec.structs import replace

from antiphon.app.assembly.encoders import create_encoder
from antiphon.app.encoders import jobs
from antiphon.app.registry.model_registry import ModelRegistry
from antiphon.engine.embeddings.worker import build_embedding_core, build_rerank_core
from antiphon.engine.options import EngineOptions
from tests.clients.node_install import run_node_script
from tests.clients.sdk_helpers import get, open_sdk, post
from tests.engine.embeddings import tiny_repositories as tiny
from tests.engine.threaded_engine import build_threaded_engine
from tests.serving import RunningServer, scripted_registry, serve

OPTIONS = EngineOptions(threads=1, device="cpu")
QUERY = "a red cat"


class TinyModels:
    """Folders of the served models."""

    def __init__(self, folder: Path) -> None:
        self.bert, self.qwen3, self.reranker = folder / "bert", folder / "qwen3", folder / "reranker"
        tiny.write_modules(tiny.save_bert(self.bert), ("mean",), "Normalize", max_seq_length=40)
        tiny.write_modules(tiny.save_qwen3(self.qwen3), ("lasttoken",), "Normalize")
        tiny.save_cross_encoder(self.reranker)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    return TinyModels(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def server(folders: TinyModels) -> Iterator[RunningServer]:
    threaded = {
        "qwen3": partial(build_embedding_core, folders.qwen3, OPTIONS),
        "reranker": partial(build_rerank_core, folders.reranker, OPTIONS),
    }
    qwen3 = create_encoder(folders.qwen3, "embedding", "qwen3", OPTIONS)
    reranker = create_encoder(folders.reranker, "rerank", "reranker", OPTIONS)
    encoders = [
        create_encoder(folders.bert, "embedding", "bert", OPTIONS),
        *(replace(model, engine=build_threaded_engine(threaded[model.names[0]])) for model in (qwen3, reranker)),
    ]
    chat = scripted_registry([{"name": "any", "output": ["Yes."]}])
    with serve(ModelRegistry(chat.served, encoders)) as running:
        yield running


def unit(vector: torch.Tensor) -> torch.Tensor:
    return vector / vector.norm()


def assert_same_direction(actual: list[float], expected: torch.Tensor) -> None:
    assert len(actual) == len(expected)
    assert float(torch.cosine_similarity(torch.tensor(actual), expected, dim=0)) >= 0.9999


def test_texts_become_the_vectors_of_transformers(server: RunningServer, folders: TinyModels) -> None:
    with open_sdk(server) as (client, _):
        for name, folder, is_decoder in (("bert", folders.bert, False), ("qwen3", folders.qwen3, True)):
            reply = client.embeddings.create(model=name, input=tiny.TEXTS)
            ids = [tiny.token_ids(text, decoder=is_decoder) for text in tiny.TEXTS]
            num_tokens = sum(map(len, ids))
            assert (reply.usage.prompt_tokens, reply.usage.total_tokens) == (num_tokens, num_tokens)
            assert (reply.model, reply.object) == (name, "list")
            assert [entry.index for entry in reply.data] == list(range(len(tiny.TEXTS)))
            for entry, each in zip(reply.data, ids, strict=True):
                hidden = tiny.hidden_states(folder, each)
                assert_same_direction(entry.embedding, hidden[-1] if is_decoder else hidden.mean(0))


def test_base64_and_float_are_the_same_numbers(server: RunningServer) -> None:
    with open_sdk(server) as (client, replies):
        default = client.embeddings.create(model="bert", input=tiny.TEXTS)  # the SDK asks for base64
        assert b'"embedding":"' in replies.last()
        floats = client.embeddings.create(model="bert", input=tiny.TEXTS, encoding_format="float")
        assert b'"embedding":[' in replies.last()
        encoded: Any = client.embeddings.create(model="bert", input=tiny.TEXTS, encoding_format="base64")
    numbers = [entry.embedding for entry in floats.data]
    assert [entry.embedding for entry in default.data] == numbers
    decoded = [struct.unpack("<32f", base64.b64decode(entry.embedding)) for entry in encoded.data]
    assert [list(vector) for vector in decoded] == numbers


def test_node_sdk_reads_the_same_numbers(server: RunningServer, node: Path, tmp_path: Path) -> None:
    task = tmp_path / "task.json"
    task.write_text(json.dumps({"url": server.url, "model": "bert", "texts": tiny.TEXTS}), encoding="utf-8")
    result = run_node_script(node, "embeddings.mjs", task)
    with open_sdk(server) as (client, _):
        reply = client.embeddings.create(model="bert", input=tiny.TEXTS)
    assert result["default"] == result["floats"] == [entry.embedding for entry in reply.data]
    assert result["error"] == {"kind": "BadRequestError", "code": "empty_string", "param": "input[1]"}


def test_every_form_of_input_gives_the_same_vector(server: RunningServer) -> None:
    text, ids = tiny.TEXTS[0], tiny.token_ids(tiny.TEXTS[0])
    with open_sdk(server) as (client, _):
        forms: list[Any] = [text, [text], ids, [ids]]
        replies = [client.embeddings.create(model="bert", input=form) for form in forms]
    assert all(reply.data[0].embedding == replies[0].data[0].embedding for reply in replies)
    assert {reply.usage.prompt_tokens for reply in replies} == {len(ids)}


def test_dimensions_are_cut_and_normalized_again(server: RunningServer) -> None:
    with open_sdk(server) as (client, _):
        whole = client.embeddings.create(model="bert", input="a cat").data[0].embedding
        cut = client.embeddings.create(model="bert", input="a cat", dimensions=5).data[0].embedding
        raw = client.embeddings.create(model="bert", input="a cat", extra_body={"normalize": False}).data[0].embedding
    assert torch.allclose(torch.tensor(cut), unit(torch.tensor(whole[:5])), atol=1e-6)
    assert torch.tensor(whole).norm() == pytest.approx(1) and torch.tensor(raw).norm() > 1.1


@pytest.mark.parametrize(("limit", "num_tokens"), [(-1, 40), (5, 5)])
def test_long_input_is_cut_on_request(server: RunningServer, folders: TinyModels, limit: int, num_tokens: int) -> None:
    text = "the cat ran on " * 30
    with open_sdk(server) as (client, _):
        reply = client.embeddings.create(model="bert", input=[text], extra_body={"truncate_prompt_tokens": limit})
    assert reply.usage.prompt_tokens == num_tokens
    ids = tiny.token_ids(text)
    hidden = tiny.hidden_states(folders.bert, [*ids[: num_tokens - 1], ids[-1]])
    assert_same_direction(reply.data[0].embedding, hidden.mean(0))


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"input": ["a", "the cat " * 30]}, "context_length_exceeded", "input[1]"),
        ({"input": "the cat " * 30}, "context_length_exceeded", "input"),
        ({"input": [[2] * 41]}, "context_length_exceeded", "input[0]"),
        ({"input": [[2, 3], [2, 18]]}, "invalid_value", "input[1][1]"),
        ({"input": [2, 18]}, "invalid_value", "input[1]"),
        ({"input": []}, "empty_array", "input"),
        ({"input": ""}, "empty_string", "input"),
        ({"input": ["a", ""]}, "empty_string", "input[1]"),
        ({"input": [[]]}, "empty_array", "input[0]"),
        ({"input": [[2] * 300_001]}, "max_tokens_per_request", "input"),
        ({"input": [2] * 300_001}, "max_tokens_per_request", "input"),
        ({"input": ["a"] * 2049}, "array_above_max_length", "input"),
        ({"input": ["a", 1]}, "invalid_type", "input[1]"),
        ({"input": [{"text": "a"}]}, "invalid_type", "input[0]"),
        ({"dimensions": 33}, "invalid_value", "dimensions"),
        ({"dimensions": 0}, "integer_below_min_value", "dimensions"),
        ({"encoding_format": "int8"}, "invalid_value", "encoding_format"),
        ({"extra_body": {"truncate_prompt_tokens": 41}}, "invalid_value", "truncate_prompt_tokens"),
        ({"extra_body": {"truncate_prompt_tokens": 1}}, "invalid_value", "truncate_prompt_tokens"),
        ({"extra_body": {"truncate_prompt_tokens": 0}}, "integer_below_min_value", "truncate_prompt_tokens"),
        ({"extra_body": {"truncate_prompt_tokens": -2}}, "integer_below_min_value", "truncate_prompt_tokens"),
        ({"extra_body": {"wisdom": 1}}, "unknown_parameter", "wisdom"),
        ({"model": "scripted"}, "invalid_value", "model"),
        ({"model": "reranker"}, "invalid_value", "model"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_invalid_request_names_its_field(server: RunningServer, fields: Any, code: str, param: str) -> None:
    with open_sdk(server) as (client, _), pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(**{"model": "bert", "input": "a cat", **fields})
    assert (caught.value.code, caught.value.param) == (code, param)


def test_unknown_model_is_404(server: RunningServer) -> None:
    with open_sdk(server) as (client, _), pytest.raises(openai.NotFoundError) as caught:
        client.embeddings.create(model="ada", input="a")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert "'bert', 'qwen3'" in caught.value.message


def test_missing_input_is_named(server: RunningServer) -> None:
    error = post(f"{server.url}/embeddings", json={"model": "bert"}).json()["error"]
    assert (error["code"], error["param"]) == ("missing_required_parameter", "input")


def test_too_many_tokens_in_total_are_rejected(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MAX_REQUEST_TOKENS", 200)
    for length, status in ((20, 200), (21, 400)):
        reply = post(f"{server.url}/embeddings", json={"model": "bert", "input": [[5] * length] * 10})
        assert reply.status_code == status
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == ("max_tokens_per_request", "input")


def test_models_are_listed_and_retrieved(server: RunningServer) -> None:
    with open_sdk(server) as (client, _):
        assert [model.id for model in client.models.list()] == ["scripted", "bert", "qwen3", "reranker"]
        model: Any = client.models.retrieve("bert")
    assert (model.id, model.object, model.max_model_len) == ("bert", "model", 40)
    assert [model["slug"] for model in get(f"{server.url}/models").json()["models"]] == ["scripted"]


def test_encoder_generates_no_text(server: RunningServer) -> None:
    with open_sdk(server) as (client, _), pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="bert", input="Hi")
    assert (caught.value.code, caught.value.param) == ("invalid_value", "model")
    assert "use it with the endpoint 'embeddings'" in caught.value.message


def test_texts_of_an_encoder_are_tokenized_and_detokenized(server: RunningServer) -> None:
    text = "the red fox"
    for special in (True, False):
        body = {"model": "bert", "prompt": text, "add_special_tokens": special, "return_token_strs": True}
        reply = post(f"{server.root}/tokenize", json=body).json()
        ids = tiny.token_ids(text) if special else tiny.token_ids(text)[1:-1]
        assert (reply["tokens"], reply["count"], reply["max_model_len"]) == (ids, len(ids), 40)
        assert reply["token_strs"] == (["[CLS]", *text.split(), "[SEP]"] if special else text.split())
    back = post(f"{server.root}/detokenize", json={"model": "bert", "tokens": tiny.token_ids(text)})
    assert back.json() == {"prompt": "[CLS] the red fox [SEP]"}
    chat = [{"role": "user", "content": "Hi"}]
    for fields, param in (({"messages": chat}, "messages"), ({}, "prompt")):
        error = post(f"{server.root}/tokenize", json={"model": "bert", **fields}).json()["error"]
        assert error["param"] == param


# Reranking


def expected_scores(folders: TinyModels, query: str, texts: list[str]) -> list[float]:
    logits = [tiny.pair_score(folders.reranker, query, text) for text in texts]
    return [float(score) for score in torch.sigmoid(torch.tensor(logits))]


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_documents_are_returned_by_relevance(server: RunningServer, folders: TinyModels, path: str) -> None:
    documents = [*tiny.TEXTS[:3], {"text": tiny.TEXTS[3]}, *tiny.TEXTS[4:]]
    body = {"model": "reranker", "query": QUERY, "documents": documents}
    reply = post(server.root + path, json=body).json()
    scores = expected_scores(folders, QUERY, tiny.TEXTS)
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    assert [result["index"] for result in reply["results"]] == order
    assert [result["document"] for result in reply["results"]] == [{"text": tiny.TEXTS[index]} for index in order]
    assert [result["relevance_score"] for result in reply["results"]] == pytest.approx(
        [scores[index] for index in order], abs=1e-5
    )
    num_tokens = sum(len(tiny.token_ids(QUERY)) + len(tiny.token_ids(text)) - 1 for text in tiny.TEXTS)
    assert reply["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    assert reply["id"].startswith("rerank-") and reply["model"] == "reranker"


def test_best_documents_are_returned_without_texts(server: RunningServer) -> None:
    body = {"query": QUERY, "documents": tiny.TEXTS, "top_n": 2, "return_documents": False}
    results = post(f"{server.url}/rerank", json=body).json()["results"]
    assert [sorted(result) for result in results] == [["index", "relevance_score"]] * 2


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
def test_pairs_are_scored(server: RunningServer, folders: TinyModels, path: str) -> None:
    texts = tiny.TEXTS[:3]
    reply = post(server.root + path, json={"model": "reranker", "text_1": QUERY, "text_2": texts}).json()
    assert [entry["index"] for entry in reply["data"]] == [0, 1, 2]
    expected = expected_scores(folders, QUERY, texts)
    assert [entry["score"] for entry in reply["data"]] == pytest.approx(expected, abs=1e-5)
    paired = post(server.root + path, json={"text_1": [QUERY] * 3, "text_2": texts}).json()
    assert [entry["score"] for entry in paired["data"]] == pytest.approx(expected, abs=1e-5)
    assert reply["object"] == "list" and reply["data"][0]["object"] == "score" and reply["usage"]["total_tokens"]
    single = post(server.root + path, json={"text_1": QUERY, "text_2": texts[0]}).json()
    assert [entry["score"] for entry in single["data"]] == pytest.approx(expected[:1], abs=1e-5)


@pytest.mark.parametrize(
    ("path", "body", "code", "param"),
    [
        ("/rerank", {"documents": ["a"]}, "missing_required_parameter", "query"),
        ("/rerank", {"query": "a"}, "missing_required_parameter", "documents"),
        ("/rerank", {"query": "a", "documents": []}, "empty_array", "documents"),
        ("/rerank", {"query": "a", "documents": ["a", 1]}, "invalid_type", "documents[1]"),
        ("/rerank", {"query": "a", "documents": [{}]}, "missing_required_parameter", "documents[0].text"),
        ("/rerank", {"query": "a", "documents": ["a", "cat " * 70]}, "context_length_exceeded", "documents[1]"),
        ("/rerank", {"query": "a", "documents": ["a"], "top_n": -1}, "integer_below_min_value", "top_n"),
        ("/rerank", {"query": "a", "documents": ["a"], "model": "bert"}, "invalid_value", "model"),
        ("/score", {"text_2": "a"}, "missing_required_parameter", "text_1"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "invalid_value", "text_1"),
        ("/score", {"text_1": "a", "text_2": ["a", "cat " * 70]}, "context_length_exceeded", "text_2[1]"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_invalid_pairs_name_their_field(server: RunningServer, path: str, body: Any, code: str, param: str) -> None:
    reply = post(server.url + path, json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, code, param)


def test_long_pair_is_cut_on_request(server: RunningServer) -> None:
    body = {"text_1": "cat " * 50, "text_2": "dog " * 50, "truncate_prompt_tokens": -1}
    assert post(f"{server.url}/score", json=body).json()["usage"]["total_tokens"] == 64
