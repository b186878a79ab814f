"""Main loop of the processes that read pictures and PDFs: sets their limits, greets, and answers message by message."""

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable

import msgspec

from antiphon.app.sandbox.media.confinement import confine_process
from antiphon.app.sandbox.media.messages import LENGTHS, MediaReply, MediaRequest, WorkerGreeting

Answer = tuple[MediaReply, bytes, int | None]
"""Reply, payload, and a descriptor that is sent with it and then closed."""
Handle = Callable[[MediaRequest, bytes], Answer]


def serve_media(prepare: Callable[[], Handle]) -> None:
    """Serves until the server closes the socket, which is standard input. `prepare` creates the handler.

    The first argument of the command line is the CPU time for each message in seconds.
    """
    try:
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)  # no file can be opened below
        cpu_limit_s = float(sys.argv[1])
        missing = confine_process()
        handle = prepare()
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the default action ends the process
        with socket.socket(fileno=os.dup(sys.stdin.fileno())) as connection:
            _send(connection, msgspec.msgpack.encode(WorkerGreeting(missing)), b"", None)
            _silence(null)
            decode = msgspec.msgpack.Decoder(MediaRequest).decode
            while (message := _receive(connection)) is not None:
                signal.setitimer(signal.ITIMER_PROF, cpu_limit_s)
                reply, payload, descriptor = handle(decode(message[0]), message[1])
                signal.setitimer(signal.ITIMER_PROF, 0)
                _send(connection, msgspec.msgpack.encode(reply), payload, descriptor)
                del message, reply, payload
    except BaseException:  # noqa: BLE001  the reason must reach the server
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _silence(null: int) -> None:
    """Drops what libraries print: it could hold what a client sent."""
    os.dup2(null, sys.stdout.fileno())
    os.dup2(null, sys.stderr.fileno())


def _receive(connection: socket.socket) -> tuple[bytes, bytes] | None:
    head = _receive_exactly(connection, LENGTHS.size)
    if head is None:
        return None
    header_length, payload_length = LENGTHS.unpack(head)
    header, payload = (_receive_exactly(connection, length) for length in (header_length, payload_length))
    return None if header is None or payload is None else (header, payload)


def _receive_exactly(connection: socket.socket, count: int) -> bytes | None:
    """Returns `count` bytes; None at the end of the connection."""
    buffer = bytearray(count)
    view, done = memoryview(buffer), 0
    while done < count:
        received = connection.recv_into(view[done:])
        if not received:
            return None
        done += received
    view.release()
    return bytes(buffer)


def _send(connection: socket.socket, header: bytes, payload: bytes, descriptor: int | None) -> None:
    head = LENGTHS.pack(len(header), len(payload)) + header
    if descriptor is None:
        connection.sendall(head)
    else:
        sent = socket.send_fds(connection, [head], [descriptor])
        os.close(descriptor)
        connection.sendall(head[sent:])
    connection.sendall(payload)
