"""The file of API keys in TOML: what its tables mean, and the error of each fault."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from antiphon.app.base.api_keys import ApiKey, ApiKeyError, KeyLimits, key_digest, plain_key
from antiphon.app.keys.key_file import KEY_FIELDS, parse_key_file, read_key_file
from tests.syntax import ROOT

PATH = Path("keys.toml")
DIGEST = key_digest("sk-a").hex()
OTHER = key_digest("sk-b").hex()


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


KEY = f'[[key]]\nsha256 = "{DIGEST}"\n'
FAULTS = {
    "unknown key": (f"{KEY}color = 1", "line 1, [[key]] 1: unknown key 'color'"),
    "unknown table": (f"{KEY}[limits]", "line 3, [limits]: unknown table"),
    "no key in it": ('[[key]]\nowner = "a"', "line 1, [[key]] 1: write either key, or its digest as sha256"),
    "key and digest": (f'{KEY}key = "sk-b"', "either key, or its digest"),
    "bad digest": ('[[key]]\nsha256 = "abc"', "sha256: expected the SHA-256 digest"),
    "key of a wrong type": ("[[key]]\nkey = 7", "key: expected a string"),
    "empty key": ('[[key]]\nkey = ""', "line 1, [[key]] 1: the API key is empty"),
    "two owners of a key": (
        f'{KEY}owner = "a"\n\n[[key]]\nsha256 = "{DIGEST}"\nowner = "b"',
        "line 5, [[key]] 2: the key is that of line 1, which has another owner",
    ),
    "a key twice": (f"{KEY}{KEY}", "line 3, [[key]] 2: the key is that of line 1, which has the same owner"),
    "limit of 0": (f"{KEY}max_concurrent = 0", "max_concurrent: expected a positive integer"),
    "limit below 0": (f"{KEY}tokens_per_day = -1", "tokens_per_day: expected a positive integer"),
    "limit that is true": (f"{KEY}requests_per_minute = true", "requests_per_minute: expected a positive integer"),
    "limit with a fraction": (f"{KEY}tokens_per_month = 1.5", "tokens_per_month: expected a positive integer"),
    "limit of an owner": (
        f'{KEY}owner = "a"\n[owners.a]\ntokens_per_minute = "x"',
        "line 4, [owners.a]: tokens_per_minute: expected a positive integer",
    ),
    "store of 0": (f"{KEY}store_gib = 0", "store_gib: expected a positive number"),
    "endless store": (f"{KEY}store_gib = inf", "store_gib: expected a positive number"),
    "bad date": (f'{KEY}expires = "tomorrow"', "expires: expected a date such as 2027-01-31"),
    "impossible date": (f"{KEY}expires = 2027-02-30", "is no TOML"),
    "date out of range": (f"{KEY}expires = 9999-12-31", "expires: the date is out of range"),
    "bad role": (f'{KEY}role = "admin"', 'role: expected "client" or "operator"'),
    "no models": (f"{KEY}models = []", "models: expected a list of names"),
    "models of a wrong type": (f'{KEY}models = "coder"', "models: expected a list of names"),
    "empty owner": (f'{KEY}owner = ""', "owner: expected a name"),
    "owner that is a digest": (f'{KEY}owner = "{DIGEST[:32]}"', "owner: expected a name"),
    "owner with a slash": (f'{KEY}owner = "a/b"', "owner: expected a name"),
    "digest without an owner": (f'{KEY}owner_digest = "{OTHER}"', "owner_digest: needs an owner"),
    "bad owner digest": (f'{KEY}owner = "a"\nowner_digest = "x"', "owner_digest: expected the SHA-256 digest"),
    "two digests of an owner": (
        f'{KEY}owner = "a"\nowner_digest = "{OTHER}"\n[[key]]\nkey = "sk-c"\nowner = "a"\nowner_digest = "{DIGEST}"',
        "[[key]] 2: owner_digest: the owner 'a' has another one",
    ),
    "a digest of two owners": (
        f'{KEY}owner = "a"\nowner_digest = "{OTHER}"\n[[key]]\nkey = "sk-c"\nowner = "b"\nowner_digest = "{OTHER}"',
        "[[key]] 2: owner_digest: another owner takes it over",
    ),
    "owner without a key": (f"{KEY}[owners.a]\nmax_concurrent = 1", "line 3, [owners.a]: no key has this owner"),
    "owners as a list": (f"{KEY}[[owners]]", "write the limits of an owner as [owners.NAME]"),
    "keys as a table": (f'[key]\nsha256 = "{DIGEST}"', "contains no API key"),
    "syntax": ("[[key]\n", "is no TOML"),
}


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
