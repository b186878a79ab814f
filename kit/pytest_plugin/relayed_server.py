"""A server of a test behind a relay, and what went over its connections."""

from typing import Any, Self

from antiphon.kit.pytest_plugin.exchanges import RelayedExchange
from antiphon.kit.pytest_plugin.relay import RecordingRelay
from antiphon.kit.snapshot.recorded_stream import RecordedStream


class RelayedServer:
    """A running server on a port of this machine."""

    api_key = "none"
    """A key for clients that insist on one. The server requires none."""

    def __init__(self, upstream_port: int) -> None:
        self._relay = RecordingRelay(upstream_port)
        self._relay.start()
        self.url = self._relay.url
        """URL of the server, for clients of Anthropic's API."""
        self.base_url = f"{self.url}/v1"
        """Base URL for clients of OpenAI's APIs."""
        self._first = 0
        self._is_stopped = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def exchanges(self) -> list[RelayedExchange]:
        """All requests with their replies, in the order in which they came."""
        return self._relay.exchanges[self._first :]

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The bodies of all requests that have one, in the order in which they came."""
        return [body for exchange in self.exchanges if (body := exchange.request) is not None]

    @property
    def streams(self) -> list[RecordedStream]:
        """The server-sent events of each streamed reply, as they came, in the order of their requests."""
        return [exchange.stream for exchange in self.exchanges if exchange.is_stream]

    def clear(self) -> None:
        """Forgets the exchanges so far, for a server that several tests share."""
        self._first = len(self._relay.exchanges)

    def stop(self) -> None:
        """Stops the relay."""
        self._is_stopped = True
        self._relay.stop()
