"""The operator's options for tool servers."""

import subprocess
import sys

import pytest
from rich.pretty import pretty_repr

from antiphon.app.tools.mcp.client_server import check_client_url, create_client_policy
from antiphon.app.tools.mcp.tool_server import ToolServer, create_client_server, read_tool_servers

SECRET = "marked-secret-77ab"


def test_options_are_read() -> None:
    servers = read_tool_servers(
        ["docs=https://docs.example/mcp?a=1", "local=http://localhost:9000"],
        ["docs=DOCS_KEY"],
        ["time=python -m 'mcp server'"],
        {"DOCS_KEY": SECRET},
    )
    assert list(servers) == ["docs", "local", "time"]
    assert servers["docs"].url == "https://docs.example/mcp?a=1"
    assert servers["docs"].headers == (("Authorization", f"Bearer {SECRET}"),)
    assert servers["local"].url == "http://localhost:9000/"
    assert servers["time"].command == ("python", "-m", "mcp server")
    assert all(server.is_operator and server.label == label for label, server in servers.items())


@pytest.mark.parametrize(
    ("servers", "keys", "commands", "message"),
    [
        (["docs"], [], [], "LABEL=URL"),
        (["docs="], [], [], "LABEL=URL"),
        (["9docs=https://a.example"], [], [], "no label"),
        (["a b=https://a.example"], [], [], "no label"),
        ([f"{'a' * 65}=https://a.example"], [], [], "no label"),
        (["a=https://a.example", "a=https://b.example"], [], [], "two tool servers"),
        (["a=https://a.example"], [], ["a=python"], "two tool servers"),
        (["a=ftp://a.example"], [], [], "must begin"),
        (["a=https://u:marked-secret-77ab@a.example"], [], [], "user name"),
        (["a=https://a.example/#x"], [], [], "character"),
        (["a=https://a.example"], ["a=NONE"], [], "NONE is not set"),
        (["a=https://a.example"], ["a=EMPTY"], [], "EMPTY is not set"),
        (["a=https://a.example"], ["a=LINE"], [], "cannot be sent"),
        (["a=https://a.example"], ["a=KEY", "a=KEY"], [], "twice"),
        (["a=https://a.example"], ["b=KEY"], [], "no --tool-server with this label"),
        ([], ["a=KEY"], ["a=python"], "no --tool-server with this label"),
        ([], [], ["a='python"], "No closing quotation"),
        ([], [], ["a=''"], "names no command"),
    ],
)
def test_faults_of_options(servers: list[str], keys: list[str], commands: list[str], message: str) -> None:
    environ = {"KEY": SECRET, "EMPTY": "", "LINE": f"{SECRET}\nx"}
    with pytest.raises(ValueError, match=message) as fault:
        read_tool_servers(servers, keys, commands, environ)
    assert "\n" not in str(fault.value)
    assert SECRET not in str(fault.value)


def test_no_representation_shows_secrets() -> None:
    server = ToolServer(
        label="a",
        url=f"https://a.example/{SECRET}",
        command=("x", SECRET),
        headers=(("Authorization", f"Bearer {SECRET}"),),
        is_operator=True,
    )
    assert SECRET not in repr(server) + str(server) + f"{[server]}" + pretty_repr(server) + server.identity
    assert SECRET in server.secrets


def test_only_credentials_are_secrets() -> None:
    headers = (
        ("Authorization", "Bearer abcdefgh"),
        ("X-Api-Key", "ijklmnop"),
        ("X-Team", "engineering"),
        ("Key", "short"),
    )
    server = ToolServer(label="a", url="https://a.example/", headers=headers, is_operator=True)
    assert set(server.secrets) == {"Bearer abcdefgh", "abcdefgh", "ijklmnop"}


def test_identity_depends_on_where_and_with_what() -> None:
    servers = [
        ToolServer(label="a", url="https://a.example/", is_operator=True),
        ToolServer(label="a", url="https://b.example/", is_operator=True),
        ToolServer(label="a", url="https://a.example/", is_operator=False),
        ToolServer(label="a", url="https://a.example/", headers=(("A", "b"),), is_operator=True),
        ToolServer(label="a", command=("https://a.example/",), is_operator=True),
    ]
    assert len({server.identity for server in servers}) == len(servers)


def test_client_server_is_none_of_the_operator() -> None:
    address = check_client_url("http://127.0.0.1:99/mcp", create_client_policy(["127.0.0.1:99"]))
    server = create_client_server("a", address, (("X", "y"),))
    assert (server.is_operator, server.is_loopback, server.url) == (False, True, "http://127.0.0.1:99/mcp")


def test_modules_import_without_the_extra() -> None:
    code = """
import sys
sys.modules.update(mcp=None, httpx2=None)
from antiphon.app.tools.mcp.tool_servers import ToolServers, check_extra
ToolServers({})
try:
    check_extra()
except RuntimeError as fault:
    print(fault)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "Tool servers need the package mcp. Install it: pip install 'antiphon[tools]'\n"
