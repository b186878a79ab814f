"""HTTP requests to a server under check. Replies are kept as raw bytes, so that their framing can be checked."""

import json
from collections.abc import Mapping
from typing import Any, Literal, Self
from urllib.parse import urlsplit

import httpx2
import msgspec

from antiphon.kit.base_url import normalize_url
from antiphon.kit.json_values import as_objects, decode_object

DEFAULT_TIMEOUT_S = 60.0
"""Seconds without a byte from the server after which a request ends."""
ZSTD_BLOCK_BYTES = 100_000
CONTEXT_KEYS = ("max_model_len", "context_length", "context_window", "max_context_length", "n_ctx")
"""Keys by which servers say how many tokens a model's context holds."""


class UnreachableError(Exception):
    """Raised if the server does not answer at all."""


class LiveReply(msgspec.Struct, frozen=True, kw_only=True):
    """A reply as it came: status, headers with names in lower case, and raw bytes."""

    status: int
    headers: dict[str, str]
    body: bytes
    fault: Literal["", "disconnect", "timeout"] = ""
    """Why the body ended too early. Status 0: before the reply began."""
    fault_text: str = ""

    @property
    def content_type(self) -> str:
        """Media type without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def is_stream(self) -> bool:
        """True for server-sent events."""
        return self.content_type == "text/event-stream"

    def read_object(self) -> dict[str, Any] | None:
        """Returns the JSON object in the body, None if there is none."""
        return decode_object(self.body)


class LiveClient:
    """A client of one server. `url` is the base URL; its path is `/v1` if it has none.

    Example: `LiveClient("http://127.0.0.1:8000").send("GET", "/models").read_object()`.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self.base_url = normalize_url(url)
        self.timeout = timeout
        self.headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        # Each request has a connection of its own: a server may close one that waits, while a request is on its way.
        limits = httpx2.Limits(max_keepalive_connections=0)
        identity = {"accept-encoding": "identity"}
        self._http = httpx2.Client(timeout=timeout, transport=transport, headers=identity, limits=limits)

    @property
    def root_url(self) -> str:
        """Scheme and host."""
        parts = urlsplit(self.base_url)
        return f"{parts.scheme}://{parts.netloc}"

    def send(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        raw: str | None = None,
        headers: Mapping[str, str] | None = None,
        root: bool = False,
        zstd: bool = False,
    ) -> LiveReply:
        """Sends a request and reads the whole reply. Raises `UnreachableError` if the server cannot be reached."""
        sent = self._build_headers(headers)
        content = None
        if raw is not None or body is not None:
            content = raw.encode() if raw is not None else json.dumps(body).encode()
            sent.setdefault("content-type", "application/json")
        if zstd and content is not None:
            content = compress_zstd(content)
            sent["content-encoding"] = "zstd"
        url = (self.root_url if root else self.base_url) + path.encode(errors="replace").decode()
        try:
            with self._http.stream(method, url, content=content, headers=sent) as reply:
                return _read_reply(reply)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise UnreachableError(f"cannot connect to {self.root_url}: {error}") from error
        except httpx2.TimeoutException:
            return LiveReply(status=0, headers={}, body=b"", fault="timeout", fault_text=f"{self.timeout:g} s")
        except httpx2.TransportError as error:
            return LiveReply(status=0, headers={}, body=b"", fault="disconnect", fault_text=str(error))

    def drop(self, path: str, body: object, headers: Mapping[str, str] | None = None) -> None:
        """Sends a POST and closes the connection when the reply has begun, as a probe does."""
        try:
            with self._http.stream("POST", self.base_url + path, json=body, headers=self._build_headers(headers)):
                pass
        except httpx2.TransportError:
            return

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _build_headers(self, more: Mapping[str, str] | None) -> dict[str, str]:
        return self.headers | {name.lower(): value for name, value in (more or {}).items()}


def compress_zstd(content: bytes) -> bytes:
    """Returns a Zstandard frame of uncompressed blocks, which any decoder reads (RFC 8878, 3.1.1)."""
    frame = b"\x28\xb5\x2f\xfd" + b"\xa0" + len(content).to_bytes(4, "little")
    for start in range(0, max(len(content), 1), ZSTD_BLOCK_BYTES):
        block = content[start : start + ZSTD_BLOCK_BYTES]
        is_last = start + ZSTD_BLOCK_BYTES >= len(content)
        frame += (len(block) << 3 | is_last).to_bytes(3, "little") + block
    return frame


def _read_reply(reply: httpx2.Response) -> LiveReply:
    """Reads the body, as far as it comes."""
    body, text = bytearray(), ""  # bytes would be copied for each piece of a body of many megabytes
    fault: Literal["", "disconnect", "timeout"] = ""
    try:
        for piece in reply.iter_raw():
            body += piece
    except httpx2.TimeoutException as error:
        fault, text = "timeout", str(error)
    except httpx2.TransportError as error:
        fault, text = "disconnect", str(error)
    headers = {name.lower(): value for name, value in reply.headers.items()}
    return LiveReply(status=reply.status_code, headers=headers, body=bytes(body), fault=fault, fault_text=text)


class TargetModel(msgspec.Struct, frozen=True):
    """A model of the server."""

    name: str
    context_length: int | None = None


def find_model(client: LiveClient, name: str | None) -> TargetModel:
    """Returns the model with this name, or the first of the list. Raises `UnreachableError` if there is none."""
    reply = client.send("GET", "/models")
    if reply.status == 0:
        raise UnreachableError(f"{client.root_url} does not answer: {reply.fault_text or reply.fault}")
    entries = as_objects((reply.read_object() or {}).get("data"))
    known = {str(entry.get("id")): entry for entry in entries if entry.get("id")}
    if name is None:
        if not known:
            raise UnreachableError(f"GET {client.base_url}/models gets {reply.status} and lists no model: use --model")
        name = next(iter(known))
    return TargetModel(name, _find_context(known.get(name, {})))


def _find_context(entry: dict[str, Any]) -> int | None:
    meta = entry.get("meta")
    for table in (entry, meta if isinstance(meta, dict) else {}):
        for key in CONTEXT_KEYS:
            if isinstance(table.get(key), int):
                return int(table[key])
    return None
