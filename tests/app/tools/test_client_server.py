"""What clients may name of their tool servers: URLs and headers, as tables of hostile and of ordinary ones."""

import pytest

from antiphon.app.options.settings import Settings
from antiphon.app.tools.hosted_options import ToolOptionError, check_tool_options
from antiphon.app.tools.mcp.client_server import check_client_headers, check_client_url, create_client_policy

ANY = create_client_policy(["*"])
REFUSED_URLS = """
http://example.com/mcp
ftp://example.com/mcp
file:///etc/passwd
example.com/mcp
//example.com/mcp
https:example.com
https:/example.com
https://
https:///mcp
https://user@example.com/
https://user:password@example.com/
https://example.com@127.0.0.1/
https://127.0.0.1#@example.com/
https://127.0.0.1%23@example.com/
https://example.com\\@127.0.0.1/
https://example.com\\.evil.com/
https:\\\\example.com
https://example.com/#fragment
https://exa%6dple.com/
https://example.com:0/
https://example.com:65536/
https://example.com:/
https://example.com:-1/
https://example.com:8443/
https://example.com:443:443/
https://example.com./mcp
https://.example.com/
https://example..com/
https://-example.com/
https://localhost/
https://LOCALHOST/
https://localhost:443/
https://127.0.0.1/
https://127.1/
https://127.0.1/
https://2130706433/
https://017700000001/
https://0177.0.0.1/
https://0x7f000001/
https://0x7f.0.0.1/
https://0x7f.1/
https://example.0x7f/
https://127.0.0.256/
https://1.2.3.4.5/
https://0/
https://0.0.0.0/
https://00.0.0.0/
https://10.0.0.1/
https://172.16.0.1/
https://192.168.1.1/
https://169.254.169.254/latest/meta-data/
https://100.100.100.200/
https://100.64.0.1/
https://224.0.0.1/
https://255.255.255.255/
https://[::1]/
https://[::]/
https://[::ffff:127.0.0.1]/
https://[::ffff:7f00:1]/
https://[0:0:0:0:0:ffff:10.0.0.1]/
https://[64:ff9b::7f00:1]/
https://[2002:7f00:1::]/
https://[fe80::1]/
https://[fe80::1%25eth0]/
https://[fe80::1%eth0]/
https://[fd00:ec2::254]/
https://[fc00::1]/
https://[ff02::1]/
https://[::1/
https://::1/
https://[v1.a]/
https://[example.com]/
https://exámple.com/
https://例え.jp/
https://example。com/
https://ｅxample.com/
https://example.com/a b
https://example.com/%zz
https://example.com/%
https://example.com/<a>
https://example.com/"a"
https://example.com/{a}
https://example.com/a|b
""".strip().splitlines()
CONTROL = ["\t", "\n", "\r", "\0", "\x7f", "\u2028", "\u00ad", "\u200b", "\x85"]


@pytest.mark.parametrize("url", REFUSED_URLS)
def test_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"\.$") as fault:
        check_client_url(url, ANY)
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize("character", CONTROL)
@pytest.mark.parametrize("form", ["https://exam{}ple.com/", "https://example.com{}/", "{}https://example.com/", "https://example.com/{}", "htt{}ps://example.com"])  # fmt: skip
def test_control_character_is_refused(form: str, character: str) -> None:
    with pytest.raises(ValueError, match="character that it must not"):
        check_client_url(form.format(character), ANY)


@pytest.mark.parametrize(
    ("url", "rebuilt"),
    [
        ("https://example.com", "https://example.com/"),
        ("HTTPS://Example.COM/Mcp?A=b%20c", "https://example.com/Mcp?A=b%20c"),
        ("https://example.com:443/mcp", "https://example.com/mcp"),
        ("https://example.com:80/mcp", "https://example.com:80/mcp"),
        ("https://example.com?key=1", "https://example.com/?key=1"),
        ("https://xn--bcher-kva.example/mcp", "https://xn--bcher-kva.example/mcp"),
        ("https://a_b.example/x/../y", "https://a_b.example/x/../y"),
        ("https://93.184.216.34/mcp", "https://93.184.216.34/mcp"),
        ("https://[2606:2800:220:1:0248:1893:25c8:1946]/", "https://[2606:2800:220:1:248:1893:25c8:1946]/"),
        ("https://1e100.net/", "https://1e100.net/"),
    ],
)
def test_url_is_rebuilt(url: str, rebuilt: str) -> None:
    address = check_client_url(url, ANY)
    assert address.url == rebuilt
    assert check_client_url(rebuilt, ANY) == address


