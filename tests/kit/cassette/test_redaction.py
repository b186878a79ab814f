"""No secret that was sent is in the file."""

import base64
import json
import os
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon.kit.cassette.reading import read_cassette
from antiphon.kit.cassette.redaction import Redactor, is_secret_key
from antiphon.kit.wire.exchange import ServerExchange
from tests.kit.cassette.cassette_files import run_player, run_recorder
from tests.kit.wire.wire_servers import run_handler

PASSWORD = base64.b64encode(b"user:basic-password-01").decode()
SECRETS = (
    "sk-authorization-01",
    "x-api-key-value-02",
    "azure-key-value-03",
    "cookie-session-04",
    "set-cookie-value-05",
    "query-key-value-06",
    "body-api-key-07",
    "nested-token-08",
    "mcp-authorization-09",
    "server-made-secret-10",
    'odd "quoted" \\ secret/11',
    "option-api-key-12",
    PASSWORD,
    "basic-password-01",
    "list-entry-secret-13",
)  # fmt: skip
HEADERS = [
    ("Authorization", "Bearer sk-authorization-01"),
    ("X-Api-Key", "x-api-key-value-02"),
    ("api-key", "azure-key-value-03"),
    ("Cookie", "a=1; session=cookie-session-04"),
    ("Proxy-X-Authorization", f"Basic {PASSWORD}"),
    ("X-Custom-Token", 'odd "quoted" \\ secret/11'),
]
BODY: dict[str, Any] = {
    "model": "m",
    "input": 'my key is sk-authorization-01, and odd "quoted" \\ secret/11',
    "api_key": "body-api-key-07",
    "metadata": {"access_token": "nested-token-08", "secret": ["list-entry-secret-13"]},
    "tools": [{"type": "mcp", "authorization": "mcp-authorization-09", "headers": {"X-API-Key": "x-api-key-value-02"}}],
    "max_output_tokens": 100,
    "prompt_cache_key": "a-cache-key-that-stays",
    "include": ["reasoning.encrypted_content"],
}


async def echo(exchange: ServerExchange) -> None:
    """Repeats all that it was sent, and adds a secret of its own."""
    body = json.loads(await exchange.read_body() or b"{}")
    sent = [[name.decode(), value.decode("latin-1")] for name, value in exchange.request.headers]
    echo = {
        "type": "echo",
        "sent": sent,
        "target": exchange.request.target,
        "body": body,
        "client_secret": "server-made-secret-10",
    }
    headers = [
        (b"set-cookie", b"sid=set-cookie-value-05; Path=/"),
        (b"x-echo", b"sk-authorization-01"),
        (b"x-ratelimit-limit-tokens", b"100000000"),
    ]
    if exchange.request.path == "/v1/stream":
        exchange.start_reply(200, [(b"content-type", b"text/event-stream"), *headers])
        exchange.write_data(b"event: echo\ndata: " + json.dumps(echo).encode() + b"\n\n: sk-authorization-01\n\n")
    else:
        exchange.start_reply(401, [(b"content-type", b"application/json"), *headers])
        exchange.write_data(json.dumps(echo, ensure_ascii=False).encode())
    exchange.end_reply()


@pytest.mark.parametrize("path", ["/stream", "/whole"])
def test_no_secret_is_in_the_file(tmp_path: Path, path: str) -> None:
    cassette = tmp_path / "secrets.toml"
    with run_handler(echo) as upstream, run_recorder(upstream, cassette, api_key=None) as url:
        reply = httpx.post(
            f"{url}{path}?api_key=query-key-value-06&key=query-key-value-06&limit=2", json=BODY, headers=HEADERS
        )
        assert "sk-authorization-01" in reply.text
        httpx.post(f"{url}{path}", content=b"text with sk-authorization-01 in it")
        httpx.post(f"{url}{path}", content=b"\xff" + b"sk-authorization-01")
    text = cassette.read_text()
    decoded = text.encode() + b"".join(each.request.body + each.response.body for each in read_cassette(cassette))
    assert not [secret for secret in SECRETS if secret.encode() in decoded or json.dumps(secret)[1:-1] in text]
    assert (
        "a-cache-key-that-stays" in text and "encrypted_content" in text and "100000000" in text and "limit=2" in text
    )
    assert '"max_output_tokens": 100' in text and 'authorization = "REDACTED"' in text
    assert cassette.stat().st_mode & 0o077 == 0


