"""API keys: what the server knows of each, and the check that a key can be sent. Only digests of keys are kept."""

import hashlib
from functools import lru_cache
from typing import Literal

from msgspec import Struct

KeyRole = Literal["client", "operator"]
MAX_CACHED_IDS = 65_536
OWNER_DIGITS = 32
"""Length of the owner of a key without a named owner: the first hexadecimal digits of the key's digest."""


class ApiKeyError(ValueError):
    """A key that cannot be used. The message is one line for the operator and does not contain the key."""


class KeyLimits(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Limits of a key, or of all keys of an owner together. None: unlimited."""

    max_concurrent: int | None = None
    """Turns that run or wait at the same time."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Tokens of input and output, also in the next two."""
    tokens_per_day: int | None = None
    tokens_per_month: int | None = None


NO_LIMITS = KeyLimits()


class ApiKey(Struct, frozen=True, kw_only=True, gc=False):
    """An API key that clients may send."""

    digest: bytes
    """SHA-256 digest of the key; empty for the request of a server that requires no key."""
    owner: str
    """Owner of everything that requests with the key store: a name, or the beginning of the digest."""
    name: str = ""
    """Name of the owner; empty if the key has none."""
    models: frozenset[str] | None = None
    """Names of the models that the key may use. None: all."""
    role: KeyRole = "client"
    expires: float | None = None
    """Time in seconds since 1970 from which on the key is refused."""
    limits: KeyLimits = NO_LIMITS
    """Limits of this key alone."""
    owner_limits: KeyLimits = NO_LIMITS
    """Limits of all keys of the owner together."""
    store_gib: float | None = None
    """Size in GiB of what the owner's keys may store. None: the size of the whole store."""

    @property
    def id(self) -> str:
        """Public name of the key, from which neither the key nor its digest can be found."""
        return _make_id(self.digest) if self.digest else ""

    def is_expired(self, now: float) -> bool:
        """Tells whether the key is refused at this time, in seconds since 1970."""
        return self.expires is not None and now >= self.expires


@lru_cache(MAX_CACHED_IDS)
def _make_id(digest: bytes) -> str:
    return f"key_{hashlib.sha256(b'antiphon key id ' + digest).hexdigest()[:16]}"


NO_KEY = ApiKey(digest=b"", owner="")
"""Key of every request to a server that requires none."""


def key_digest(key: str) -> bytes:
    """Returns the SHA-256 digest of a key; the key itself is never stored."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def plain_key(digest: bytes) -> ApiKey:
    """Returns a key without a named owner."""
    return ApiKey(digest=digest, owner=digest.hex()[:OWNER_DIGITS])


def require_valid_key(key: str, source: str) -> str:
    """Returns the key. Raises `ApiKeyError` for one that no client can send, or any."""
    if not key.strip():
        raise ApiKeyError(f"{source}: the API key is empty; any client could send it")
    if not key.isprintable() or any(character.isspace() for character in key):
        raise ApiKeyError(f"{source}: the API key contains white space or control characters; no client can send it")
    return key
