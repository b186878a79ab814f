"""Adapters over HTTP: names of models, requests of every API, loading and unloading while turns run."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.progress import HANG_TIMEOUT_S

pytest.importorskip("torch")

from antiphon.app.adapters import updates
from antiphon.app.adapters.registration import describe_adapter
from antiphon.engine.options import LoraModule
from tests.app.server_helpers import process_engine_registry, wait_until
from tests.engine.adapters.adapter_folders import make_adapter
from tests.engine.threaded_engine import ThreadWorker
from tests.serving import RunningServer, serve

CORE_FACTORY = "tests.engine.fake_core:build_byte_model_core"
KEY = {"authorization": "Bearer sk-test"}
OTHER_KEY = {"authorization": "Bearer sk-other"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    # Only what is in `clients` may be loaded at run time.
    # The model's weights are small, so that large adapters decide its output.
    return {
        name: make_adapter(root / place / name, "bytes", seed, size=0.5)
        for seed, (place, name) in enumerate((("operator", "sql"), ("clients", "late"), ("clients", "new")))
    }


@pytest.fixture(scope="module")
def workers() -> list[ThreadWorker]:
    """The workers of the server's engine: another one after each that was killed."""
    return []


@pytest.fixture(scope="module")
def server(folders: dict[str, Path], workers: list[ThreadWorker]) -> Iterator[RunningServer]:
    def spawn(worker_socket: socket.socket) -> ThreadWorker:
        workers.append(ThreadWorker(worker_socket))
        return workers[-1]

    module = LoraModule("sql", str(folders["sql"]))
    models = process_engine_registry(CORE_FACTORY, spawn=spawn, lora_modules=(module,), allow_lora_updates=True)
    models.add_adapter(describe_adapter(models.served[0], module.name, module.path))
    settings: dict[str, Any] = {"allow_lora_updates": True, "lora_dirs": (str(folders["late"].parent),)}
    with serve(models, api_keys=("sk-test", "sk-other"), **settings) as running:
        yield running


