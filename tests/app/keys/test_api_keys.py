"""API keys: their sources, unusable keys, and the comparison with what a client sends."""

import hashlib
import http.client
import json
import time
from pathlib import Path

import httpx
import pytest
from msgspec import structs

from antiphon.app.keys.key_ring import KeyRing
from antiphon.app.keys.sources import load_api_keys
from antiphon.app.options.api_keys import NO_LIMITS, ApiKey, ApiKeyError, KeyLimits, key_digest, plain_key
from tests.conftest import StartServer

HELLO = [{"name": "hello", "output": ["Hello."]}]


def test_keys_come_from_flags_and_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# clients\nsk-file\n\n  sk-other  \n", encoding="utf-8")
    fixed, from_file = load_api_keys(["sk-flag", "sk-flag"], file, "sk-environment")
    assert fixed == (plain_key(key_digest("sk-flag")),)
    assert from_file == (plain_key(key_digest("sk-file")), plain_key(key_digest("sk-other")))


def test_environment_holds_keys_separated_by_spaces() -> None:
    keys = tuple(plain_key(key_digest(key)) for key in ("sk-one", "sk-two"))
    assert load_api_keys([], None, "sk-one  sk-two\n") == (keys, ())
    assert load_api_keys([], None, None) == ((), ())


@pytest.mark.parametrize("key", ["", " ", "\t", "a b", "a\x00b", "a\nb", "\u00a0"])
def test_unusable_key_is_rejected_at_start(key: str) -> None:
    with pytest.raises(ApiKeyError, match="--api-key: the API key"):
        load_api_keys([key], None, None)


@pytest.mark.parametrize("value", ["", "  ", "sk-one,sk-two", "a\x00b"])
def test_unusable_environment_is_rejected_at_start(value: str) -> None:
    with pytest.raises(ApiKeyError, match="ANTIPHON_API_KEY"):
        load_api_keys([], None, value)


@pytest.mark.parametrize("content", [b"", b"# only a comment\n", b"\xff\xfe", None])
def test_unusable_key_file_is_rejected_at_start(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ApiKeyError, match=str(file)):
        load_api_keys([], file, None)


def test_error_does_not_contain_the_key() -> None:
    with pytest.raises(ApiKeyError) as caught:
        load_api_keys(["sk-private key"], None, None)
    assert "private" not in str(caught.value)


def make_worker_ring() -> tuple[KeyRing, ApiKey, ApiKey]:
    small = structs.replace(plain_key(key_digest("sk-small")), owner="team", models=frozenset({"small"}))
    limited = structs.replace(
        plain_key(key_digest("sk-limited")), owner="team", models=frozenset({"big"}), limits=KeyLimits(tokens_per_day=9)
    )
    return KeyRing((plain_key(key_digest("sk-other")),), (small, limited)), small, limited


def test_work_is_bound_by_the_key_that_left_it() -> None:
    ring, small, limited = make_worker_ring()
    for key in (small, limited):
        for model in ("small", "big", None):
            assert ring.find_worker("team", key.id, model) is key


def test_work_of_a_revoked_key_is_bound_by_another_key_of_its_owner() -> None:
    ring, small, limited = make_worker_ring()
    assert ring.find_worker("team", "", "big") is limited, "of an earlier version, which kept no id"
    ring.replace((small,))
    assert ring.find_worker("team", limited.id, "big") is small


def test_last_key_of_an_owner_leaves_its_work_no_right() -> None:
    ring, small, _ = make_worker_ring()
    ring.replace(())
    assert ring.find_worker("team", small.id, "small") is None
    assert KeyRing((), ring).find_worker("team", small.id, "small") is None, "nor after a restart"
    ring.replace((small,))
    assert ring.find_worker("team", small.id, "small") is small


def test_expired_key_is_as_one_that_is_revoked() -> None:
    ring, small, limited = make_worker_ring()
    expired = structs.replace(limited, expires=time.time() - 1)
    ring.replace((expired, small))
    assert ring.find_worker("team", limited.id, "big") is small
    ring.replace((expired,))
    assert ring.find_worker("team", limited.id, "big") is None


def test_server_without_keys_binds_no_work() -> None:
    found = KeyRing().find_worker("team", "key_1", "any")
    assert found is not None and (found.owner, found.models, found.limits) == ("team", None, NO_LIMITS)


def test_only_the_whole_digest_matches() -> None:
    first = key_digest("sk-0")
    digests = {hashlib.sha256(f"sk-{n}".encode()).digest() for n in range(2000)}
    similar = next(digest for digest in digests if digest[:1] == first[:1] and digest != first)
    assert KeyRing([plain_key(similar)]).find(b"sk-0") is None
    assert KeyRing([plain_key(similar), plain_key(first)]).find(b"sk-0") == plain_key(first)
    assert KeyRing().find(b"") is None


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_key_with_non_ascii_characters_can_be_used(encoding: str, start_server: StartServer) -> None:
    server = start_server(HELLO, api_keys=("sk-schlüssel",))
    headers = {b"authorization": b"Bearer " + "sk-schlüssel".encode(encoding)}
    assert httpx.get(f"{server.url}/models", headers=headers).status_code == 200
    headers = {b"authorization": b"Bearer " + "sk-schlussel".encode(encoding)}
    assert httpx.get(f"{server.url}/models", headers=headers).status_code == 401


@pytest.mark.parametrize("value", ["Bearer ", "Bearer", "Bearer \t", "", "bearer  "])
def test_empty_credentials_are_rejected(value: str, start_server: StartServer) -> None:
    server = start_server(HELLO, api_keys=("sk-one",))
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("GET", "/v1/models", headers={"Authorization": value})
    reply = connection.getresponse()
    assert (reply.status, json.load(reply)["error"]["code"]) == (401, "invalid_api_key")
    connection.close()


@pytest.mark.parametrize("index", range(hashlib.sha256().digest_size))
def test_every_byte_of_a_digest_is_compared(index: int) -> None:
    digest = bytearray(key_digest("sk-one"))
    digest[index] ^= 1
    assert KeyRing([plain_key(bytes(digest))]).find(b"sk-one") is None
