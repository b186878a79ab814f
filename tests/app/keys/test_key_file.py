"""The file of API keys in TOML: what its tables mean, and the error of each fault."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from antiphon.app.keys.key_file import KEY_FIELDS, parse_key_file, read_key_file
from antiphon.app.options.api_keys import ApiKey, ApiKeyError, KeyLimits, key_digest, plain_key
from tests.app.keys.key_file_faults import DIGEST, FAULTS, OTHER
from tests.syntax import ROOT

PATH = Path("keys.toml")


def parse(text: str) -> tuple[ApiKey, ...]:
    return parse_key_file(text, PATH)


def fault(text: str) -> str:
    with pytest.raises(ApiKeyError) as caught:
        parse(text)
    assert "\n" not in str(caught.value) and "sk-a" not in str(caught.value)
    return str(caught.value)


def test_table_of_a_key() -> None:
    [key] = parse(f"""
        # of the team
        [[key]]
        owner = "team-a"
        sha256 = "{DIGEST}"
        models = ["coder", "small"]
        role = "operator"
        expires = 2027-01-31T12:00:00+02:00
        max_concurrent = 2
        requests_per_minute = 60
        tokens_per_minute = 1_000
        tokens_per_day = 10_000
        tokens_per_month = {10**18}
        store_gib = 0.5
        [owners.team-a]
        max_concurrent = 5
        """)
    assert key == ApiKey(
        digest=bytes.fromhex(DIGEST),
        owner="team-a",
        name="team-a",
        models=frozenset({"coder", "small"}),
        role="operator",
        expires=datetime(2027, 1, 31, 10, tzinfo=UTC).timestamp(),
        limits=KeyLimits(
            max_concurrent=2,
            requests_per_minute=60,
            tokens_per_minute=1000,
            tokens_per_day=10_000,
            tokens_per_month=10**18,
        ),
        owner_limits=KeyLimits(max_concurrent=5),
        store_gib=0.5,
    )


def test_key_without_an_owner_is_that_of_a_plain_line() -> None:
    assert parse('[[key]]\nkey = "sk-a"') == parse(f'[[key]]\nsha256 = "{DIGEST.upper()}"') == parse("sk-a\nsk-a")
    assert parse("sk-a") == (plain_key(key_digest("sk-a")),)


def test_keys_of_an_owner_share_what_an_old_key_stored() -> None:
    old = plain_key(key_digest("sk-old")).owner
    first, second, other = parse(f"""
        [[key]]
        owner = "a"
        sha256 = "{DIGEST}"
        [[key]]
        owner = "a"
        sha256 = "{OTHER}"
        owner_digest = "{key_digest("sk-old").hex()}"
        [[key]]
        owner = "b"
        key = "sk-c"
        """)
    assert (first.owner, second.owner, other.owner) == (old, old, "b")
    assert (first.name, second.name, other.name) == ("a", "a", "b")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("2027-01-31", datetime(2027, 2, 1, tzinfo=UTC)),
        ("2027-01-31T10:00:00", datetime(2027, 1, 31, 10, tzinfo=UTC)),
        ("2027-01-31 10:00:00Z", datetime(2027, 1, 31, 10, tzinfo=UTC)),
    ],
)
def test_dates(written: str, meant: datetime) -> None:
    [key] = parse(f'[[key]]\nkey = "sk-a"\nexpires = {written}')
    assert key.expires == meant.timestamp()
    assert not key.is_expired(meant.timestamp() - 1) and key.is_expired(meant.timestamp())


@pytest.mark.parametrize("name", FAULTS)
def test_fault_names_file_table_and_line(name: str) -> None:
    text, message = FAULTS[name]
    found = fault(text)
    assert found.startswith("keys.toml") and message in found


def test_huge_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.app.keys.key_file.MAX_KEY_FILE_BYTES", 10)
    (tmp_path / "keys").write_text("sk-a\n" * 10)
    with pytest.raises(ApiKeyError, match="it has more than"):
        read_key_file(tmp_path / "keys")


def test_example_of_the_page() -> None:
    text = (ROOT / "docs/keys.md").read_text(encoding="utf-8")
    keys = [key for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL) for key in parse(block)]
    assert [key.role for key in keys] == ["client", "operator", "operator"] and len({key.owner for key in keys}) == 1
    shown = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| (.*?) \|", text, re.MULTILINE))))
    assert shown >= KEY_FIELDS
