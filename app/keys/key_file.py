"""The file of API keys: one key a line, or TOML with a table for each key.

In TOML, several keys may have one owner, which reads what each of them has stored. A table `[owners.NAME]` limits all
keys of an owner together. `docs/keys.md` has an example and the list of keys.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from antiphon.app.keys.pace import Pace, run_through
from antiphon.app.keys.plain_tables import PlainTables, read_plain_tables
from antiphon.app.options.api_keys import (
    NO_LIMITS,
    OWNER_DIGITS,
    ApiKey,
    ApiKeyError,
    KeyLimits,
    key_digest,
    plain_key,
    require_valid_key,
)

MAX_KEY_FILE_BYTES = 16 << 20
"""Size of 50 000 keys with owners and limits."""
MAX_LIMIT = (1 << 63) - 1
"""Largest integer that every reader of TOML must know."""
LIMIT_NAMES = KeyLimits.__struct_fields__
OWNER_FIELDS = frozenset({*LIMIT_NAMES, "store_gib"})
KEY_FIELDS = OWNER_FIELDS | {"owner", "owner_digest", "sha256", "key", "models", "role", "expires"}
_FIELD_NAME = re.compile(r"[a-z_]{1,30}")
OWNER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_OWNER_DIGEST = re.compile(rf"[0-9a-f]{{{OWNER_DIGITS}}}(?:[0-9a-f]{{32}})?")
_PLAIN_OWNER = re.compile(rf"[0-9a-f]{{{OWNER_DIGITS}}}")
_TOML_START = re.compile(r"\[\[?\s*[\"']?(?:key|owners)\b")


class KeyTableError(ApiKeyError):
    """A fault in a table of the file. `line` is that of its header, from 1.

    `fault` begins with the field, if it is in one: "owner: expected a name of letters".
    """

    def __init__(self, place: "_KeyTablePlace", fault: str) -> None:
        super().__init__(f"{place.path}, line {place.line}, {place.header}: {fault}")
        self.line, self.fault = place.line, fault


class _KeyTablePlace(NamedTuple):
    """A table of the file: its header, and the line of the header, from 1."""

    path: Path
    header: str
    line: int

    def fault(self, message: str) -> KeyTableError:
        return KeyTableError(self, message)


def read_key_file(path: Path, pace: Pace[Any] = run_through) -> tuple[ApiKey, ...]:
    """Returns the keys of a file, each once. Raises `ApiKeyError`, with table and line of what is wrong.

    `pace` is that of the loops over lines and tables.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_KEY_FILE_BYTES + 1)
        text = content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ApiKeyError(f"{path}: cannot read API keys: {reason}") from None
    if len(content) > MAX_KEY_FILE_BYTES:
        raise ApiKeyError(f"{path}: cannot read API keys: it has more than {MAX_KEY_FILE_BYTES >> 20} MiB")
    return parse_key_file(text, path, pace)


def parse_key_file(text: str, path: Path, pace: Pace[Any] = run_through) -> tuple[ApiKey, ...]:
    """Returns the keys of a file with this text. `path` is that of errors. Raises `ApiKeyError`."""
    first = next(_iterate_entries(text), None)
    if first is None:
        raise ApiKeyError(f"{path}: contains no API key; write one per line")
    if _TOML_START.match(first):
        return _parse_tables(text, path, pace)
    digests = (key_digest(require_valid_key(entry, str(path))) for entry in pace(_iterate_entries(text)))
    return tuple(plain_key(digest) for digest in dict.fromkeys(digests))


def is_toml(text: str) -> bool:
    """Tells whether a file has tables: its first line that is no comment begins one."""
    return _TOML_START.match(next(_iterate_entries(text), "")) is not None


def _iterate_entries(text: str) -> Iterator[str]:
    """Yields the lines that are neither blank nor comments."""
    lines = (line.strip() for line in text.splitlines())
    return (line for line in lines if line and not line.startswith("#"))


def list_headers(text: str) -> list[tuple[str, int]]:
    """Returns the tables of a TOML file with the lines of their headers, from 1."""
    found = ((_read_header(line), number) for number, line in enumerate(text.splitlines(), 1))
    return [(name, number) for name, number in found if name]


def _read_header(line: str) -> str:
    """Returns the name of the table that begins in a line; "" for another line."""
    header = line.partition("#")[0].strip()
    name = header.strip("[]").strip()
    is_header = header.startswith("[") and header.endswith("]") and not {"[", "]"} & set(name)
    return name if is_header else ""


