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
from antiphon.kit.cassette.secret_shapes import redact_shapes
from antiphon.kit.proxy.exchange import ServerExchange
from tests.kit.cassette.cassette_files import run_player, run_recorder
from tests.kit.proxy.wire_servers import run_handler

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


KEY = "A1b2C3d4E5f6G7h8" * 4
SHAPES = {
    "openai": f"sk-proj-{KEY}",
    "anthropic": f"sk-ant-api03-{KEY}",
    "xai": f"xai-{KEY}",
    "groq": f"gsk_{KEY}",
    "hugging_face": f"hf_{KEY}",
    "google": f"AIza{KEY[:35]}",
    "aws": "AKIAABCDEFGHIJ234567",
    "aws_session": "ASIAABCDEFGHIJ234567",
    "github": f"ghp_{KEY[:36]}",
    "github_fine": f"github_pat_{KEY}",
    "gitlab": f"glpat-{KEY[:20]}",
    "npm": f"npm_{KEY[:36]}",
    "pypi": f"pypi-{KEY}",
    "slack": f"xoxb-{KEY[:30]}",
    "stripe": f"sk_live_{KEY}",
    "stripe_test": f"rk_test_{KEY}",
    "json_web_token": f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.{KEY}",
    "organization": f"org-{KEY[:24]}",
    "project": f"proj_{KEY[:24]}",
    "private_key": f"-----BEGIN RSA PRIVATE KEY-----\n{KEY}\n-----END RSA PRIVATE KEY-----",
    "bearer": f"Authorization: Bearer {KEY[:24]}",
    "password_of_a_url": f"https://user:pw{KEY[:10]}@host.example/mcp",
    "short_password_of_a_url": "https://user:{}@host.example/mcp",
    "escaped_url": f"https:\\/\\/user:pw{KEY[:10]}@host.example",
    "parameter": f"https://host.example/mcp?api_key={KEY[:12]}&limit=2",
    "last_parameter": f"https://host.example/mcp?limit=2&access_token={KEY[:12]}",
}
"""Texts that a person pastes into a prompt, each with one secret."""


@pytest.mark.parametrize("text", SHAPES.values(), ids=SHAPES)
def test_secret_of_a_known_form_is_removed_from_a_prompt(text: str) -> None:
    redactor = Redactor()
    body = json.dumps({"input": f"Why is this refused: '{text}'? It is mine."}).encode()
    redacted = json.loads(redactor.redact_bytes(redactor.redact_json(body)))["input"]
    assert redacted.count("REDACTED") == 1 and KEY[:10] not in redacted and "{}" not in redacted
    assert redacted.startswith("Why is this refused: '") and redacted.endswith("'? It is mine.")
    assert redactor.redact_bytes(redacted.encode()) == redacted.encode()


@pytest.mark.parametrize(
    "text",
    [
        "a desk-lamp, a task-force-of-twenty-people and risk-assessment-documents",
        "gAAAAABp4W-sk-QG0E9NNg0EX06Ei2scR4A0R2QPfZzvD5T5pYAMLnYDssmY3_sk-RYVZTKHkbzOxp-yMDAB",
        "mail me@example.org: the ratio is 3:2 @ noon",
        "https://host.example/path?q=token&limit=2",
        "organisation, proj_1, org-wide, https://user@host.example/",
        "sk-short, hf_x, the bearer of news that is good",
    ],
)
def test_text_that_looks_like_no_secret_stays(text: str) -> None:
    assert Redactor().redact_text(text) == text


def test_url_and_account_of_a_recorded_exchange_are_removed(tmp_path: Path) -> None:
    async def answer(exchange: ServerExchange) -> None:
        await exchange.read_body()
        exchange.start_reply(200, [(b"openai-organization", b"user-diligent-1"), (b"openai-project", b"proj-12345678")])
        exchange.write_data(b"Rate limit of user-diligent-1")
        exchange.end_reply()

    cassette = tmp_path / "secrets.toml"
    tool = {"type": "mcp", "server_url": "https://me:pass-word-77@mcp.example/sse?token=url-token-88"}
    with run_handler(answer) as upstream, run_recorder(upstream, cassette) as url:
        httpx.post(f"{url}/responses", json={"tools": [tool]}, headers={"OpenAI-Organization": "org-sent-by-me"})
    text = cassette.read_text()
    assert not [each for each in ("diligent", "12345678", "pass-word", "url-token", "sent-by-me") if each in text]
    assert 'openai-organization = "REDACTED"' in text and "https://me:REDACTED@mcp.example/sse?token=REDACTED" in text


@pytest.mark.parametrize(
    "piece", [*SHAPES.values(), "-----BEGIN PRIVATE KEY-----", "://a:", "sk-", "eyJ", "?token=", ":"]
)
def test_redaction_takes_linear_time(piece: str) -> None:
    """Twice the text takes about twice the time, whatever it is."""

    def measure(count: int) -> float:
        data = piece.encode() * count
        started_at = time.process_time()
        redact_shapes(data, b"REDACTED")
        return time.process_time() - started_at

    count = 100_000 // len(piece)
    assert measure(8 * count) < 40 * measure(count) + 0.5


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
    from tests.kit.proxy.wire_servers import run_in_thread

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
