"""API keys: their sources, and the comparison with the key that a client sends. Only digests of keys are kept."""

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

MAX_KEY_FILE_BYTES = 1 << 20


class ApiKeyError(ValueError):
    """A key that cannot be used. The message is one line for the operator and does not contain the key."""


def load_api_keys(flags: Iterable[str], key_file: Path | None, environment: str | None) -> tuple[bytes, ...]:
    """Returns the digests of all keys; empty if no key is required. Raises `ApiKeyError`.

    `flags`: values of `--api-key`. `key_file`: one key per line; empty lines and lines that begin with `#` are skipped.
    `environment`: value of `$ANTIPHON_API_KEY`, keys separated by white space. It counts only without flags and file.
    """
    keys = [_require_valid_key(key, "--api-key") for key in flags]
    if key_file is not None:
        keys += [_require_valid_key(key, str(key_file)) for key in _load_key_file(key_file)]
    if not keys and environment is not None:
        keys += _split_environment(environment)
    return tuple(dict.fromkeys(key_digest(key) for key in keys))


def _require_valid_key(key: str, source: str) -> str:
    if not key.strip():
        raise ApiKeyError(f"{source}: the API key is empty; any client could send it")
    if not key.isprintable() or any(character.isspace() for character in key):
        raise ApiKeyError(f"{source}: the API key contains white space or control characters; no client can send it")
    return key


def _load_key_file(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_KEY_FILE_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ApiKeyError(f"{path}: cannot read API keys: {reason}") from None
    lines = [line.strip() for line in content.splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ApiKeyError(f"{path}: contains no API key; write one per line")
    return keys


def _split_environment(value: str) -> list[str]:
    if "," in value:
        raise ApiKeyError("ANTIPHON_API_KEY contains a comma; separate several keys by spaces")
    keys = value.split()
    if not keys:
        raise ApiKeyError("ANTIPHON_API_KEY is empty; set a key, or unset the variable to require none")
    return [_require_valid_key(key, "ANTIPHON_API_KEY") for key in keys]


def key_digest(key: str) -> bytes:
    """Returns the SHA-256 digest of a key; the key itself is never stored."""
    return _digest(key.encode("utf-8", "surrogateescape"))


def matching_key(digests: tuple[bytes, ...], sent: bytes) -> bytes | None:
    """Returns the digest in `digests` of the key that a client sent, else None.

    Clients send a key with non-ASCII characters as UTF-8 or as Latin-1; both match. All digests are compared, so that
    timing reveals nothing.
    """
    match = None
    for candidate in (_digest(sent), key_digest(sent.decode("latin-1"))):
        for digest in digests:
            if hmac.compare_digest(digest, candidate):
                match = digest
    return match


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
