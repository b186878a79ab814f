"""A web of fake servers, for the fetcher of URLs."""

import socket
from collections.abc import Callable, Mapping, Sequence

import httpx2

from antiphon.app.outbound.fetcher import UrlFetcher, create_fetch_policy, parse_allowed_host

HOSTS = {"pictures.example": ["93.184.216.34"], "cdn.example": ["2606:2800:220:1::1"]}
Answer = Callable[[httpx2.Request], httpx2.Response]


class Web:
    """A web of fake servers, which records the requests that reach it."""

    def __init__(
        self, answers: Mapping[str, httpx2.Response | Answer], hosts: Mapping[str, Sequence[str]] = HOSTS
    ) -> None:
        self.answers, self.hosts = answers, hosts
        self.requests: list[httpx2.Request] = []
        self.num_lookups = 0

    async def resolve(self, host: str, _port: int) -> Sequence[str]:
        """Looks a host up."""
        self.num_lookups += 1
        if host not in self.hosts:
            raise socket.gaierror("no such host")
        return self.hosts[host]

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        """Answers by the name that the request has."""
        self.requests.append(request)
        found = self.answers[f"{request.url.scheme}://{request.headers['host']}{request.url.raw_path.decode()}"]
        return found(request) if callable(found) else found

    def create_fetcher(self, *allowed: str, may_be_any: bool = False) -> UrlFetcher:
        """Returns a fetcher that reaches this web only."""
        hosts = [parse_allowed_host(text, may_be_any=may_be_any) for text in allowed]
        return UrlFetcher(
            create_fetch_policy(hosts),
            resolve=self.resolve,
            create_network=lambda: httpx2.MockTransport(self.answer),
        )


def redirect(location: str, status: int = 302) -> httpx2.Response:
    return httpx2.Response(status, headers={"location": location})
