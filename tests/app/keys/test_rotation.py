"""Keys with owners: a new key reads what the old one stored; models, roles and expiry bind a key on every API."""

from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon.app.keys.key_file import parse_key_file, read_key_file
from antiphon.app.options.api_keys import ApiKey, key_digest, plain_key
from antiphon.app.registry.model_registry import ModelRegistry
from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.client import ProcessEngine
from antiphon.engine.scheduler.prefix_cache import MIN_PREFIX_TOKENS
from antiphon.harmony.detection.detect import load_format
from tests.codex.embedded_registry import KEEPING_TEMPLATE, make_registry, needs_weights
from tests.conftest import StartServer
from tests.engine.threaded_engine import ThreadWorker
from tests.serving import RunningServer, scripted_registry, serve

SCRIPT: list[dict[str, Any]] = [{"name": "any", "output": ["<think>\nThink.\n</think>\n\nHello."]}]
OLD, NEW, OTHER = "sk-old", "sk-new", "sk-other"


def parse(text: str) -> tuple[ApiKey, ...]:
    return parse_key_file(text, Path("keys.toml"))


def client(server: RunningServer, key: str) -> httpx.Client:
    return httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {key}"}, timeout=60)


def store_everything(old: httpx.Client) -> dict[str, Any]:
    """Stores one object of each kind with a key. Returns their paths, and an encrypted reasoning item."""
    body = {"model": "scripted", "input": "Hi", "include": ["reasoning.encrypted_content"], "store": True}
    response = old.post("/responses", json=body).json()
    chat = old.post(
        "/chat/completions", json={"model": "scripted", "messages": [{"role": "user", "content": "Hi"}], "store": True}
    ).json()
    conversation = old.post("/conversations", json={}).json()
    file = old.post("/files", data={"purpose": "user_data"}, files={"file": ("a.txt", b"abc", "text/plain")}).json()
    return {
        "paths": [
            f"/responses/{response['id']}",
            f"/chat/completions/{chat['id']}",
            f"/conversations/{conversation['id']}",
            f"/files/{file['id']}",
        ],
        "response": response["id"],
        "reasoning": response["output"][0],
    }


@pytest.mark.parametrize("file_store", [False, True])
def test_new_key_uses_what_the_old_one_stored(start_server: StartServer, tmp_path: Path, file_store: bool) -> None:
    settings = {"store_file": tmp_path / "store.db"} if file_store else {}
    keys = parse(
        f'[[key]]\nowner = "a"\nkey = "{OLD}"\n[[key]]\nowner = "a"\nkey = "{NEW}"\n[[key]]\nowner = "b"\nkey = "{OTHER}"'
    )
    server = start_server(SCRIPT, api_keys=keys, **settings)
    with client(server, OLD) as old, client(server, NEW) as new, client(server, OTHER) as other:
        check_rotation(store_everything(old), new, other)


def test_named_owner_takes_over_what_a_plain_key_stored(start_server: StartServer, tmp_path: Path) -> None:
    stored_in = tmp_path / "store.db"
    server = start_server(SCRIPT, api_keys=(OLD,), store_file=stored_in)
    with client(server, OLD) as old:
        stored = store_everything(old)
    server.stop()
    digest = key_digest(OLD).hex()
    keys = parse(
        f'[[key]]\nowner = "a"\nkey = "{NEW}"\nowner_digest = "{digest}"\n[[key]]\nowner = "b"\nkey = "{OTHER}"'
    )
    server = start_server(SCRIPT, api_keys=keys, store_file=stored_in)
    with client(server, NEW) as new, client(server, OTHER) as other:
        check_rotation(stored, new, other)
    assert httpx.get(f"{server.url}/models", headers={"authorization": f"Bearer {OLD}"}).status_code == 401