def _parse_tables(text: str, path: Path, pace: Pace[Any]) -> tuple[ApiKey, ...]:
    document, headers = read_plain_tables(text, pace) or _read_tables(text, path)
    places = _find_places(pace(headers), path)
    unknown = next((name for name in document if name not in ("key", "owners")), None)
    if unknown is not None:
        raise places[unknown, 0].fault("unknown table; a key is [[key]], and limits of an owner are [owners.NAME]")
    tables, owners = document.get("key"), document.get("owners", {})
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise ApiKeyError(f"{path}: contains no API key; write a table [[key]] for each")
    if not isinstance(owners, dict) or not all(isinstance(table, dict) for table in owners.values()):
        raise places["owners", 0].fault("write the limits of an owner as [owners.NAME]")
    named = {name: (table, places[f"owners.{name}", 0]) for name, table in owners.items()}
    placed = [(table, places["key", index]) for index, table in enumerate(pace(tables))]
    return _KeyTables(placed, named).parse(pace)


def _read_tables(text: str, path: Path) -> PlainTables:
    try:
        return PlainTables(tomllib.loads(text), list_headers(text))
    except (ValueError, RecursionError) as error:  # of numbers with too many digits, and of lists in lists
        raise ApiKeyError(f"{path}: is no TOML: {error}") from None


