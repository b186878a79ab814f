"""`/v1/inspect/servers` over SQLite and PostgreSQL: the servers of a store, with the figures of their heartbeats."""

import os
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import structs

from antiphon.app.inspection.server_figures import MAX_FIGURES_BYTES, decode_figures, encode_figures
from antiphon.app.options.settings import Settings
from tests.app.inspection.inspector import SCRIPT, Inspector
from tests.app.store.killed_servers import run_server
from tests.app.store.store_helpers import StorePlace
from tests.progress import HANG_TIMEOUT_S, wait_with_progress
from tests.serving import scripted_registry, serve


def list_servers(inspector: Inspector) -> list[dict[str, Any]]:
    page = inspector.get("/servers").json()
    assert page["object"] == "list" and not page["has_more"]
    servers: list[dict[str, Any]] = page["data"]
    return servers


def test_figures_are_those_of_the_heartbeat(place: StorePlace) -> None:
    with serve(SCRIPT, inspect="store", **place.settings()) as server, Inspector(server) as inspector:
        inspector.ask()
        body = {"model": "scripted", "input": "Wait", "background": True}
        turn_id = inspector.client.post("/v1/responses", json=body).json()["id"]
        wait_with_progress(lambda: (list_servers(inspector)[0]["figures"] or {}).get("turns") == 1, "a heartbeat")
        [only] = list_servers(inspector)
        figures = only["figures"]
        assert only["here"] and only["alive"] and 0 <= only["heartbeat_seconds"] < HANG_TIMEOUT_S
        assert (figures["pid"], figures["models"], figures["inspect"]) == (os.getpid(), ["scripted"], "store")
        assert (figures["running"], figures["finished_jobs"]) == (1, 1) and figures["generated_tokens"] > 0
        assert figures["resident_bytes"] > 1 << 20 or not Path("/proc/self/status").exists()
        inspector.client.post(f"/v1/responses/{turn_id}/cancel")
        with serve(SCRIPT, **place.settings()) as other, Inspector(other) as second:
            wait_with_progress(lambda: all(each["figures"] for each in list_servers(second)), "a heartbeat of each")
            assert [each["here"] for each in list_servers(second)] == [True, False]
            assert {each["id"] for each in list_servers(second)} == {each["id"] for each in list_servers(inspector)}
        assert [each["here"] for each in list_servers(inspector)] == [True], "a server that has ended leaves no row"


async def test_server_that_was_killed_is_not_alive(place: StorePlace) -> None:
    async with run_server(place) as (url, kill), httpx.AsyncClient(timeout=HANG_TIMEOUT_S) as client:
        assert (await client.get(f"{url}/models")).status_code == 200
        kill()
    with serve(SCRIPT, **place.settings()) as server, Inspector(server) as inspector:
        wait_with_progress(lambda: [each["alive"] for each in list_servers(inspector)] == [True, False], "it is dead")


def test_store_in_memory_has_one_server() -> None:
    with serve(SCRIPT) as server, Inspector(server) as inspector:
        wait_with_progress(lambda: list_servers(inspector)[0]["figures"] is not None, "a heartbeat")
        assert [each["here"] for each in list_servers(inspector)] == [True]


@pytest.mark.parametrize("num_models", [1, 30, 500])
def test_figures_are_short(num_models: int) -> None:
    [model] = scripted_registry(SCRIPT).served
    models = [structs.replace(model, names=(f"a-model-{number}", "alias")) for number in range(num_models)]
    encoded = encode_figures(Settings(host="h" * 500), models, 10**9, 1.7e9)
    assert len(encoded) <= MAX_FIGURES_BYTES
    figures = decode_figures(encoded)
    assert figures is not None and figures.turns == 10**9 and figures.models[0] == "a-model-0"


@pytest.mark.parametrize("data", ["", "{", "[]", '{"turns": "many"}'])
def test_figures_of_another_version_are_left_out(data: str) -> None:
    assert decode_figures(data) is None


def test_servers_need_a_key() -> None:
    with serve(SCRIPT) as server:
        assert httpx.get(f"{server.root}/v1/inspect/servers").status_code == 401
