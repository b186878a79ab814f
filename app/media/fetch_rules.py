"""Rules of the operator for the URLs of pictures and files, and the reasons why one was not fetched."""

from typing import Literal

from msgspec import Struct

from antiphon.app.requests.media.urls import is_public_url
from antiphon.app.tools.mcp.address import ANY_HOST, ClientAddress, is_public_address, parse_ip, parse_url

_DEFAULT_PORTS = {"http": 80, "https": 443}

FetchCode = Literal["refused", "status", "timeout", "failed", "too_large"]


class FetchFault(Exception):  # noqa: N818  it is a property of the URL
    """A URL cannot be fetched. `detail` is for the client."""

    def __init__(
        self, code: FetchCode, url: str, *, host: str = "", status: int = 0, found: int = 0, allowed: int = 0
    ) -> None:
        self.code = code
        """`refused`: by the operator's rules; nothing was sent."""
        self.url = url
        self.host = host
        self.status = status
        self.found = found
        self.allowed = allowed
        self.detail = self._describe()
        super().__init__(f"{code}: {self.detail}")

    def _describe(self) -> str:
        url = self.url.partition("?")[0]  # the query may hold a key
        match self.code:
            case "refused":
                return f"this server fetches no URLs from {self.host!r}."
            case "status":
                return f"Error while downloading {url}. Upstream status code: {self.status}."
            case "timeout":
                return f"Timeout while downloading {url}."
            case "too_large":
                return f"Error while downloading {url}. It has more than {self.allowed} bytes."
            case "failed":
                return f"Error while downloading {url}."


class AllowedHost(Struct, frozen=True):
    """A host from which pictures are fetched."""

    scheme: str
    host: str
    """`ANY_HOST`: every public address."""
    port: int

    def allows(self, address: ClientAddress) -> bool:
        """Tells whether a URL may be fetched."""
        return self.host in (ANY_HOST, address.host) and self.scheme == address.scheme and self.port == address.port


def parse_allowed_host(text: str, *, may_be_any: bool = False) -> AllowedHost:
    """Parses HOST, HOST:PORT or http://HOST. Raises ValueError with the reason."""
    if text.endswith(ANY_HOST):
        if text not in (ANY_HOST, f"http://{ANY_HOST}", f"https://{ANY_HOST}") or not may_be_any:
            raise ValueError("Every host is allowed only with --allow-any-image-host. Name the hosts instead.")
        scheme = "http" if text.startswith("http:") else "https"
        return AllowedHost(scheme, ANY_HOST, _DEFAULT_PORTS[scheme])
    address = parse_url(text if "://" in text else f"https://{text}")
    if address.path != "/":
        raise ValueError("Name a host without a path.")
    literal = parse_ip(address.host)
    if not is_public_url(address.url) or (literal is not None and not is_public_address(address.host)):
        raise ValueError(f"{address.host} is not public, so that no URL of it is ever fetched. Name a public host.")
    return AllowedHost(address.scheme, address.host, address.port)


def guess_host(url: str) -> str:
    """Returns what stands for the host in a URL that is not valid, to name it in the answer."""
    scheme, separator, rest = url.partition("://")
    authority = rest if separator else scheme
    return authority.partition("/")[0].rpartition("@")[2][:100]
