"""Each route in each spelling of its path: it has the rights of the plain path, or is not found.

Clients normalise paths before they send them, so the requests are written to a socket as bytes.
"""

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from msgspec import Struct

from antiphon.app.main.table import ROUTE_HANDLERS
from antiphon.app.options.api_keys import ApiKey, KeyLimits, key_digest
from antiphon.app.page.assets import load_page_files
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, serve

ORIGIN = "https://friend.example"
LIMITS = KeyLimits(requests_per_minute=10**6)
FORM_PATHS = ("/v1/files", "/v1/uploads/{upload_id:str}/parts")
FORM = b"--x\r\n"
FOREIGN_PAGE = "sec-fetch-site: cross-site\r\n"
UPGRADE = (
    "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
PREFLIGHT = "access-control-request-method: GET\r\n"


class Entry(Struct, frozen=True):
    """A method and a path that the server knows."""

    method: str
    path: str
    media_type: str = "application/json"


class Rights(Struct, frozen=True):
    """The parts of a reply that tell which checks a request has passed."""

    status: int
    code: str
    cors: tuple[str, ...]
    is_counted: bool

    @property
    def is_refused(self) -> bool:
        """True if no handler has seen the request: it is not found, or sent to the plain path."""
        return not self.is_counted and (self.status == 308 or (self.status, self.code) == (404, "unknown_url"))


def list_entries() -> list[Entry]:
    """Returns the routes of the table, the WebSocket, the page, and the preflight of each path."""
    found = [
        Entry(
            method,
            re.sub(r"\{(\w+):(str|path)\}", lambda match: "org%2fname" if match[2] == "path" else "x1", template),
            "multipart/form-data; boundary=x" if template in FORM_PATHS else "application/json",
        )
        for handler in ROUTE_HANDLERS
        for template in handler.paths
        for method in handler.http_methods
    ]
    asset = next(path for path in load_page_files().assets if path.endswith("/app.js"))
    page = [Entry("GET", path) for path in ("/", "/ui", "/ui/", "/ui/turns", "/ui/turns/x1", asset)]
    preflights = [Entry("OPTIONS", path) for path in sorted({entry.path for entry in found + page})]
    return [*found, *page, *preflights, Entry("WEBSOCKET", "/v1/responses")]


ENTRIES = list_entries()
OTHER_SPELLINGS: dict[str, Callable[[str], str]] = {
    "two slashes in front": lambda path: f"/{path}",
    "three slashes in front": lambda path: f"//{path}",
    "two slashes inside": lambda path: path[0] + path[1:].replace("/", "//") if "/" in path[1:] else f"{path}//",
    "no first slash": lambda path: path[1:] or "x",
    "a dot segment": lambda path: f"/.{path}",
    "a dot segment at the end": lambda path: f"{path.rstrip('/')}/.",
    "a segment and back": lambda path: f"/v1/..{path}",
    "an escaped dot segment": lambda path: f"/%2e{path}",
    "escaped dots": lambda path: f"/v1/%2E%2e{path}",
    "an escaped first slash": lambda path: f"/%2f{path[1:]}",
    "an escaped slash": lambda path: "/%2f".join(path.rsplit("/", 1)) if path.count("/") < 2 else escape_slash(path),
    "a last slash": lambda path: f"{path}/",
    "two last slashes": lambda path: f"{path}//",
    "an escaped last slash": lambda path: f"{path}%2f",
    "an escaped NUL": lambda path: f"{path}%00",
    "a backslash": lambda path: f"/\\{path[1:]}",
    "bytes that are not UTF-8": lambda path: f"{path}%ff",
    "the absolute form": lambda path: f"http://localhost{path}",
}
"""Spellings that are never served, although the router reads some of them as the plain path."""
OTHER_PATHS: dict[str, Callable[[str], str]] = {
    "upper case": lambda path: path.upper() if path != "/" else "/X",
    "a parameter": lambda path: f"{path};x",
}
"""Paths of their own. They are not served, except where the difference is in an id."""


def escape_slash(path: str) -> str:
    """Returns the path with its second slash escaped."""
    second = path.index("/", 1)
    return f"{path[:second]}%2f{path[second + 1 :]}"


def escape_letter(path: str) -> str:
    """Returns the path with its first letter escaped, which is the same path (RFC 3986, 6.2.2.2)."""
    return re.sub("[a-z]", lambda match: f"%{ord(match[0]):x}", path, count=1)


class Caller:
    """Sends requests with one set of headers over a connection that is opened again when it was closed."""

    def __init__(self, server: RunningServer, headers: str) -> None:
        self._port, self._headers = server.port, headers
        self._socket: socket.socket | None = None
        self._received = b""

    def ask(self, entry: Entry, target: str, version: str = "1.1") -> Rights:
        """Returns the rights that a request to this target has."""
        self._send(_encode_request(entry, target, self._headers, version))
        return self._read_rights()

    def ask_all(self, entry: Entry, targets: list[str]) -> list[Rights]:
        """Returns the rights of requests to these targets. They are sent at once, as long as no reply is a stream."""
        found: list[Rights] = []
        while len(found) < len(targets):
            self._send(b"".join(_encode_request(entry, target, self._headers) for target in targets[len(found) :]))
            while self._socket is not None and len(found) < len(targets):
                found.append(self._read_rights())
        return found

    def _send(self, data: bytes) -> None:
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=HANG_TIMEOUT_S)
        self._socket.sendall(data)

    def _receive_more(self) -> None:
        assert self._socket is not None
        piece = self._socket.recv(65536)
        assert piece, self._received
        self._received += piece

    def _read_rights(self) -> Rights:
        while b"\r\n\r\n" not in self._received:
            self._receive_more()
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        length = int(headers.get("content-length", "0" if " 204 " in first else "-1"))
        while len(self._received) < length:
            self._receive_more()
        body, self._received = self._received[: max(length, 0)], self._received[max(length, 0) :]
        if length < 0 or headers.get("connection") == "close":
            self.close()  # a stream, whose head is enough
        code = re.search(rb'"code":"(\w+)"', body)
        # Errors of Anthropic's and Ollama's APIs have no code.
        is_unknown = b'"not_found_error"' in body or body.startswith((b'{"error":"Unknown', b'{"error":"There is no'))
        return Rights(
            int(first.split(" ")[1]),
            code[1].decode() if code else "unknown_url" * is_unknown,
            tuple(sorted(name for name in headers if name.startswith("access-control-"))),
            "x-ratelimit-limit-requests" in headers,
        )

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._received = None, b""


