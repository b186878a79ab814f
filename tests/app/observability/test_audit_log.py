"""The audit log: a line for each act, with who, what and result; no key and no content; a full disk stops nothing."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon.app.keys.key_file import read_key_file
from antiphon.app.main.table import ENDPOINTS
from antiphon.app.observability import audit_log
from antiphon.app.observability.audit_log import AuditLog, AuditLogError, find_action
from antiphon.app.turn_types.access_record import AccessRecord
from tests.conftest import StartServer
from tests.progress import wait_with_progress
from tests.serving import serve

SCRIPT = [{"name": "any", "output": ["Hello."]}]
CLIENT, OPERATOR = "sk-client", "sk-operator"


def read_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_acts_of_a_server(start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.app.keys.reloader.STABLE_S", 0.0)
    file, key_file = tmp_path / "audit.jsonl", tmp_path / "keys.toml"
    tables = f'[[key]]\nowner = "a"\nkey = "{CLIENT}"\n[[key]]\nowner = "ops"\nkey = "{OPERATOR}"\nrole = "operator"\n'
    key_file.write_text(f'{tables}[[key]]\nkey = "sk-gone"\n')
    keys = read_key_file(key_file)
    server = start_server(SCRIPT, file_keys=keys, key_file=key_file, audit_log=file, inspect="memory")
    client = httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {CLIENT}"}, timeout=60)
    operator = httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {OPERATOR}"}, timeout=60)
    with client, operator:
        created = client.post("/responses", json={"model": "scripted", "input": "secret text"}).json()
        client.get(f"/inspect/turns/{created['id']}/export/script")
        client.delete(f"/responses/{created['id']}")
        client.delete("/responses/resp_none")
        client.post("/admin/reload")
        httpx.post(f"{server.url}/admin/reload", timeout=60)
        key_file.write_text(tables)
        operator.post("/admin/reload")
    wait_with_progress(lambda: len(read_lines(file)) >= 6, "a line is missing")
    lines = read_lines(file)
    ids = {key.name: key.id for key in keys}
    shown = [(line["action"], line["who"], line["result"], line.get("path", "")) for line in lines]
    assert shown == [
        ("export", f"a {ids['a']}", "ok", f"/v1/inspect/turns/{created['id']}/export/script"),
        ("delete", f"a {ids['a']}", "ok", f"/v1/responses/{created['id']}"),
        ("delete", f"a {ids['a']}", "404", "/v1/responses/resp_none"),
        ("refused", f"a {ids['a']}", "403 insufficient_permissions", "/v1/admin/reload"),
        ("reload", "server", "ok", ""),
        ("reload", f"ops {ids['ops']}", "ok", "/v1/admin/reload"),
    ]
    assert lines[4]["revoked"] == [ids[""]] and lines[4]["keys"] == 2
    text = file.read_text()
    assert not any(secret in text for secret in (CLIENT, OPERATOR, "sk-gone", "secret text", "Hello"))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_which_endpoints_are_acts() -> None:
    acts = {f"{each.method} {each.path}": each.action for each in ENDPOINTS if each.action}
    assert acts == {f"DELETE {each.path}": "delete" for each in ENDPOINTS if each.method == "DELETE"} | {
        "POST /v1/admin/reload": "reload",
        "POST /v1/admin/drain": "drain",
        "POST /v1/load_lora_adapter": "load_adapter",
        "POST /v1/unload_lora_adapter": "unload_adapter",
        "GET /v1/inspect/turns/{turn_id}/export/{form}": "export",
    }


@pytest.mark.parametrize(
    ("code", "act", "action"),
    [
        ("", "delete", "delete"),
        ("", "", ""),
        ("not_found", "drain", "drain"),
        ("insufficient_permissions", "", "refused"),
    ],
)
def test_action_of_a_record(code: str, act: str, action: str) -> None:
    assert find_action(AccessRecord("GET", "/any", 200, 0.1, "req_1", code, action=act)) == action


def test_request_that_no_handler_has_seen_is_no_act(tmp_path: Path) -> None:
    with serve(SCRIPT, audit_log=tmp_path / "audit.jsonl", api_keys=(CLIENT,)) as server:
        headers, long_id = {"authorization": f"Bearer {CLIENT}"}, "x" * 120
        for method, path in (
            *(("DELETE", "/nope"), ("DELETE", "/v1/models/x"), ("DELETE", "//v1/files/x")),
            *(("POST", "/v1/inspect/turns/x/export/curl"), ("GET", "/v1/admin/reload")),
            ("GET", f"/v1/inspect/turns/{long_id}/export/curl"),
        ):
            httpx.request(method, server.root + path, headers=headers)
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [(line["action"], line["result"]) for line in lines] == [
        ("refused", "403 insufficient_permissions"),
        ("export", "404"),
    ]


def test_full_disk_is_told_once_and_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "audit.jsonl"
    log, told = AuditLog(file), list[str]()
    monkeypatch.setattr(audit_log._log, "warning", lambda text, **_: told.append(text))
    log.record("drain", "server", "ok")
    write = os.write
    monkeypatch.setattr(audit_log.os, "write", lambda descriptor, data: write(descriptor, data[:10]))
    for _ in range(3):
        log.record("drain", "server", "ok")
    monkeypatch.undo()
    log.record("reload", "server", "ok")
    assert [line["action"] for line in read_lines(file)] == ["drain", "reload"]
    assert told == ["the audit log cannot be written"]


def test_file_may_be_rotated(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    log = AuditLog(file)
    log.record("drain", "server", "ok")
    file.rename(tmp_path / "old")
    log.record("reload", "server", "ok")
    assert [line["action"] for line in read_lines(file)] == ["reload"]


def test_file_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(AuditLogError, match=r"--audit-log .*cannot be written"):
        AuditLog(tmp_path / "missing" / "audit.jsonl")


def test_standard_output(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    AuditLog(Path("-")).record("drain", "server", "ok")
    AuditLog(None).record("drain", "server", "ok")
    [line] = capfdbinary.readouterr().out.splitlines()
    assert json.loads(line)["action"] == "drain"
