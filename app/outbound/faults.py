"""The reasons why nothing was sent to a URL, or its reply is not read."""

from typing import Literal

OutboundCode = Literal["refused", "unresolved", "encoded", "too_large"]
RefusedPart = Literal["url", "host", "port", "scheme", "address"]
FetchCode = Literal["refused", "status", "timeout", "failed", "too_large"]


class OutboundError(Exception):
    """The rules of a policy end a request. `encoded`: the reply is compressed, which was not asked for."""

    def __init__(self, code: OutboundCode) -> None:
        self.code = code
        super().__init__(code)


class RefusedUrlError(OutboundError):
    """A policy refuses a URL: nothing was sent. `reason` says what is wrong with a URL that is not valid."""

    def __init__(self, part: RefusedPart, *, host: str, port: int = 0, reason: str = "") -> None:
        super().__init__("refused")
        self.part, self.host, self.port, self.reason = part, host, port, reason


class FetchFault(Exception):  # noqa: N818  it is a property of the URL
    """A URL cannot be fetched. `detail` is for the client. `refused`: by the operator's rules; nothing was sent."""

    def __init__(self, code: FetchCode, url: str, *, host: str = "", status: int = 0, max_bytes: int = 0) -> None:
        url = url.partition("?")[0]  # the query may hold a key
        failure = f"Error while downloading {url}."
        texts: dict[FetchCode, str] = {
            "refused": f"this server fetches no URLs from {host!r}.",
            "status": f"{failure} Upstream status code: {status}.",
            "timeout": f"Timeout while downloading {url}.",
            "too_large": f"{failure} It has more than {max_bytes} bytes.",
            "failed": failure,
        }
        self.code, self.host, self.detail = code, host, texts[code]
        super().__init__(f"{code}: {self.detail}")