@pytest.mark.parametrize(
    ("url", "allowed", "is_allowed"),
    [
        ("https://a.example/", [], False),
        ("https://a.example/", ["a.example"], True),
        ("https://a.example/", ["A.Example"], True),
        ("https://b.a.example/", ["a.example"], False),
        ("https://a.example.evil/", ["a.example"], False),
        ("https://a.example:8443/", ["a.example"], False),
        ("https://a.example:8443/", ["a.example:8443"], True),
        ("https://a.example/", ["a.example:8443"], False),
        ("https://a.example:8443/", ["*"], False),
        ("http://localhost:9000/", ["localhost:9000"], True),
        ("http://localhost/", ["localhost"], True),
        ("http://localhost/", ["*"], False),
        ("http://127.0.0.1:9000/mcp", ["127.0.0.1:9000"], True),
        ("http://127.0.0.2:9000/mcp", ["127.0.0.1:9000"], False),
        ("http://[::1]:9000/mcp", ["[::1]:9000"], True),
        ("http://[::1]/mcp", ["::1"], True),
        ("http://[::1]:9000/mcp", ["[0:0::1]:9000"], True),
        ("http://a.example/", ["a.example"], False),
        ("https://10.0.0.1/", ["10.0.0.1"], False),
        ("https://169.254.169.254/", ["169.254.169.254", "*"], False),
    ],
)
def test_allowed_hosts(url: str, allowed: list[str], *, is_allowed: bool) -> None:
    if is_allowed:
        assert check_client_url(url, create_client_policy(allowed)).host
    else:
        with pytest.raises(ValueError, match=r"not allowed|not public|must begin with https"):
            check_client_url(url, create_client_policy(allowed))


@pytest.mark.parametrize(
    "entry",
    ["*:8443", "*.example", "", ":443", "a.example:", "a.example:0", "https://a.example", "a.example/mcp", "a_b:x"],
)
def test_entry_that_names_no_host_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match=r"--mcp-allow"):
        create_client_policy(["b.example", entry])
    with pytest.raises(ToolOptionError, match=r"--mcp-allow"):
        check_tool_options(Settings(mcp_allowed_hosts=(entry,)))


def test_headers_are_kept_and_authorization_is_added() -> None:
    assert check_client_headers({"X-Key": "a b"}, "token") == (("X-Key", "a b"), ("Authorization", "Bearer token"))


@pytest.mark.parametrize(
    "headers",
    [
        {"X": "secret\r\nY: z"},
        {"X": "secret\nY"},
        {"X": "secret\0"},
        {"X": "secret\x7f"},
        {"X": "secretü"},
        {"X": " secret"},
        {"X\r\nY": "secret"},
        {"X Y": "secret"},
        {"X:": "secret"},
        {"": "secret"},
        {"Host": "secret"},
        {"content-LENGTH": "secret"},
        {"Transfer-Encoding": "secret"},
        {"Connection": "secret"},
        {"Upgrade": "secret"},
        {"Mcp-Session-Id": "secret"},
        {"MCP-Protocol-Version": "secret"},
        {"Cookie": "secret"},
        {"Accept-Encoding": "secret"},
        {"Last-Event-ID": "secret"},
        {"Proxy-Authorization": "secret"},
        {"x": "secret", "X": "secret"},
        {"X": "secret" * 4096},
        {f"X-{number}": "secret" for number in range(33)},
    ],
    ids=lambda headers: next(iter(headers))[:20],
)
def test_headers_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"\.$") as fault:
        check_client_headers(headers)
    assert "secret" not in str(fault.value)


def test_two_credentials_are_refused() -> None:
    with pytest.raises(ValueError, match="two credentials"):
        check_client_headers({"authorization": "Bearer a"}, "b")
    with pytest.raises(ValueError, match="cannot be sent"):
        check_client_headers({}, "a\r\nb")
