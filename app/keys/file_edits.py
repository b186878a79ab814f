"""Edits of the file of API keys: adds a key, removes keys. Comments and the other tables stay as they are."""

import contextlib
import fcntl
import itertools
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path

from antiphon.app.keys.key_file import KeyTableError, is_toml, list_headers, parse_key_file
from antiphon.app.options.api_keys import ApiKey, ApiKeyError, key_digest, require_valid_key

KEY_PREFIX = "sk-antiphon-"
API_KEY_BYTES = 32
TomlValue = str | int | float | date | Sequence[str]


class NewKeyError(ValueError):
    """A field that a new key cannot have: its name, and the fault."""

    def __init__(self, field: str, fault: str) -> None:
        super().__init__(f"{field}: {fault}")
        self.field, self.fault = field, fault


def create_key() -> str:
    """Returns a new API key."""
    return f"{KEY_PREFIX}{secrets.token_urlsafe(API_KEY_BYTES)}"


def add_key(text: str, path: Path, key: str, fields: Mapping[str, TomlValue]) -> str:
    """Returns the text of a file with a table for a key more. Raises `NewKeyError` for fields that it cannot have.

    Raises `ApiKeyError` if the file has a fault of its own.
    The keys of a file with one key a line get tables of their own, with digests, since a file has one of both forms.
    """
    text = text if not text.strip() or is_toml(text) else "".join(_convert_lines(text, path))
    table = ["[[key]]", *(f"{name} = {_format_value(value)}" for name, value in fields.items())]
    table.append(f'sha256 = "{key_digest(key).hex()}"')
    before = text.rstrip("\n")
    edited = "\n".join([*([before, ""] if before else []), *table, ""])
    try:
        parse_key_file(edited, path)
    except KeyTableError as error:
        field, _, fault = error.fault.partition(": ")
        if error.line <= before.count("\n") + 1 or field not in fields:
            raise
        raise NewKeyError(field, fault) from None
    return edited


def remove_keys(text: str, path: Path, is_removed: Callable[[ApiKey], bool]) -> tuple[str, tuple[ApiKey, ...]]:
    """Returns the text of a file without some of its keys, and these. Raises `ApiKeyError`.

    Comments directly above a table stay: they may belong to the tables after it.
    """
    keys = parse_key_file(text, path)
    removed = tuple(key for key in keys if is_removed(key))
    if len(removed) == len(keys):
        raise ApiKeyError(f"{path}: no key would be left; a server needs one. Add another first")
    if not is_toml(text):
        digests = {key.digest for key in removed}
        kept = (line for line in text.splitlines(keepends=True) if not _is_key_of(line.strip(), digests))
        return "".join(kept), removed
    lines = text.splitlines(keepends=True)
    places = [*list_headers(text), ("", len(lines) + 1)]
    key_index, kept_lines = 0, lines[: places[0][1] - 1]
    for (name, start), (_, end) in itertools.pairwise(places):
        block = lines[start - 1 : end - 1]
        if re.sub(r"[\"'\s]", "", name) == "key":
            if key_index < len(keys) and is_removed(keys[key_index]):
                block = _list_trailing_comments(block)
            key_index += 1
        kept_lines += block
    edited = "".join(kept_lines)
    if key_index != len(keys) or parse_key_file(edited, path) != tuple(key for key in keys if key not in removed):
        raise ApiKeyError(f"{path}: cannot be edited, since it has text that looks like a table; edit it by hand")
    return edited, removed


@contextlib.contextmanager
def edit_file(path: Path) -> Iterator[list[str]]:
    """Yields a list with the text of a file, which is empty if the file does not exist; the block may replace it.

    The new text is written to a new file with mode 0600, which then takes the old one's place: a reader sees either.
    Waits for another edit of the file. Raises `OSError`.
    """
    path = path.resolve()
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        texts = [before]
        yield texts
        if texts[0] != before:
            _replace_file(path, texts[0])
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace_file(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def _convert_lines(text: str, path: Path) -> Iterator[str]:
    """Yields the lines of a file with one key a line as tables. Comments stay."""
    known: set[bytes] = set()
    for line in text.splitlines():
        entry = line.strip()
        if not entry or entry.startswith("#"):
            yield f"{entry}\n"
            continue
        digest = key_digest(require_valid_key(entry, str(path)))
        if digest not in known:
            yield f'[[key]]\nsha256 = "{digest.hex()}"\n'
        known.add(digest)


def _is_key_of(line: str, digests: set[bytes]) -> bool:
    return bool(line) and not line.startswith("#") and key_digest(line) in digests


def _list_trailing_comments(block: list[str]) -> list[str]:
    """Returns the comments and empty lines at the end of a table."""
    end = len(block)
    while end > 0 and (not block[end - 1].strip() or block[end - 1].lstrip().startswith("#")):
        end -= 1
    trailing = block[end:]
    first_comment = next((index for index, line in enumerate(trailing) if line.strip()), len(trailing))
    return trailing[first_comment:]


def _format_value(value: TomlValue) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML has JSON's escapes
    if isinstance(value, int | float | date):
        return str(value)
    return f"[{', '.join(_format_value(each) for each in value)}]"
