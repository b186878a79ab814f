"""Numbers of batches and uploads that an owner may have: open ones, and kept ones; other owners have their own."""

from typing import Any

import httpx
import pytest

from antiphon.app.routes import batches
from antiphon.app.routes.files import uploads
from tests.app.batches.batch_client import BatchClient, make_lines
from tests.conftest import fresh_server
from tests.serving import RunningServer, on_both_stores, serve

SCRIPT = [{"name": "stall", "output": [{"stall": True}]}]
UPLOAD = {"bytes": 3, "filename": "a.txt", "purpose": "user_data", "mime_type": "text/plain"}
KEYS = ("alice", "bob")
SERVERS = on_both_stores(serve, SCRIPT, api_keys=KEYS)
server = fresh_server


def create_batch(client: BatchClient) -> httpx.Response:
    return client.create(client.upload_id(make_lines([{"model": "scripted", "input": "hi"}])))


def create_upload(client: BatchClient) -> httpx.Response:
    return client.post("/uploads", json=UPLOAD)


KINDS: dict[str, Any] = {"batches": (batches, create_batch), "uploads": (uploads, create_upload)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", ["OPEN", "KEPT"])
def test_number_is_limited(server: RunningServer, monkeypatch: pytest.MonkeyPatch, kind: str, limit: str) -> None:
    module, create = KINDS[kind]
    monkeypatch.setattr(module, f"MAX_{limit}_{kind.upper()}", 3)
    alice, bob = (BatchClient(server, key) for key in KEYS)
    ids: list[str] = []
    for _ in range(3):
        reply = create(alice)
        assert reply.status_code == 200, reply.text
        ids.append(reply.json()["id"])
    refused = create(alice)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert refused.headers["x-should-retry"] == "false", "waiting alone frees no place"
    assert f"3 {kind} of this API key" in refused.json()["error"]["message"]
    assert create(bob).status_code == 200
    assert alice.post(f"/{kind}/{ids[0]}/cancel").status_code == 200
    if kind == "batches":
        alice.await_status(ids[0])
    assert create(alice).status_code == (200 if limit == "OPEN" else 429)