def post(server: RunningServer, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    return httpx.post(f"{server.url}/{path}", json=body, headers={**KEY, **headers}, timeout=HANG_TIMEOUT_S)


def complete(server: RunningServer, model: str, prompt: str = "select") -> str:
    reply = post(server, "completions", {"model": model, "prompt": prompt, "max_tokens": 24, "temperature": 0})
    assert reply.status_code == 200, reply.text
    assert reply.json()["model"] == model
    return str(reply.json()["choices"][0]["text"])


def load(server: RunningServer, name: str, path: Path | str, key: dict[str, str] = KEY, **more: Any) -> httpx.Response:
    return post(server, "load_lora_adapter", {"lora_name": name, "lora_path": str(path), **more}, **key)


def unload(server: RunningServer, name: str, key: dict[str, str] = KEY) -> httpx.Response:
    return post(server, "unload_lora_adapter", {"lora_name": name}, **key)


def test_an_adapter_is_a_model_with_a_parent(server: RunningServer, folders: dict[str, Path]) -> None:
    models = {entry["id"]: entry for entry in httpx.get(f"{server.url}/models", headers=KEY).json()["data"]}
    assert (models["chatter"]["parent"], models["chatter"]["root"]) == (None, "chatter")
    assert (models["sql"]["parent"], models["sql"]["root"]) == ("chatter", str(folders["sql"]))
    assert models["sql"]["max_model_len"] == models["chatter"]["max_model_len"]
    assert httpx.get(f"{server.url}/models/sql", headers=KEY).json() == models["sql"]


def test_an_adapter_changes_the_output(server: RunningServer) -> None:
    assert complete(server, "sql") != complete(server, "chatter")
    assert complete(server, "sql") == complete(server, "sql")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("responses", {"input": "hi", "max_output_tokens": 16}),
        ("chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 16}),
        ("completions", {"prompt": "hi", "max_tokens": 16}),
        ("messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 16}),
    ],
)
def test_replies_of_every_api_name_the_adapter(path: str, body: dict[str, Any], server: RunningServer) -> None:
    reply = post(server, path, {"model": "sql", **body})
    assert reply.status_code == 200, reply.text
    assert reply.json()["model"] == "sql"


def test_adapters_come_and_go(server: RunningServer, folders: dict[str, Path]) -> None:
    assert post(server, "completions", {"model": "late", "prompt": "a"}).status_code == 404
    loaded = load(server, "late", folders["late"])
    assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'late' added successfully.")
    first = complete(server, "late")
    assert first not in (complete(server, "sql"), complete(server, "chatter"))

    again = load(server, "late", folders["new"])
    assert (again.status_code, again.json()["error"]["code"]) == (409, "adapter_already_loaded")
    assert again.headers["x-should-retry"] == "false"
    assert complete(server, "late") == first
    assert load(server, "late", folders["new"], load_inplace=True).status_code == 200
    assert complete(server, "late") != first

    removed = unload(server, "late")
    assert (removed.status_code, removed.text) == (200, "Success: LoRA adapter 'late' removed successfully.")
    for reply in (unload(server, "late"), post(server, "completions", {"model": "late", "prompt": "a"})):
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")


def test_a_turn_keeps_the_adapter_that_is_unloaded(server: RunningServer, folders: dict[str, Path]) -> None:
    assert load(server, "late", folders["late"]).status_code == 200
    body = {"model": "late", "prompt": "select", "max_tokens": 400, "temperature": 0, "ignore_eos": True}
    expected = post(server, "completions", body).json()["choices"][0]["text"]
    texts: list[str] = []
    removed = None
    with httpx.stream(
        "POST", f"{server.url}/completions", json={**body, "stream": True}, headers=KEY, timeout=30
    ) as stream:
        for line in stream.iter_lines():
            if not line.startswith("data: {"):
                continue
            texts += [choice["text"] for choice in json.loads(line.removeprefix("data: "))["choices"]]
            if removed is None:
                removed = unload(server, "late").status_code
                late = post(server, "completions", {"model": "late", "prompt": "a"})
                assert late.status_code == 404
    assert removed == 200
    assert "".join(texts) == expected


def test_an_adapter_belongs_to_the_key_that_has_loaded_it(server: RunningServer, folders: dict[str, Path]) -> None:
    assert load(server, "late", "late").status_code == 200  # relative to the folder of the option
    entry = httpx.get(f"{server.url}/models/late", headers=OTHER_KEY).json()
    assert (entry["parent"], entry["root"]) == ("chatter", "late")
    body = {"model": "late", "prompt": "a", "max_tokens": 1}
    assert post(server, "completions", body, **OTHER_KEY).status_code == 200
    for reply in (
        unload(server, "late", OTHER_KEY),
        load(server, "late", folders["new"], OTHER_KEY, load_inplace=True),
        unload(server, "sql"),
        load(server, "sql", folders["new"], load_inplace=True),
    ):
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "adapter_not_owned"), reply.text
    assert unload(server, "late").status_code == 200
    assert load(server, "late", folders["new"], OTHER_KEY).status_code == 200
    assert unload(server, "late", OTHER_KEY).status_code == 200


@pytest.mark.parametrize(("limit", "others"), [("MAX_ADAPTERS", 409), ("MAX_ADAPTERS_OF_OWNER", 200)])
def test_number_of_adapters_is_limited(
    limit: str, others: int, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, limit, 1)
    assert load(server, "late", "late").status_code == 200
    assert load(server, "late", "new", load_inplace=True).status_code == 200
    full = load(server, "new", "new")
    assert (full.status_code, full.json()["error"]["code"]) == (409, "too_many_adapters")
    assert full.headers["x-should-retry"] == "false"
    assert load(server, "new", "new", OTHER_KEY).status_code == others
    assert unload(server, "late").status_code == 200
    if others == 200:
        assert unload(server, "new", OTHER_KEY).status_code == 200
    assert load(server, "new", "new").status_code == 200
    assert unload(server, "new").status_code == 200


