"""Which address is dialled for a client's tool server, and under which name."""

import asyncio
import datetime as dt
import ipaddress
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from antiphon.app.outbound import policy, transport
from antiphon.app.tools.mcp.faults import ToolListError, ToolServerError, WireRecord
from antiphon.app.tools.mcp.tool_server import ToolLimits, ToolServer
from antiphon.app.tools.mcp.tool_servers import ToolServers
from antiphon.app.tools.mcp.transport import create_http_client
from tests.app.tools.hostile_servers import Request, answer_well, serve_raw

PUBLIC_IP = "93.184.216.34"


class Resolver:
    """Answers with the next addresses each time."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append((host, port))
        return self.answers.pop(0)


class Recorder(httpx2.AsyncBaseTransport):
    """Takes the place of the network."""

    def __init__(self, *, fails: int = 0) -> None:
        self.requests: list[httpx2.Request] = []
        self.fails = fails

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        if len(self.requests) <= self.fails:
            raise httpx2.ConnectError("refused")
        return httpx2.Response(200, stream=httpx2.ByteStream(b"{}"))


def make_server(url: str, *, is_operator: bool = False, is_loopback: bool = False) -> ToolServer:
    return ToolServer(label="a", url=url, is_operator=is_operator, is_loopback=is_loopback)


def make_client(
    server: ToolServer, resolver: Resolver, network: Recorder, record: WireRecord | None = None
) -> httpx2.AsyncClient:
    return create_http_client(server, ToolLimits(), record or WireRecord(), resolver, network)


async def test_checked_address_is_dialled_by_its_name() -> None:
    resolver, network = Resolver([PUBLIC_IP], ["127.0.0.1"]), Recorder()
    async with make_client(make_server("https://tools.example:8443/mcp"), resolver, network) as client:
        await client.post("https://tools.example:8443/mcp")
        await client.post("https://tools.example:8443/mcp")
    assert resolver.asked == [("tools.example", 8443)], "a second answer is never asked for: nothing can be rebound"
    for request in network.requests:
        assert str(request.url) == f"https://{PUBLIC_IP}:8443/mcp"
        assert request.headers["host"] == "tools.example:8443"
        assert request.extensions["sni_hostname"] == "tools.example"
        assert request.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    "ips",
    [
        [],
        ["127.0.0.1"],
        [PUBLIC_IP, "127.0.0.1"],
        ["10.0.0.1", PUBLIC_IP],
        [PUBLIC_IP, "::1"],
        ["::ffff:127.0.0.1"],
        ["169.254.169.254"],
        ["fe80::1%eth0"],
        ["nonsense"],
    ],
)
async def test_every_address_must_be_public(ips: list[str]) -> None:
    record, network = WireRecord(), Recorder()
    async with make_client(make_server("https://tools.example/mcp"), Resolver(ips), network, record) as client:
        with pytest.raises(ToolServerError, match="not public"):
            await client.post("https://tools.example/mcp")
    assert not network.requests
    assert record.fault is not None


async def test_literal_address_is_checked_without_resolving() -> None:
    resolver, network = Resolver(), Recorder()
    async with make_client(make_server("https://127.0.0.1/mcp"), resolver, network) as client:
        with pytest.raises(ToolServerError, match="not public"):
            await client.post("https://127.0.0.1/mcp")
    async with make_client(make_server(f"https://{PUBLIC_IP}/mcp"), resolver, network) as client:
        await client.post(f"https://{PUBLIC_IP}/mcp")
    assert not resolver.asked


async def test_allowed_loopback_host_must_be_loopback() -> None:
    network = Recorder()
    server = make_server("http://localhost/mcp", is_loopback=True)
    async with make_client(server, Resolver([PUBLIC_IP]), network) as client:
        with pytest.raises(ToolServerError, match="not public"):
            await client.post("http://localhost/mcp")
    async with make_client(server, Resolver(["127.0.0.1", "::1"]), network) as client:
        await client.post("http://localhost/mcp")
    assert [request.url.host for request in network.requests] == ["127.0.0.1"]


async def test_only_a_failed_connection_is_tried_again() -> None:
    network = Recorder(fails=1)
    async with make_client(make_server("https://a.example/"), Resolver([PUBLIC_IP, "1.1.1.1"]), network) as client:
        await client.post("https://a.example/")
    assert [request.url.host for request in network.requests] == [PUBLIC_IP, "1.1.1.1"]
    network = Recorder(fails=9)
    record = WireRecord()
    server = make_server("https://a.example/", is_operator=True)
    async with make_client(server, Resolver(), network, record) as client:
        with pytest.raises(httpx2.ConnectError):
            await client.post("https://a.example/")
    assert len(network.requests) == 2
    assert record.fault is not None
    assert record.fault.message == "The server could not be reached."


async def test_name_that_does_not_resolve() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        raise OSError("no such name")

    servers = ToolServers({}, resolve=resolve)
    with pytest.raises(ToolListError, match="The name of the server could not be resolved"):
        await servers.list_tools(make_server("https://tools.example/mcp"), "owner")
    await servers.close()


async def test_slow_name_does_not_hold_the_call() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        await asyncio.sleep(600)
        return []

    servers = ToolServers({}, resolve=resolve, limits=ToolLimits(connect_timeout_s=0.05))
    outcome = await servers.call_tool(make_server("https://tools.example/mcp"), "tool", {})
    assert outcome.text == "The call failed: The name of the server could not be resolved. (code 502)"
    await servers.close()


def _write_certificate(folder: Path, name: str) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{name}.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    return path


@asynccontextmanager
async def _serve_tls(certificate: Path) -> AsyncIterator[tuple[int, list[str]]]:
    """Answers with an MCP server behind TLS. Yields the port and the Host headers it has seen."""
    hosts: list[str] = []

    async def reply(request: Request) -> None:
        hosts.append(request.headers["host"])
        await answer_well(request)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    async with serve_raw(reply, "*", tls=context) as (url, _):
        yield int(url.rpartition(":")[2].partition("/")[0]), hosts


@pytest.mark.parametrize("name", ["tools.example", "other.example"])
async def test_tls_checks_the_name_and_not_the_address(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = _write_certificate(tmp_path, name)
    monkeypatch.setattr(transport, "_create_ssl_context", lambda: ssl.create_default_context(cafile=certificate))
    monkeypatch.setattr(policy, "is_public_address", lambda ip: ipaddress.ip_address(ip).is_loopback)
    async with _serve_tls(certificate) as (port, hosts):
        servers = ToolServers({}, resolve=Resolver(["127.0.0.1"]))
        server = make_server(f"https://tools.example:{port}/mcp")
        if name == "tools.example":
            assert [tool.name for tool in (await servers.list_tools(server, "owner")).tools] == ["tool"]
            assert set(hosts) == {f"tools.example:{port}"}
        else:
            with pytest.raises(ToolListError, match="could not be reached"):
                await servers.list_tools(server, "owner")
            assert not hosts
        await servers.close()