def check_rotation(stored: dict[str, Any], new: httpx.Client, other: httpx.Client) -> None:
    for path in stored["paths"]:
        assert new.get(path).status_code == 200, path
        assert other.get(path).status_code == 404, path
    turn = {"model": "scripted", "input": "More", "previous_response_id": stored["response"]}
    assert new.post("/responses", json=turn).status_code == 200
    unknown = other.post("/responses", json=turn)
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (400, "previous_response_not_found")
    sealed = {"model": "scripted", "store": False, "input": [stored["reasoning"], {"role": "user", "content": "More"}]}
    assert new.post("/responses", json=sealed).status_code == 200
    refused = other.post("/responses", json=sealed)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_encrypted_content")


LONG_TEXT = "The harbour of Oslo has nine quays, and each of them has a number. " * 6


@needs_weights
def test_new_key_continues_from_the_cached_prefix_of_the_old_one(tmp_path: Path) -> None:
    """After a reload that takes the old key away. The same text of another owner is computed again."""
    pytest.importorskip("torch")
    path = tmp_path / "keys.toml"
    path.write_text(f'[[key]]\nowner = "a"\nkey = "{OLD}"\n[[key]]\nowner = "b"\nkey = "{OTHER}"', encoding="utf-8")
    engine = ProcessEngine(MODEL_DIR, EngineOptions(device="cpu", threads=1), spawn=ThreadWorker)
    registry = make_registry(engine, load_format(MODEL_DIR, "hermes", KEEPING_TEMPLATE).format)
    turn = {"model": "antiphon", "input": LONG_TEXT, "max_output_tokens": 8, "temperature": 0}
    with serve(registry, file_keys=read_key_file(path), key_file=path) as server:
        with client(server, OLD) as old:
            first = old.post("/responses", json=turn).json()
        path.write_text(path.read_text(encoding="utf-8").replace(OLD, NEW), encoding="utf-8")
        assert httpx.post(f"{server.url}/admin/reload", headers=control_headers(server), timeout=60).status_code == 200
        with client(server, OLD) as old, client(server, NEW) as new, client(server, OTHER) as other:
            assert old.get("/models").status_code == 401
            follow_up = {**turn, "input": "Go on.", "previous_response_id": first["id"]}
            continued = new.post("/responses", json=follow_up).json()
            again = new.post("/responses", json=turn).json()
            foreign = other.post("/responses", json=turn).json()
    num_input = first["usage"]["input_tokens"]
    assert cached_tokens(first) == 0 and num_input > 100
    for response in (continued, again):
        assert num_input - MIN_PREFIX_TOKENS <= cached_tokens(response) < response["usage"]["input_tokens"]
    assert (cached_tokens(foreign), foreign["usage"]["input_tokens"]) == (0, num_input)


def control_headers(server: RunningServer) -> dict[str, str]:
    return {"authorization": f"Bearer {server.context.keys.control_key}"}


def cached_tokens(response: dict[str, Any]) -> int:
    assert response["status"] in ("completed", "incomplete"), response
    return int(response["usage"]["input_tokens_details"]["cached_tokens"])


def two_models() -> ModelRegistry:
    first, second = scripted_registry(SCRIPT, names=("coder", "code")), scripted_registry(SCRIPT, names=("small",))
    return ModelRegistry([*first.served, *second.served])


@pytest.fixture
def limited(start_server: StartServer) -> RunningServer:
    keys = parse(f'[[key]]\nowner = "a"\nkey = "{OLD}"\nmodels = ["small"]\n[[key]]\nowner = "a"\nkey = "{NEW}"')
    return start_server(two_models, api_keys=keys)


MESSAGES = [{"role": "user", "content": "Hi"}]
REQUESTS: dict[str, dict[str, Any]] = {
    "/responses": {"input": "Hi"},
    "/responses/input_tokens": {"input": "Hi"},
    "/responses/compact": {"input": "Hi"},
    "/chat/completions": {"messages": MESSAGES},
    "/completions": {"prompt": "Hi"},
    "/messages": {"messages": MESSAGES, "max_tokens": 5},
    "/messages/count_tokens": {"messages": MESSAGES},
}