def test_key_of_the_option_is_sent_and_redacted(tmp_path: Path) -> None:
    cassette = tmp_path / "secrets.toml"
    with run_handler(echo) as upstream, run_recorder(upstream, cassette, api_key="option-api-key-12") as url:
        reply = httpx.post(f"{url}/whole", json=BODY, headers=HEADERS)
    assert (
        "Bearer option-api-key-12" in reply.text
        and ["Authorization", "Bearer sk-authorization-01"] not in reply.json()["sent"]
    )
    text = cassette.read_text()
    assert "option-api-key-12" not in text and "sk-authorization-01" not in text


def test_secret_of_an_earlier_exchange_is_removed_from_later_ones(tmp_path: Path) -> None:
    cassette = tmp_path / "secrets.toml"
    with run_handler(echo) as upstream, run_recorder(upstream, cassette) as url:
        httpx.post(f"{url}/whole", json={}, headers=HEADERS)
        httpx.post(f"{url}/whole", json={"input": "sk-authorization-01"})
    assert "sk-authorization-01" not in cassette.read_text()


def test_replay_matches_a_request_with_other_secrets(tmp_path: Path) -> None:
    cassette = tmp_path / "secrets.toml"
    with run_handler(echo) as upstream, run_recorder(upstream, cassette) as url:
        httpx.post(f"{url}/whole?key=query-key-value-06", json=BODY, headers=HEADERS)
    body = BODY | {"api_key": "quite-another-key", "input": 'my key is sk-another-key, and odd "quoted" \\ secret/11'}
    with run_player(cassette) as url:
        headers = [("Authorization", "Bearer sk-another-key"), *HEADERS[1:]]
        reply = httpx.post(f"{url}/whole?key=another-parameter", json=body, headers=headers)
    assert reply.status_code == 401, reply.text


def test_short_values_are_removed_in_their_place_only() -> None:
    redactor = Redactor()
    assert redactor.redact_headers([("authorization", "Bearer none")]) == [("authorization", "REDACTED")]
    assert (
        redactor.redact_json(b'{"tool_choice":"none","api_key":"none"}')
        == b'{"tool_choice":"none","api_key":"REDACTED"}'
    )


@pytest.mark.parametrize("key", ["api_key", "apiKey", "OPENAI_API_KEY", "x-api-key", "authorization", "password", "client_secret", "access_token", "refresh-token", "token", "secret_key", "credential"])  # fmt: skip
def test_secret_keys(key: str) -> None:
    assert is_secret_key(key)


@pytest.mark.parametrize("key", ["max_tokens", "input_tokens", "encrypted_content", "prompt_cache_key", "tokens", "key", "secretary", "total_tokens", "tokenizer"])  # fmt: skip
def test_keys_that_stay(key: str) -> None:
    assert not is_secret_key(key)


def test_tokens_of_logprobs_stay() -> None:
    body = b'{"logprobs":[{"token":"Hello","logprob":-0.1}],"key":"token"}'
    assert Redactor().redact_json(body) == body


def test_schemas_of_tools_stay() -> None:
    body = b'{"properties":{"password":{"type":"string"},"api_key":{"type":"string"}},"required":["password"]}'
    assert Redactor().redact_json(body) == body


def test_long_streams_are_redacted_in_reasonable_time() -> None:
    redactor = Redactor(["sk-0123456789"])
    frame = json.dumps({"type": "response.output_text.delta", "delta": "token" * 20, "logprobs": []}).encode()
    started_at = time.process_time()
    for _ in range(5000):
        redactor.redact_bytes(redactor.redact_json(frame))
    assert time.process_time() - started_at < 5


def test_full_disk_leaves_whole_exchanges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cassette, printed = tmp_path / "c.toml", []
    from antiphon.kit.cassette.recorder import open_recorder
    from tests.kit.wire.wire_servers import run_in_thread

    write = os.write

    def write_half(file: int, data: bytes) -> int:
        if b"second" in data:
            if len(data) < 400:
                raise OSError(28, "No space left on device")
            return write(file, data[: len(data) - 300])
        return write(file, data)

    monkeypatch.setattr("antiphon.kit.cassette.recorder.os.write", write_half)
    with (
        run_handler(echo) as upstream,
        run_in_thread(lambda: open_recorder(upstream, cassette, print_line=printed.append)) as url,
    ):
        for name in ("first", "second" * 80, "third"):
            assert httpx.post(f"{url}/whole", json={"input": name}).status_code == 401
    assert [json.loads(each.request.body)["input"] for each in read_cassette(cassette)] == ["first", "third"]
    assert "POST /v1/whole: not recorded: No space left on device" in printed
