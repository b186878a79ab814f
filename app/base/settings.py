"""Settings that the operator chooses at start. In this package, only the command line reads the environment.

Two modules outside it read some: `harmony/gptoss/format.py` reads `TIKTOKEN_ENCODINGS_BASE`, and unsets it while the
vocabulary is loaded if that folder does not contain it; `engine/kernels/compiler.py` reads `XDG_CACHE_HOME` (where
compiled kernels are stored) and `CC`. The engine's worker process inherits the environment without its secrets.
"""

from pathlib import Path
from typing import Literal

from msgspec import Struct

ReasoningOutput = Literal["content", "summary", "both"]
LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
WILDCARD_HOSTS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, never bound here


class Settings(Struct, frozen=True, kw_only=True):
    """Settings of a server, fixed while it runs. Sizes are in bytes, times in seconds, unless the name has a unit."""

    host: str = "127.0.0.1"
    port: int = 8000
    """TCP port. 0: any free port."""
    grpc_port: int | None = None
    """TCP port of gRPC; each further model has the next one. 0: any free ports; None: gRPC is not served."""
    api_key_digests: tuple[bytes, ...] = ()
    """SHA-256 digests of the API keys. Empty: no key is required."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names that clients may use in addition to loopback names and `host`."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may use the server from a browser, or `*` for every page. Empty: none."""
    ssl_certfile: Path | None = None
    """Certificate of the server in PEM format, followed by those of its issuers. None: plain HTTP."""
    ssl_keyfile: Path | None = None
    """Private key of the certificate. None: it is in `ssl_certfile`."""
    ssl_keyfile_password: str | None = None
    """Password of an encrypted private key."""
    reasoning_output: ReasoningOutput = "content"
    default_max_output_tokens: int | None = None
    """Output limit of requests that set none. None: the rest of the context."""
    store_file: Path | None = None
    """File for stored responses. None: they are stored in `store_url`, or in memory until the server exits."""
    store_url: str | None = None
    """URL of a PostgreSQL database for stored responses, which may hold a password."""
    encryption_key_file: Path | None = None
    """Key file for `encrypted_content`. None: next to the store file, or a new key at each start if there is none.
    All servers of a database have a file with the same key."""
    store_retention_days: float = 30.0
    """Days to keep a stored response in the store file."""
    store_max_gib: float = 4.0
    """Maximum size of stored responses in GiB; the oldest are deleted first."""
    enable_websocket: bool = True
    """Serve WebSockets on `/v1/responses`, too."""
    unsupported_media: Literal["placeholder", "refuse"] = "placeholder"
    """Treatment of images and files, which no supported model accepts: replace by a placeholder, or reject."""
    unknown_tools: Literal["call", "text"] = "call"
    """Treatment of a well-formed call of a tool that was not offered: a call, which agents answer with an error so that
    the model can correct itself, or text."""
    chat_reasoning_field: Literal["reasoning_content", "reasoning"] = "reasoning_content"
    """Field of chat messages and deltas that holds the model's reasoning. OpenAI's API has none."""
    allow_lora_updates: bool = False
    """Whether clients may load and unload adapters."""
    lora_dirs: tuple[str, ...] = ()
    """Folders whose adapters clients may load."""
    trust_request_chat_template: bool = False
    """Whether `chat_template` of a request is used. A client can write any control token with it."""
    max_body_bytes: int = 32 * 1024 * 1024
    header_timeout: float = 15.0
    """Time limit from the opening of a connection, or the first byte of a later request on it, to the end of the
    headers."""
    body_timeout: float = 60.0
    """Time limit from the end of the headers to the end of the body."""
    stall_timeout: float = 60.0
    """Time for which a client may read nothing while the send buffers are full."""
    idle_timeout: float = 75.0
    """Keep-alive time of a connection without a request."""
    shutdown_timeout: float = 5.0
    """Time from the first SIGTERM until streams that are still open are ended."""

    @property
    def encryption_key_path(self) -> Path | None:
        """Path of the key file; None if the key exists in memory only."""
        return self.encryption_key_file or (
            self.store_file and self.store_file.with_name(f"{self.store_file.name}.key")
        )


def is_loopback(host: str) -> bool:
    """Tells whether only this machine can reach a server that is bound to `host`."""
    return host in LOOPBACK_HOSTS or host.startswith("127.")


DEFAULT_SETTINGS = Settings()
"""Default settings, for functions that receive none."""