def _encode_request(entry: Entry, target: str, headers: str, version: str = "1.1") -> bytes:
    upgrade, preflight = UPGRADE * (entry.method == "WEBSOCKET"), PREFLIGHT * (entry.method == "OPTIONS")
    method = "GET" if upgrade else entry.method
    body = b"" if method != "POST" else FORM if entry.media_type.startswith("multipart") else b"{}"
    head = f"{method} {target} HTTP/{version}\r\nhost: localhost\r\n{headers}{upgrade}{preflight}"
    if body:
        head += f"content-type: {entry.media_type}\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def bearer(key: str) -> str:
    return f"authorization: Bearer {key}\r\n"


@pytest.fixture(scope="module")
def callers() -> Iterator[dict[str, Caller]]:
    """One caller for each kind of credentials, of a server with keys and of one without."""
    keys = tuple(
        ApiKey(digest=key_digest(f"sk-{role}"), owner=role, name=role, role=role, limits=LIMITS)
        for role in ("client", "operator")
    )
    script = [{"name": "ok", "output": ["Hello."]}]
    with (
        serve(script, api_keys=keys, allowed_origins=(ORIGIN,)) as keyed,
        serve(script, allowed_origins=(ORIGIN,)) as open_server,
        ExitStack() as stack,
    ):
        for server in (keyed, open_server):
            server.context.begin_drain = lambda: None
        page_key = bearer(open_server.context.keys.page_key)
        found = {
            "no key": Caller(keyed, f"origin: {ORIGIN}\r\n"),
            "client's key": Caller(keyed, f"origin: {ORIGIN}\r\n{bearer('sk-client')}"),
            "operator's key": Caller(keyed, f"origin: {ORIGIN}\r\n{bearer('sk-operator')}"),
            "control key": Caller(keyed, f"origin: {ORIGIN}\r\n{bearer(keyed.context.keys.control_key)}"),
            "no key, open": Caller(open_server, f"origin: {ORIGIN}\r\n"),
            "page key": Caller(open_server, f"origin: {ORIGIN}\r\n{page_key}"),
            "page key of a foreign page": Caller(open_server, f"origin: {ORIGIN}\r\n{page_key}{FOREIGN_PAGE}"),
            "control key, open": Caller(open_server, bearer(open_server.context.keys.control_key)),
        }
        for caller in found.values():
            stack.callback(caller.close)
        yield found


def list_faults(name: str, caller: Caller) -> tuple[int, list[str]]:
    """Returns the number of pairs of entry and spelling that were tried, and the differences."""
    faults, num_pairs, known = [], 0, {(entry.method, entry.path) for entry in ENTRIES}
    unknown = {method: caller.ask(Entry(method, "/nope"), "/nope") for method in {each.method for each in ENTRIES}}

    def compare(entry: Entry, target: str, rights: Rights, is_right: bool) -> None:
        nonlocal num_pairs
        num_pairs += 1
        if not is_right:
            faults.append(f"{entry.method} {target} with {name}: {rights}")

    for entry in ENTRIES:
        plain = caller.ask(entry, entry.path)
        targets = [spell(entry.path) for spell in OTHER_SPELLINGS.values()]
        targets = [target for target in targets if (entry.method, target) not in known]
        for target, rights in zip(targets, caller.ask_all(entry, targets), strict=True):
            compare(entry, target, rights, rights.is_refused)
        for spell in OTHER_PATHS.values():
            rights = caller.ask(entry, spell(entry.path))
            is_refused = rights.status >= 300 and not rights.is_counted
            compare(entry, spell(entry.path), rights, is_refused or rights in (plain, unknown[entry.method]))
        rights = caller.ask(entry, escape_letter(entry.path))
        compare(entry, escape_letter(entry.path), rights, rights == plain)
        if entry.method != "WEBSOCKET":
            rights = caller.ask(entry, entry.path, version="1.0")
            compare(entry, f"{entry.path} HTTP/1.0", rights, rights == plain)
            rights = caller.ask(Entry("WEBSOCKET", entry.path), entry.path)
            is_socket = entry.path == "/v1/responses" and rights.status in (101, 401)
            compare(entry, f"{entry.path} as a WebSocket", rights, is_socket or rights.is_refused)
    return num_pairs, faults


@pytest.mark.timeout(HANG_TIMEOUT_S * 4)
def test_every_spelling_of_every_path_has_the_rights_of_the_plain_path(callers: dict[str, Caller]) -> None:
    results = [list_faults(name, caller) for name, caller in callers.items()]
    faults = [fault for _, found in results for fault in found]
    print(f"{sum(count for count, _ in results)} pairs")
    assert faults == [], f"{len(faults)} differences: {faults[:12]}"
