"""Messages without an end: those of all connections take bounded memory, and the oldest makes room."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosedError
from websockets.frames import CloseCode

from tests.clients.lane_client import LaneClient, open_lanes, text_of
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer, serve

SCRIPT: list[dict[str, Any]] = [{"name": "any", "output": ["Yes."]}]
KEYS = ("sk-one", "sk-two")
MAX_MESSAGE_BYTES, MAX_MESSAGES = 200_000, 2
LARGE = "x" * 150_000


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningServer]:
    monkeypatch.setattr("antiphon.app.http.websocket_protocol.MAX_UNFINISHED_MESSAGES", MAX_MESSAGES)
    with serve(SCRIPT, api_keys=KEYS, max_body_bytes=MAX_MESSAGE_BYTES) as running:
        yield running


def send_unfinished(client: LaneClient, *fragments: str) -> None:
    """Sends fragments of a message that does not end. The server may close the connection before it has read them all.

    The fragments are written past `websockets`: its send would close the socket at a reset, with the close frame unread.
    """
    connection, protocol = client.websocket, client.websocket.protocol
    with connection.protocol_mutex:
        protocol.send_text(fragments[0].encode(), fin=False)
        for fragment in fragments[1:]:
            protocol.send_continuation(fragment.encode(), fin=False)
        data = b"".join(protocol.data_to_send())
    with suppress(ConnectionError):
        connection.socket.sendall(data)


def read_close_code(client: LaneClient) -> int:
    with pytest.raises(ConnectionClosedError) as caught:
        client.websocket.recv(timeout=HANG_TIMEOUT_S)
    assert caught.value.rcvd is not None
    return caught.value.rcvd.code


def test_oldest_message_without_an_end_makes_room_for_another_owner(server: RunningServer) -> None:
    with open_lanes(server, KEYS[0]) as oldest, open_lanes(server, KEYS[0]) as later:
        for client in (oldest, later):
            send_unfinished(client, LARGE[:50_000], LARGE[50_000:])
            client.websocket.ping().wait(HANG_TIMEOUT_S)
        with open_lanes(server, KEYS[1]) as other:
            send_unfinished(other, LARGE)
            assert read_close_code(oldest) == CloseCode.TRY_AGAIN_LATER
            other.websocket.ping().wait(HANG_TIMEOUT_S)
            with open_lanes(server, KEYS[1]) as another:
                for number in range(1, 4):
                    another.create("a", LARGE[:120_000])
                    assert text_of(another.finish("a", number)) == "Yes."
            assert read_close_code(later) == CloseCode.TRY_AGAIN_LATER


def test_frame_without_its_end_is_counted(server: RunningServer) -> None:
    header = bytes([0x81, 0xFF]) + MAX_MESSAGE_BYTES.to_bytes(8, "big") + bytes(4)
    with ExitStack() as stack:
        clients = []
        for _ in range(3):
            # The server replies to a handshake after it has read from all sockets that were ready before: its oldest
            # message is that of the first client.
            clients.append(stack.enter_context(open_lanes(server, KEYS[0])))
            clients[-1].websocket.socket.sendall(header + bytes(150_000))

        assert read_close_code(clients[0]) == CloseCode.TRY_AGAIN_LATER
        for client in clients[1:]:
            client.websocket.socket.shutdown(socket.SHUT_RDWR)  # a close frame would be part of the message


def test_fragments_of_one_byte_are_counted_with_their_overhead(server: RunningServer) -> None:
    with open_lanes(server, KEYS[0]) as client:
        send_unfinished(client, *("x" * 8000))
        assert read_close_code(client) == CloseCode.TRY_AGAIN_LATER
