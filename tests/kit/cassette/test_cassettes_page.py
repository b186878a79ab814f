"""The examples of docs/cassettes.md: the cassette is read and replayed, the list of ignored keys is the program's."""

import re

import httpx

from antiphon.kit.cassette.matching import VOLATILE_KEYS
from antiphon.kit.cassette.reading import parse_cassette
from tests.kit.cassette.cassette_files import run_player
from tests.syntax import ROOT

PAGE = (ROOT / "docs/cassettes.md").read_text(encoding="utf-8")


def test_example_is_replayed() -> None:
    [example] = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert [exchange.title for exchange in parse_cassette(example)] == ["POST /v1/responses", "GET /v1/models"]
    with run_player(example) as url:
        stream = httpx.post(f"{url}/responses", json={"model": "antiphon", "input": "Hello!", "stream": True})
        assert stream.text.startswith("event: response.created\ndata: {") and "\n\n: keep-alive\n\n" in stream.text
        limited, listed = httpx.get(f"{url}/models"), httpx.get(f"{url}/models")
    assert (limited.status_code, limited.headers["retry-after"]) == (429, "2")
    assert listed.text == '{"object":"list","data":[]}'


def test_keys_that_are_ignored_are_listed() -> None:
    assert all(f"`{key}`" in PAGE for key in VOLATILE_KEYS)
