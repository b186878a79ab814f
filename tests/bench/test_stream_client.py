"""The client of the protocol's benchmark: it reads a reply to its end, however the reply is cut into pieces."""

import select
import socket
import threading

from bench.stream_client import WebSocketClient

LAST = b'{"type":"response.completed","response":{"usage":{"output_tokens":7,"x":1}},"stream_id":"lane-0"}'


def test_last_event_in_two_pieces_is_read_whole() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepted: list[socket.socket] = []

        def shake_hands() -> None:
            accepted.append(listener.accept()[0])
            accepted[0].sendall(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")

        server = threading.Thread(target=shake_hands)
        server.start()
        client = WebSocketClient(listener.getsockname()[1], {"model": "m"}, 1)
        server.join()
    ends = []
    with accepted[0] as connection:
        for piece in (LAST[:60], LAST[60:]):
            connection.sendall(piece)
            select.select([client.socket], [], [])
            ends.append(client.read_available())
    assert ends == [False, True] and client.reply.endswith(LAST)
