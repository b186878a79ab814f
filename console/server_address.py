"""Finds the server that a command of a client talks to, and the API key for it."""

import ipaddress
import os
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

import msgspec

from antiphon.console.runtime_file import list_runtime_infos, read_runtime_file
from antiphon.kit.base_url import normalize_url

DEFAULT_URL = "http://127.0.0.1:8000"
"""Where `antiphon serve` listens without options."""
URL_VARIABLE = "ANTIPHON_URL"
KEY_VARIABLES = ("ANTIPHON_API_KEY", "OPENAI_API_KEY")
"""Variables with the API key. The first that is set counts."""
MAX_CLIENT_KEY_FILE_BYTES = 1 << 20


class ServerAddressError(ValueError):
    """Raised for a URL or a key that cannot be used. The message is one line, and contains no key."""


class ServerAddress(msgspec.Struct, frozen=True):
    """The base URL of a server, without a slash at its end, and what named it."""

    base_url: str
    source: str
    """Such as `--url`."""

    @property
    def shown_url(self) -> str:
        """The URL without a user and a password."""
        parts = urlsplit(self.base_url)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def find_server(url: str | None = None) -> ServerAddress:
    """Returns the server of `--url`, else of `$ANTIPHON_URL`, else the only one of this user, else the default.

    Servers of this user on this machine are those with a runtime file. Raises `ServerAddressError`.
    """
    if url is not None:
        return _make_address(url, "--url")
    if (value := os.environ.get(URL_VARIABLE)) is not None:
        return _make_address(value, URL_VARIABLE)
    running = list_runtime_infos()
    if len(running) == 1:
        return _make_address(running[0].url, "the runtime file of the server")
    return _make_address(DEFAULT_URL, f"the default, since {len(running)} servers run" if running else "the default")


def _make_address(url: str, source: str) -> ServerAddress:
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of the port
        is_usable = False
    if not is_usable or not url.isprintable() or " " in url:
        raise ServerAddressError(f"{source}: {url!r} is no URL of a server: write one such as {DEFAULT_URL}")
    return ServerAddress(normalize_url(url), source)


def find_api_key(key_file: Path | None = None) -> str | None:
    """Returns the first key of a file, one a line, else that of the environment; None: no key.

    Lines that begin with `#` are skipped. Raises `ServerAddressError`.
    """
    if key_file is not None:
        return _check_key(_load_first_key(key_file), str(key_file))
    for name in KEY_VARIABLES:
        if keys := os.environ.get(name, "").split():  # ANTIPHON_API_KEY may list all keys of a server
            return _check_key(keys[0], name)
    return None


def find_runtime_key(address: ServerAddress, name: Literal["page_key", "control_key"]) -> str | None:
    """Returns a key from the runtime file of a server of this user on this machine; None without it.

    A server with API keys writes no `page_key`: it takes those.
    """
    parts = urlsplit(address.base_url)
    if not is_loopback(parts.hostname):
        return None
    info = read_runtime_file(parts.port or (443 if parts.scheme == "https" else 80))
    key: str = "" if info is None else getattr(info, name)
    return _check_key(key, "the runtime file of the server") if key else None


def is_loopback(host: str | None) -> bool:
    """Tells whether a host of a URL is this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def _load_first_key(path: Path) -> str:
    try:
        with path.open("rb") as file:
            lines = file.read(MAX_CLIENT_KEY_FILE_BYTES).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ServerAddressError(f"{path}: cannot read the API key: {reason}") from None
    keys = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    if not keys:
        raise ServerAddressError(f"{path}: contains no API key; write one per line")
    return keys[0]


def _check_key(key: str, source: str) -> str:
    """Returns a key that fits into a header."""
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ServerAddressError(f"{source}: the API key has characters that no header can hold")
    return key
