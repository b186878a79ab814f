"""Turns over a WebSocket."""

import contextlib
from collections.abc import Mapping

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import connect

from antiphon.kit.checker.lifecycle import TERMINAL_TYPES
from antiphon.kit.conformance.client import LiveClient, UnreachableError
from antiphon.kit.findings import FindingList, quote
from antiphon.kit.json_values import Json, decode_object

BETA_HEADER = {"openai-beta": "responses_websockets=2026-02-06"}


class RefusedUpgradeError(Exception):
    """Raised if the server answers the handshake with an HTTP status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the handshake gets {status}")
        self.status = status


class LiveSocket:
    """A WebSocket to `/responses`. Raises `RefusedUpgradeError` or `UnreachableError`."""

    def __init__(self, client: LiveClient, headers: Mapping[str, str]) -> None:
        self._timeout, self._stack = client.timeout, contextlib.ExitStack()
        url = "ws" + client.base_url.removeprefix("http") + "/responses"
        sent = BETA_HEADER | client.headers | {name.lower(): value for name, value in headers.items()}
        user_agent = sent.pop("user-agent", None)
        try:
            connection = connect(
                url, additional_headers=sent, user_agent_header=user_agent, max_size=None, open_timeout=client.timeout
            )
            self._socket = self._stack.enter_context(connection)
        except InvalidStatus as error:
            raise RefusedUpgradeError(error.response.status_code) from None
        except (OSError, InvalidHandshake) as error:
            raise UnreachableError(f"cannot open a WebSocket to {url}: {error}") from error

    def run_turn(self, message: str, findings: FindingList) -> list[Json]:
        """Sends a message and returns the events up to the end of the turn, or to an error without a turn."""
        events: list[Json] = []
        try:
            self._socket.send(message)
            while not (events and is_last_event(events)):
                event = _read_message(self._socket.recv(timeout=self._timeout), findings)
                if event is not None:
                    events.append(event)
        except TimeoutError:
            findings.add("http-timeout", "the end of the turn", f"no message within {self._timeout:g} s")
        except ConnectionClosed as error:
            findings.add("websocket-closed", "an open connection", str(error))
        return events

    def close(self) -> None:
        """Closes the connection."""
        with contextlib.suppress(OSError, ConnectionClosed):
            self._stack.close()


def is_last_event(events: list[Json]) -> bool:
    """Returns whether the last event ends a turn: a terminal one, or an error before the response was created."""
    kind = events[-1].get("type")
    return kind in TERMINAL_TYPES or (kind == "error" and ("status" in events[-1] or len(events) == 1))


def _read_message(message: str | bytes, findings: FindingList) -> Json | None:
    if isinstance(message, bytes):
        findings.add("websocket-frame", "a text message", "a binary one")
        message = message.decode(errors="replace")
    event = decode_object(message)
    if event is None:
        findings.add("websocket-frame", "a JSON object", quote(message))
    return event
