"""The page over a real socket: files, caching, headers, the root, and what must never reach a reply."""

import re
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon.app.page.assets import WEB_FOLDER, build_page_files, load_page_files, read_files
from antiphon.app.page.endpoint import SAFETY_HEADERS, accepts_html
from tests.conftest import StartServer
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, serve

SCRIPT = [{"name": "hello", "output": ["Hello."]}]
# Every origin may use the API of this server, and every key but one is refused.
SERVER = partial(serve, SCRIPT, allowed_origins=("*",), api_keys=("sk-page",))
BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
ASSET = next(path for path in load_page_files().assets if path.endswith("/app.js"))
PATHS = (
    "/",
    "/ui",
    "/ui/",
    "/ui/turns",
    "/ui/turns/resp_1",
    "/ui/live",
    "/ui/compare",
    "/ui/play",
    ASSET,
    "/ui/none.js",
)


@pytest.fixture
def client(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.root, timeout=HANG_TIMEOUT_S) as opened:
        yield opened


def exchange_bytes(server: RunningServer, data: bytes) -> bytes:
    """Sends bytes and returns the reply, without the changes that an HTTP client makes to a path."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=HANG_TIMEOUT_S) as connection:
        connection.sendall(data)
        reply = b""
        while piece := connection.recv(65536):
            reply += piece
        return reply


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "OPTIONS"])
def test_every_reply_has_the_safety_headers_and_none_of_cors(client: httpx.Client, path: str, method: str) -> None:
    origin = {"origin": "https://evil.example", "access-control-request-method": "GET"}
    reply = client.request(method, path, headers=origin | BROWSER)
    assert dict(SAFETY_HEADERS).items() <= dict(reply.headers).items()
    assert not [name for name in reply.headers if name.startswith("access-control-")]
    assert "set-cookie" not in reply.headers
    if method in ("POST", "OPTIONS"):
        assert reply.status_code == 405 and reply.headers["allow"] == "GET, HEAD"


def test_policy_is_the_strict_one() -> None:
    policy = dict(SAFETY_HEADERS)["content-security-policy"].split("; ")
    assert {"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'"} <= set(policy)
    assert {"require-trusted-types-for 'script'", "trusted-types 'none'", "frame-ancestors 'none'"} <= set(policy)
    assert not [part for part in policy if "unsafe" in part or "*" in part or "data:" in part]


def test_page_needs_no_key_and_the_api_does(client: httpx.Client) -> None:
    assert client.get("/ui/").status_code == 200
    assert client.get("/v1/models").status_code == 401


def test_assets_are_kept_for_ever_and_the_document_is_asked_for_again(client: httpx.Client) -> None:
    asset, document = client.get(ASSET), client.get("/ui/")
    assert asset.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert asset.headers["content-type"] == "text/javascript; charset=utf-8"
    assert asset.content == (WEB_FOLDER / "app.js").read_bytes()
    assert document.headers["cache-control"] == "no-cache"
    for reply in (asset, document):
        etag = reply.headers["etag"]
        for known in (etag, f"W/{etag}", f'"x", {etag}', "*"):
            again = client.get(reply.url, headers={"if-none-match": known})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
        for unknown in ('"x"', etag.strip('"'), "", etag[:-1]):
            assert client.get(reply.url, headers={"if-none-match": unknown}).status_code == 200


@pytest.mark.parametrize("path", ["/ui/", "/ui/turns", "/ui/turns/resp_1", "/ui/live", "/ui/compare", "/ui/play"])
def test_document_names_its_modules_relative_to_its_own_path(client: httpx.Client, path: str) -> None:
    document = client.get(path)
    names = re.findall(r'(?:href|src)="([^"]+)"', document.text)
    assert any(name.endswith("/app.js") for name in names)
    for name in names:
        assert not name.startswith(("/", "http"))
        assert client.get(document.url.join(name)).status_code == 200, name


def test_head_has_the_headers_of_get_and_no_body(client: httpx.Client) -> None:
    get, head = client.get(ASSET), client.head(ASSET)
    assert head.content == b"" and head.headers["content-length"] == str(len(get.content))


def test_range_is_answered_with_the_whole_file(client: httpx.Client) -> None:
    reply = client.get(ASSET, headers={"range": "bytes=0-3"})
    assert (reply.status_code, reply.content) == (200, (WEB_FOLDER / "app.js").read_bytes())


def test_root_sends_browsers_to_the_page_and_tells_others_the_links(client: httpx.Client) -> None:
    browser = client.get("/", headers=BROWSER)
    assert (browser.status_code, browser.headers["location"], browser.headers["vary"]) == (307, "ui/", "Accept")
    other = client.get("/", headers={"accept": "*/*"}).json()
    assert other["name"] == "antiphon" and other["links"]["page"] == "ui/" and other["version"]
    for link in ("ui/", "openapi.json", "health"):
        assert link in other["links"].values() and client.get(f"/{link}").status_code == 200
    assert client.get("/ui").headers["location"] == "ui/"


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("text/html", True),
        ("application/json, Text/HTML;q=0.5", True),
        ("*/*", False),
        ("", False),
        ("text/html+x", False),
    ],
)
def test_only_named_html_counts_as_a_browser(accept: str, expected: bool) -> None:
    assert accepts_html(accept) is expected


@pytest.mark.parametrize(
    "path",
    [
        *("/ui/../app/server.py", "/ui/%2e%2e/pyproject.toml", "/ui/..%2fREADME.md", "/ui//etc/passwd", "/ui/%00"),
        *(f"{ASSET}%00", f"{ASSET}/", f"{ASSET}/../app.js", ASSET.replace("/ui/", "//ui/"), "/UI/", "/ui/turns/"),
        *("/ui/index.html", "/ui/turns/a/b", "/ui/turns/%3Cb%3E", "/ui/other", "/ui/app.js", "/ui/turns/a%0a"),
        *(
            ASSET.replace("app.js", name)
            for name in ("__init__.py", "package.json", "vendor/manifest.toml", "index.html")
        ),
    ],
)
def test_other_paths_have_no_file(server: RunningServer, path: str) -> None:
    reply = exchange_bytes(server, b"GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % path.encode())
    assert reply.split(b" ")[1] in (b"401", b"404"), reply


def test_nothing_of_a_request_is_reflected(server: RunningServer) -> None:
    marker = "zq7marker"
    lines = [
        "Host: localhost",
        *(f"{name}: {marker}" for name in ("X-Forwarded-Host", "X-Forwarded-Prefix", "X-Request-Id")),
    ]
    lines += [f"Referer: http://{marker}/", f"Forwarded: host={marker}", "Accept: text/html", "Connection: close"]
    for path in ("/", "/ui", "/ui/", f"/ui/turns/{marker}", f"/ui/{marker}", f"/ui/?a={marker}"):
        for method in ("GET", "POST"):
            head = "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""])
            reply = exchange_bytes(server, head.encode())
            assert reply.startswith(b"HTTP/1.1 ") and marker.encode() not in reply, path


def test_unknown_host_is_refused(client: httpx.Client) -> None:
    assert client.get("/ui/", headers={"host": "rebound.example"}).status_code == 421


def test_page_can_be_switched_off(start_server: StartServer) -> None:
    server = start_server(SCRIPT, enable_page=False)
    reply = httpx.get(server.root, headers=BROWSER)
    assert reply.status_code == 200 and "page" not in reply.json()["links"]
    for path in ("/ui", "/ui/", ASSET):
        assert httpx.get(server.root + path).status_code == 404
    assert httpx.get(f"{server.url}/models").status_code == 200


def test_digest_changes_with_each_file() -> None:
    contents = {"index.html": b'<script src="assets:a.js">', "a.js": b"1", "b/c.css": b"2"}
    pages = [build_page_files(contents | change) for change in ({}, {"a.js": b"2"}, {"b/c.css": b""}, {"d.js": b""})]
    assert len({next(iter(page.assets)).split("/")[2] for page in pages}) == 4
    digest = next(iter(pages[0].assets)).split("/")[2]
    assert [page.content.decode() for page in pages[0].documents] == [
        f'<script src="{digest}/a.js">',
        f'<script src="../{digest}/a.js">',
    ]


def test_links_and_other_files_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "outside.js").write_text("secret")
    folder = tmp_path / "web"
    folder.mkdir()
    (folder / "a.js").write_text("1")
    (folder / "b.py").write_text("2")
    (folder / "c.js").symlink_to(tmp_path / "outside.js")
    assert read_files(folder) == {"a.js": b"1"}


def test_every_file_of_the_folder_has_a_known_end() -> None:
    ends: set[Any] = {
        path.suffix for path in WEB_FOLDER.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }
    assert ends == {".js", ".css", ".html", ".json", ".py", ".toml", ".LICENSE", "", ".ts", ".md"}
