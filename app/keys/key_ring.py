"""The API keys that clients may send now."""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from antiphon.app.options.api_keys import NO_KEY, ApiKey, key_digest

PAGE_KEY_BYTES = 32
CONTROL_KEY = ApiKey(digest=b"", owner="", role="operator")
"""Key of requests that the user who runs the server sends with `KeyRing.control_key`."""


class KeyChange(NamedTuple):
    """Keys that clients may send from now on, and keys that they may send no more."""

    keys: dict[bytes, ApiKey]
    """By digest."""
    removed: tuple[ApiKey, ...]


class KeyRing:
    """Keys of the start, and keys of a file, which a reload replaces. Without any key at the start none is required."""

    def __init__(self, fixed: Iterable[ApiKey] = (), from_file: Iterable[ApiKey] = ()) -> None:
        self._fixed = tuple(fixed)
        self._keys: dict[bytes, ApiKey] = {}
        self._owned: dict[str, tuple[ApiKey, ...]] = {}
        self.on_change: list[Callable[[], None]] = []
        """Called after the keys have changed."""
        self.replace(from_file)
        self.is_required = bool(self._keys)
        self.page_key = "" if self.is_required else secrets.token_urlsafe(PAGE_KEY_BYTES)
        """Key of the page and of `/v1/inspect`, new with each start; empty if API keys are required."""

        self.control_key = secrets.token_urlsafe(PAGE_KEY_BYTES)
        """Key of `/v1/admin`, new with each start, which only the server's runtime file has."""

    def is_control_key(self, sent: bytes) -> bool:
        """Tells whether a client sent the key of the runtime file."""
        return hmac.compare_digest(sent, self.control_key.encode())

    def __iter__(self) -> Iterator[ApiKey]:
        return iter(self._keys.values())

    def __len__(self) -> int:
        return len(self._keys)

    def replace(self, from_file: Iterable[ApiKey]) -> tuple[ApiKey, ...]:
        """Replaces the keys of the file. Returns the keys that no client may send any more.

        A key of the file takes the place of the same key of the start, since it may have limits.
        """
        return self.apply(self.prepare(from_file))

    def prepare(self, from_file: Iterable[ApiKey]) -> KeyChange:
        """Returns what `replace` would change. With many keys it takes milliseconds: call it in a thread."""
        keys = {key.digest: key for key in (*self._fixed, *from_file)}
        return KeyChange(keys, tuple(key for digest, key in self._keys.items() if digest not in keys))

    def apply(self, change: KeyChange) -> tuple[ApiKey, ...]:
        """Makes a change that was prepared after the one before was made. Returns the keys that it removes."""
        self._keys, self._owned = change.keys, {}
        for call in self.on_change:
            call()
        return change.removed

    def find(self, sent: bytes) -> ApiKey | None:
        """Returns the key that a client sent; None if there is no such key.

        Clients send a key with non-ASCII characters as UTF-8 or as Latin-1; both match. The look-up is by digest: the
        time that it takes says nothing about a key, since no client can choose the digest of what it sends.
        """
        found = self._keys.get(hashlib.sha256(sent).digest())
        return found or (None if sent.isascii() else self._keys.get(key_digest(sent.decode("latin-1"))))

    def refresh(self, key: ApiKey) -> ApiKey | None:
        """Returns the key as it is now; None if no client may send it any more."""
        return self._keys.get(key.digest) if self.is_required else NO_KEY

    def list_store_limits(self) -> dict[str, int]:
        """Returns the bytes that owners may store, of those that have a limit; of several, the largest."""
        limits: dict[str, int] = {}
        for key in self._keys.values():
            if key.store_gib is not None:
                limits[key.owner] = max(limits.get(key.owner, 0), int(key.store_gib * 2**30))
        return limits

    def find_worker(self, owner: str, key_id: str, model: str | None = None) -> ApiKey | None:
        """Returns the key that binds work which an owner has left to the server, such as a line of a batch.

        It is the key with this id, with which the work was left. Once that one is revoked or has expired, it is the
        first of the owner's keys that may use `model`, else the first of all; None if the owner has none.
        """
        if not self.is_required:
            return ApiKey(digest=b"", owner=owner)
        now = time.time()
        keys = [key for key in self._list_owned(owner) if not key.is_expired(now)]
        same = next((key for key in keys if key.id == key_id), None)
        if same is not None:
            return same
        fitting = (key for key in keys if key.models is None or model in key.models)
        return next(fitting, keys[0] if keys else None)

    def _list_owned(self, owner: str) -> tuple[ApiKey, ...]:
        """Returns the keys of an owner."""
        found = self._owned.get(owner)
        if found is None:
            found = self._owned[owner] = tuple(key for key in self._keys.values() if key.owner == owner)
        return found
