"""Lists of models for OpenAI's clients, Codex and Ollama's clients."""

from functools import partial

import httpx
import pytest

from antiphon.engine.protocol import EngineInfo, Sampling
from tests.clients.sdk_helpers import get, post
from tests.conftest import StartServer
from tests.serving import RunningServer, scripted_registry, serve

SERVER = partial(serve, partial(scripted_registry, [{"name": "any", "output": ["Yes."]}], names=("org/model", "alias")))


def test_every_list_has_every_model_name(server: RunningServer) -> None:
    reply = get(f"{server.url}/models", params={"client_version": "0.169.0"}).json()
    names = ["org/model", "alias"]
    assert [model["id"] for model in reply["data"]] == names and reply["object"] == "list"
    assert [model["slug"] for model in reply["models"]] == names
    tags = get(f"{server.root}/api/tags").json()["models"]
    assert [model["name"] for model in tags] == [model["model"] for model in tags] == names
    assert int(get(f"{server.root}/api/version").json()["version"].split(".")[1]) >= 13


@pytest.mark.parametrize("key", ["model", "name"])
@pytest.mark.parametrize("name", ["org/model", "alias"])
def test_show_describes_a_model_to_ollama_clients(server: RunningServer, key: str, name: str) -> None:
    reply = post(f"{server.root}/api/show", json={key: name, "verbose": True})
    assert reply.status_code == 200
    model = reply.json()
    (tag,) = (tag for tag in get(f"{server.root}/api/tags").json()["models"] if tag["name"] == name)
    assert (model["details"], model["modified_at"]) == (tag["details"], tag["modified_at"])
    architecture = model["model_info"]["general.architecture"]
    assert architecture and model["model_info"][f"{architecture}.context_length"] == server.engine.info.max_model_len
    assert model["capabilities"] == ["completion", "tools", "thinking"]
    assert model["template"] == model["parameters"] == ""


@pytest.mark.parametrize(
    ("dialect", "capabilities"),
    [
        ("plain", ["completion", "thinking"]),
        ("gpt-oss", ["completion", "tools", "thinking"]),
        ("llama3", ["completion", "tools"]),
    ],
)
def test_show_names_only_what_the_model_can_do(
    start_server: StartServer, dialect: str, capabilities: list[str]
) -> None:
    sampling = Sampling(temperature=0.6, top_k=20, top_p=0.95)
    info = EngineInfo(max_model_len=4096, vocab_size=262_144, default_sampling=sampling, architecture="qwen3")
    server = start_server(scripted_registry([{"name": "any", "output": ["Yes."]}], dialect=dialect, info=info))
    model = post(f"{server.root}/api/show", json={"model": "scripted"}).json()
    assert model["capabilities"] == capabilities
    assert model["model_info"] == {"general.architecture": "qwen3", "qwen3.context_length": 4096}
    assert model["parameters"].split("\n") == ["temperature 0.6", "top_k 20", "top_p 0.95"]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b'{"model": "other"}', 404, "model 'other' not found"),
        (b'{"model": 3}', 400, "model is required"),
        (b"{}", 400, "model is required"),
        (b"{", 400, "JSON"),
    ],
)
def test_show_answers_errors_as_ollama_does(server: RunningServer, body: bytes, status: int, message: str) -> None:
    reply = httpx.post(f"{server.root}/api/show", content=body, headers={"content-type": "application/json"})
    assert reply.status_code == status and message in reply.json()["error"]


def test_codex_list_has_the_context_window_of_the_engine(server: RunningServer) -> None:
    for model in get(f"{server.url}/models").json()["models"]:
        assert model["context_window"] == server.engine.info.max_model_len
        assert model["truncation_policy"]["limit"] <= model["context_window"]
        assert model["apply_patch_tool_type"] == "freeform" and model["supports_reasoning_summaries"] is False
    with serve(
        scripted_registry([{"name": "any", "output": ["Yes."]}]), reasoning_output="summary"
    ) as server_with_summaries:
        assert get(f"{server_with_summaries.url}/models").json()["models"][0]["supports_reasoning_summaries"] is True


def test_model_lists_require_the_api_key() -> None:
    with serve(scripted_registry([{"name": "any", "output": ["Yes."]}]), api_keys=("sk-one",)) as server:
        assert post(f"{server.root}/api/show", json={"model": "scripted"}).status_code == 401
        for path in ("/v1/models", "/api/tags", "/api/version"):
            assert get(server.root + path).status_code == 401
            assert get(server.root + path, headers={"authorization": "Bearer sk-one"}).status_code == 200


def test_local_provider_probe_is_answered(server: RunningServer) -> None:
    """The probe has an empty input, asks for one token, and disconnects."""
    reply = post(f"{server.url}/responses", json={"model": "alias", "input": "", "max_output_tokens": 1})
    assert reply.status_code == 200 and reply.json()["status"] == "incomplete"