@pytest.mark.parametrize("path", REQUESTS)
def test_model_that_the_key_may_not_use_does_not_exist_for_it(limited: RunningServer, path: str) -> None:
    with client(limited, OLD) as restricted, client(limited, NEW) as free:
        for name in ("coder", "code"):
            reply = restricted.post(path, json={"model": name, **REQUESTS[path]})
            unknown = restricted.post(path, json={"model": "none", **REQUESTS[path]})
            assert reply.status_code == 404
            bodies = [each.text.replace(name, "NAME").replace("none", "NAME") for each in (reply, unknown)]
            bodies = [body.partition('"request_id"')[0] for body in bodies]
            assert bodies[0] == bodies[1], "it tells that the model exists"
            assert free.post(path, json={"model": name, **REQUESTS[path]}).status_code == 200
        assert restricted.post(path, json={"model": "small", **REQUESTS[path]}).status_code == 200


@pytest.mark.parametrize("path", ["/models", "/models?client_version=1.0.0", "/../api/tags"])
def test_lists_of_models_have_those_of_the_key_only(limited: RunningServer, path: str) -> None:
    with client(limited, OLD) as restricted, client(limited, NEW) as free:
        root = limited.root if path.startswith("/..") else limited.url
        shown = restricted.get(f"{root}{path.removeprefix('/..')}").text
        assert "small" in shown and "coder" not in shown
        assert "coder" in free.get(f"{root}{path.removeprefix('/..')}").text
        assert restricted.get("/models/coder").status_code == 404
        assert restricted.get("/models/small").status_code == 200


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_tokenizer_of_another_model_is_not_used(limited: RunningServer, path: str) -> None:
    body: dict[str, Any] = {"prompt": "Hi"} if path == "/tokenize" else {"tokens": [1]}
    with client(limited, OLD) as restricted:
        assert restricted.post(f"{limited.root}{path}", json={"model": "coder", **body}).status_code == 404
        assert restricted.post(f"{limited.root}{path}", json=body).status_code == 200, "the first of the key's models"


def test_expired_key_is_refused(start_server: StartServer) -> None:
    keys = parse(f'[[key]]\nkey = "{OLD}"\nexpires = 2020-01-01\n[[key]]\nkey = "{NEW}"\nexpires = 2999-01-01')
    server = start_server(SCRIPT, api_keys=keys)
    with client(server, OLD) as old, client(server, NEW) as new:
        reply = old.get("/models")
        assert reply.status_code == 401
        assert reply.json()["error"] == {
            "message": "This API key has expired.",
            "type": "invalid_request_error",
            "param": None,
            "code": "invalid_api_key",
        }
        assert new.get("/models").status_code == 200


@pytest.mark.parametrize(
    ("keys", "key", "status"),
    [
        (f'[[key]]\nkey = "{OLD}"', OLD, 403),
        (f'[[key]]\nkey = "{OLD}"\nrole = "operator"', OLD, 200),
        (f'[[key]]\nkey = "{OLD}"\nrole = "operator"', "wrong", 401),
        (f'[[key]]\nkey = "{OLD}"', "", 200),
        ("", "", 200),
        ("", "wrong", 403),
    ],
)
def test_operators_only_act_on_the_server(start_server: StartServer, keys: str, key: str, status: int) -> None:
    """An empty key stands for that of the runtime file."""
    server = start_server(SCRIPT, api_keys=parse(keys) if keys else ())
    with client(server, key or server.context.keys.control_key) as caller:
        reply = caller.post("/admin/reload")
        assert reply.status_code == status, reply.text
        if status == 403:
            assert reply.json()["error"]["code"] == "insufficient_permissions"
        refused = partial(caller.post, "/admin/reload")
        assert refused(headers={"sec-fetch-site": "cross-site"}).status_code in (401, 403)
        assert "access-control-allow-origin" not in refused(headers={"origin": server.root}).headers


def test_key_of_the_runtime_file_opens_nothing_else(start_server: StartServer) -> None:
    server = start_server(SCRIPT, api_keys=(plain_key(key_digest(OLD)),))
    with client(server, server.context.keys.control_key) as caller:
        assert caller.get("/models").status_code == 401
        assert caller.get("/inspect/turns").status_code == 401