class _KeyTablePlaces(dict[tuple[str, int], _KeyTablePlace]):
    """The places of a file by the name of the table and its number, from 0; the file itself for all others."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __missing__(self, key: tuple[str, int]) -> _KeyTablePlace:
        return _KeyTablePlace(self._path, f"[[{key[0]}]]" if key[0] == "key" else f"[{key[0]}]", 1)


def _find_places(headers: Iterable[tuple[str, int]], path: Path) -> _KeyTablePlaces:
    places, num_keys = _KeyTablePlaces(path), 0
    for name, line in headers:
        plain = name if name == "key" else re.sub(r"[\"'\s]", "", name)
        if plain == "key":
            places[plain, num_keys] = _KeyTablePlace(path, f"[[key]] {num_keys + 1}", line)
            num_keys += 1
        else:
            places.setdefault((plain, 0), _KeyTablePlace(path, f"[{plain}]", line))
    return places


class _KeyTables:
    """The tables of a file with their places, and the keys that they describe."""

    def __init__(
        self,
        tables: list[tuple[dict[str, Any], _KeyTablePlace]],
        owners: dict[str, tuple[dict[str, Any], _KeyTablePlace]],
    ) -> None:
        self._tables, self._owners = tables, owners
        self._digests: dict[str, str] = {}
        """Owners of old keys, by the name of the owner that takes their data over."""
        self._takers: dict[str, str] = {}

    def parse(self, pace: Pace[Any]) -> tuple[ApiKey, ...]:
        for table, place in pace(self._tables):
            _check_names(table, KEY_FIELDS, place)
            self._read_owner_digest(table, place)
        named = {table.get("owner") for table, _ in self._tables}
        for name, (table, place) in self._owners.items():
            _check_names(table, OWNER_FIELDS, place)
            if name not in named:
                raise place.fault("no key has this owner")
        keys: dict[bytes, tuple[ApiKey, _KeyTablePlace]] = {}
        for table, place in pace(self._tables):
            key = self._parse_key(table, place)
            if key.digest in keys:
                earlier, earlier_place = keys[key.digest]
                owners = "the same owner" if earlier.owner == key.owner else "another owner"
                raise place.fault(f"the key is that of line {earlier_place.line}, which has {owners}")
            keys[key.digest] = key, place
        return tuple(key for key, _ in keys.values())

    def _read_owner_digest(self, table: dict[str, Any], place: _KeyTablePlace) -> None:
        """Notes whose stored data a named owner takes over. Raises `ApiKeyError`."""
        if "owner_digest" not in table:
            return
        sent, name = table["owner_digest"], _read_owner(table, place)
        if not isinstance(sent, str) or not _OWNER_DIGEST.fullmatch(sent):
            raise place.fault("owner_digest: expected the SHA-256 digest of the old key, in hexadecimal digits")
        if not name:
            raise place.fault("owner_digest: needs an owner, who takes over what the old key has stored")
        digest = sent[:OWNER_DIGITS]
        if self._digests.setdefault(name, digest) != digest:
            raise place.fault(f"owner_digest: the owner '{name}' has another one already")
        if self._takers.setdefault(digest, name) != name:
            raise place.fault("owner_digest: another owner takes it over already")

    def _parse_key(self, table: dict[str, Any], place: _KeyTablePlace) -> ApiKey:
        digest, name = _read_digest(table, place), _read_owner(table, place)
        role = table.get("role", "client")
        if role not in ("client", "operator"):
            raise place.fault('role: expected "client" or "operator"')
        own_gib, (owner_limits, shared_gib) = _read_gib(table, place), self._read_owner_limits(name)
        return ApiKey(
            digest=digest,
            owner=self._digests.get(name, name) or plain_key(digest).owner,
            name=name,
            models=_read_models(table, place),
            role=role,
            expires=_read_expiry(table, place),
            limits=_read_limits(table, place),
            owner_limits=owner_limits,
            store_gib=shared_gib if own_gib is None else own_gib,
        )

    def _read_owner_limits(self, name: str) -> tuple[KeyLimits, float | None]:
        """Returns the limits of all keys of an owner together, and the GiB that it may store."""
        if name not in self._owners:
            return NO_LIMITS, None
        table, place = self._owners[name]
        return _read_limits(table, place), _read_gib(table, place)


def _check_names(table: dict[str, Any], known: frozenset[str], place: _KeyTablePlace) -> None:
    if not known.issuperset(table):
        unknown = next(name for name in table if name not in known)
        shown = f"unknown key '{unknown}'" if _FIELD_NAME.fullmatch(unknown) else "unknown key"  # it may be a secret
        raise place.fault(f"{shown}; known are {', '.join(sorted(known))}")


def _read_digest(table: dict[str, Any], place: _KeyTablePlace) -> bytes:
    if ("sha256" in table) == ("key" in table):
        raise place.fault("write either key, or its digest as sha256")
    if "key" in table:
        if not isinstance(table["key"], str):
            raise place.fault("key: expected a string")
        return key_digest(require_valid_key(table["key"], f"{place.path}, line {place.line}, {place.header}"))
    digest = table["sha256"]
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest.lower()):
        raise place.fault("sha256: expected the SHA-256 digest of the key, 64 hexadecimal digits")
    return bytes.fromhex(digest)


def _read_owner(table: dict[str, Any], place: _KeyTablePlace) -> str:
    """Returns the name of the owner; "" if the table has none. It must not be the owner of a key without a name."""
    name = table.get("owner", "")
    if "owner" in table and (
        not isinstance(name, str)
        or not OWNER_NAME.fullmatch(name)
        or (len(name) == OWNER_DIGITS and _PLAIN_OWNER.fullmatch(name))
    ):
        raise place.fault("owner: expected a name of letters, digits and ._@-, at most 64, that is no digest")
    return str(name)


def _read_models(table: dict[str, Any], place: _KeyTablePlace) -> frozenset[str] | None:
    if "models" not in table:
        return None
    names = table["models"]
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise place.fault("models: expected a list of names of models")
    return frozenset(names)


def _read_expiry(table: dict[str, Any], place: _KeyTablePlace) -> float | None:
    value = table.get("expires")
    if value is None:
        return None
    if not isinstance(value, date):
        raise place.fault("expires: expected a date such as 2027-01-31, or 2027-01-31T12:00:00Z")
    try:
        if not isinstance(value, datetime):
            value = datetime.combine(value, time(), UTC) + timedelta(days=1)
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    except (OverflowError, ValueError):
        raise place.fault("expires: the date is out of range") from None


def _read_limits(table: dict[str, Any], place: _KeyTablePlace) -> KeyLimits:
    values = {name: table[name] for name in LIMIT_NAMES if name in table}
    for name, value in values.items():
        if type(value) is not int or not 1 <= value <= MAX_LIMIT:
            raise place.fault(f"{name}: expected a positive integer")
    return KeyLimits(**values) if values else NO_LIMITS


def _read_gib(table: dict[str, Any], place: _KeyTablePlace) -> float | None:
    value = table.get("store_gib")
    if value is not None and (type(value) not in (int, float) or not 0 < value < float("inf")):
        raise place.fault("store_gib: expected a positive number")
    return None if value is None else float(value)
