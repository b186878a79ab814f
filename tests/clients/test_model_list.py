"""Lists of models for OpenAI's clients, Codex and Ollama's clients."""

from functools import partial

from tests.clients.sdk_helpers import get, post
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
        for path in ("/v1/models", "/api/tags", "/api/version"):
            assert get(server.root + path).status_code == 401
            assert get(server.root + path, headers={"authorization": "Bearer sk-one"}).status_code == 200


def test_local_provider_probe_is_answered(server: RunningServer) -> None:
    """The probe has an empty input, asks for one token, and disconnects."""
    reply = post(f"{server.url}/responses", json={"model": "alias", "input": "", "max_output_tokens": 1})
    assert reply.status_code == 200 and reply.json()["status"] in ("completed", "incomplete")
