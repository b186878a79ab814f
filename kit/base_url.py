"""Base URLs of servers, as commands take them."""

from urllib.parse import urlsplit


def normalize_url(url: str) -> str:
    """Returns a base URL without a slash at its end, with `/v1` if it has no path."""
    url = url.rstrip("/")
    return url if urlsplit(url).path else f"{url}/v1"
