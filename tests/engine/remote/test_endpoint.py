"""Addresses of remote engines, and the choice among them."""

from collections import Counter
from dataclasses import dataclass

import pytest

from antiphon.engine.remote.selection import affinity_of_prompt, choose_replica
from antiphon.engine.remote.transport.endpoint import RemoteEndpoint, parse_endpoint


@pytest.mark.parametrize(
    ("url", "endpoint", "name", "host_header"),
    [
        ("http://gpu1:8000", RemoteEndpoint(host="gpu1", port=8000), "gpu1:8000", "gpu1:8000"),
        ("http://gpu1/", RemoteEndpoint(host="gpu1"), "gpu1:80", "gpu1"),
        (
            "https://api.example/engine/v1",
            RemoteEndpoint(host="api.example", port=443, is_tls=True, base_path="/engine"),
            "api.example:443",
            "api.example",
        ),
        ("http://[::1]:9", RemoteEndpoint(host="::1", port=9), "[::1]:9", "[::1]:9"),
        ("unix:/run/vllm.sock", RemoteEndpoint(socket_path="/run/vllm.sock"), "unix:/run/vllm.sock", "localhost"),
        ("unix:///run/vllm.sock", RemoteEndpoint(socket_path="/run/vllm.sock"), "unix:/run/vllm.sock", "localhost"),
    ],
)
def test_url_is_parsed(url: str, endpoint: RemoteEndpoint, name: str, host_header: str) -> None:
    parsed = parse_endpoint(url)
    assert (parsed, parsed.name, parsed.host_header) == (endpoint, name, host_header)


@pytest.mark.parametrize(
    "url",
    ["gpu1:8000", "ftp://gpu1", "http://", "unix:", "http://user:pw@gpu1", "http://gpu1/?a=b", "http://gpu1:99999"],
)
def test_unusable_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_endpoint(url)
    assert "pw" not in str(caught.value)


@dataclass
class Server:
    name: str
    num_jobs: int = 0


def test_key_chooses_the_same_replica_and_keys_spread() -> None:
    servers = [Server(f"gpu{number}:8000") for number in range(4)]
    keys = [f"conversation {number}" for number in range(400)]
    first = {key: choose_replica(servers, key).name for key in keys}
    assert first == {key: choose_replica(servers[::-1], key).name for key in keys}
    assert all(60 < count < 140 for count in Counter(first.values()).values())
    rest = servers[1:]
    moved = [key for key in keys if choose_replica(rest, key).name != first[key]]
    assert {first[key] for key in moved} == {servers[0].name}, "only the keys of the lost replica move"


def test_overloaded_replica_takes_no_more() -> None:
    servers = [Server(f"gpu{number}:8000") for number in range(3)]
    for _ in range(300):
        choose_replica(servers, "one key").num_jobs += 1
    counts = sorted(server.num_jobs for server in servers)
    assert counts[-1] <= 1.25 * 100 + 3


def test_key_of_a_prompt_is_made_of_its_beginning() -> None:
    tokens = list(range(2000))
    assert affinity_of_prompt("a", tokens) == affinity_of_prompt("a", [*tokens[:1024], 7])
    assert len({affinity_of_prompt("a", tokens), affinity_of_prompt("b", tokens), affinity_of_prompt("a", [1])}) == 3
