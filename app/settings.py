"""What the operator decided when the server was started. Nothing reads the environment but `app.cli`."""

import hashlib
import hmac
from pathlib import Path
from typing import Literal

from msgspec import Struct

ReasoningOutput = Literal["content", "summary", "both"]
LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
WILDCARD_HOSTS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, never bound here


class Settings(Struct, frozen=True, kw_only=True):
    """Fixed for the life of a server. Sizes are bytes, times are seconds."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0: any free port."""
    api_key_digests: tuple[bytes, ...] = ()
    """SHA-256 digests of the API keys; none: no key is asked for."""
    allowed_hosts: tuple[str, ...] = ()
    """Names, besides loopback and `host`, under which a client may reach the server."""
    reasoning_output: ReasoningOutput = "content"
    default_max_output_tokens: int | None = None
    """What a request that names no limit gets; None: until the context is full."""
    store_file: Path | None = None
    """The file that keeps responses; None: they are kept in memory, as long as the server lives."""
    encryption_key_file: Path | None = None
    """The file of the secret that seals what clients keep; None: beside the store, or new with every start."""
    store_retention_days: float = 30.0
    """How long a response is kept there."""
    store_max_gib: float = 4.0
    """How much of them is: the oldest go first."""
    enable_websocket: bool = True
    """Whether `/v1/responses` is a WebSocket, too."""
    unsupported_media: Literal["placeholder", "refuse"] = "placeholder"
    """What becomes of images and files, which no model here can take in."""
    max_body_bytes: int = 32 * 1024 * 1024
    header_timeout: float = 15.0
    """From the opening of a connection, or a request's first byte on one that was kept, to the end of the headers."""
    body_timeout: float = 60.0
    """From the end of the headers to the end of the body."""
    stall_timeout: float = 60.0
    """How long a reader may leave everything unread that the system's buffers hold."""
    idle_timeout: float = 75.0
    """How long a connection without a request is kept."""
    shutdown_timeout: float = 5.0
    """From the first SIGTERM to the end of every open stream."""

    @property
    def encryption_key_path(self) -> Path | None:
        """Where the secret is kept, if anywhere."""
        return self.encryption_key_file or (
            self.store_file and self.store_file.with_name(f"{self.store_file.name}.key")
        )


DEFAULT_SETTINGS = Settings()
"""What holds where nobody decided otherwise."""


def key_digest(key: str) -> bytes:
    """What is kept of an API key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def matching_key(keys: tuple[bytes, ...], sent: str) -> bytes | None:
    """The digest of `sent` if it is one of `keys`. Compares with all of them, so that time tells nothing."""
    mine, found = key_digest(sent), None
    for key in keys:
        if hmac.compare_digest(key, mine):
            found = key
    return found