def test_adapter_of_an_attack_holds_no_other_client(server: RunningServer, folders: dict[str, Path]) -> None:
    attack = make_adapter(folders["late"].parent / "attack", "bytes", 3)
    (attack / "adapter_config.json").unlink()
    os.mkfifo(attack / "adapter_config.json")
    pattern = make_adapter(folders["late"].parent / "pattern", "bytes", 3, targets=["q_proj"])
    config = json.loads((pattern / "adapter_config.json").read_text())
    config["target_modules"] = "(([a-z._0-9]+)+)+!"
    (pattern / "adapter_config.json").write_text(json.dumps(config))
    body = {"model": "chatter", "prompt": "a", "max_tokens": 200, "ignore_eos": True, "stream": True}
    statuses = []
    with httpx.stream(
        "POST", f"{server.url}/completions", json=body, headers=OTHER_KEY, timeout=HANG_TIMEOUT_S
    ) as stream:
        lines = stream.iter_lines()
        next(lines)
        for folder, word in ((attack, "a named pipe"), (pattern, "target_modules")):
            reply = load(server, "attack", folder)
            statuses.append((reply.status_code, word in reply.json()["error"]["message"]))
            assert httpx.get(f"{server.url.removesuffix('/v1')}/health", timeout=HANG_TIMEOUT_S).status_code == 200
        assert any("[DONE]" in line for line in lines)
    assert statuses == [(400, True), (400, True)]


@pytest.mark.parametrize("path", ["/etc", "../operator/sql", "/nowhere", "nowhere", "x" * 1000, "a\0b", "link"])
def test_paths_of_other_folders_are_refused_alike(path: str, server: RunningServer, folders: dict[str, Path]) -> None:
    link = folders["late"].parent / "link"
    if not link.is_symlink():
        link.symlink_to(folders["sql"])
    for written in (path, str(folders["late"].parent / path)):
        reply = load(server, "other", written)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "lora_path"), reply.text
        assert reply.json()["error"]["message"].startswith("There is no folder ")


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"lora_path": "/x"}, 400, "lora_name"),
        ({"lora_name": "a"}, 400, "lora_path"),
        ({"lora_name": "a", "lora_path": "/nowhere/at/all"}, 400, "lora_path"),
        ({"lora_name": 3, "lora_path": "/x"}, 400, "lora_name"),
        ({"lora_name": "a", "lora_path": "/x", "more": 1}, 400, "more"),
        ({"lora_name": "chatter", "lora_path": "/x"}, 409, "lora_name"),
        ({"lora_name": "sql", "lora_path": "/x"}, 409, "lora_name"),
    ],
)
def test_updates_that_fail_name_the_field(body: dict[str, Any], status: int, param: str, server: RunningServer) -> None:
    reply = post(server, "load_lora_adapter", body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (status, param), reply.text
    assert reply.headers.get("x-should-retry") == ("false" if status == 409 else None), "SDKs retry a 409"


@pytest.mark.parametrize("number", [-1, 10**30])
def test_a_number_out_of_range_is_refused(number: int, server: RunningServer) -> None:
    reply = post(server, "unload_lora_adapter", {"lora_name": "none", "lora_int_id": number})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "lora_int_id"), reply.text


def test_base_models_cannot_be_unloaded(server: RunningServer) -> None:
    assert unload(server, "chatter").status_code == 404
    complete(server, "chatter")


def test_updates_need_a_key(server: RunningServer, folders: dict[str, Path]) -> None:
    body = {"lora_name": "late", "lora_path": str(folders["late"])}
    for path in ("load_lora_adapter", "unload_lora_adapter"):
        assert httpx.post(f"{server.url}/{path}", json=body).status_code == 401


def test_a_restarted_engine_has_the_adapters_of_the_last_one(
    server: RunningServer, folders: dict[str, Path], workers: list[ThreadWorker]
) -> None:
    assert load(server, "late", folders["late"]).status_code == 200
    expected = {name: complete(server, name) for name in ("chatter", "sql", "late")}
    number = len(workers)
    workers[-1].kill()
    assert wait_until(HANG_TIMEOUT_S, lambda: len(workers) > number and server.engine.unready_reason() is None)
    assert {name: complete(server, name) for name in expected} == expected
    assert unload(server, "late").status_code == 200


def test_updates_need_the_option(folders: dict[str, Path]) -> None:
    with serve([{"name": "hi", "output": ["hi"]}], api_keys=("sk-test",)) as running:
        for reply in (load(running, "late", folders["late"]), unload(running, "scripted")):
            assert (reply.status_code, reply.json()["error"]["code"]) == (404, "lora_updates_disabled")
