"""Descriptors of files that the parent passes to its worker, beside the messages of their connection.

The socket for descriptors is passed with the first bytes of the connection. Each descriptor is sent with a number,
which the message about it repeats.
"""

import array
import os
import socket
import struct

_COUNT_STRUCT = struct.Struct("<Q")
FIRST_BYTES = 1 << 16


class DescriptorSender:
    """The parent's end. `send` never blocks."""

    def __init__(self) -> None:
        self._socket, self.other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._numbers = 0

    def send_with(self, connection: socket.socket, data: bytes) -> int:
        """Sends the first bytes of a connection with the other end. Returns how many were sent. Raises `OSError`."""
        with self.other_end:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [self.other_end.fileno()]))]
            return connection.sendmsg([data], rights)

    def send(self, descriptor: int) -> int:
        """Sends a descriptor and returns its number. Raises `BlockingIOError` if the worker must take others first."""
        number = self._numbers + 1
        socket.send_fds(self._socket, [_COUNT_STRUCT.pack(number)], [descriptor])
        self._numbers = number
        return number

    def close(self) -> None:
        """Closes both ends."""
        self._socket.close()
        self.other_end.close()


class DescriptorReceiver:
    """The worker's end, which `receive_first` finds."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._received: dict[int, int] = {}

    def receive_first(self, connection: socket.socket) -> bytes:
        """Receives the first bytes of the connection, and the socket for descriptors if it came with them."""
        data, descriptors, _, _ = socket.recv_fds(connection, FIRST_BYTES, 1)
        if descriptors:
            os.set_inheritable(descriptors[0], False)
            self._socket = socket.socket(fileno=descriptors[0])
        return data

    def close(self) -> None:
        """Closes the socket and the descriptors that were not taken."""
        if self._socket is not None:
            self._socket.close()
        for descriptor in self._received.values():
            os.close(descriptor)
        self._received.clear()

    def take(self, number: int) -> int | None:
        """Returns the descriptor with this number, which the caller closes; None if it did not come."""
        while self._socket is not None and number not in self._received:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._socket, _COUNT_STRUCT.size, 1, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            if len(data) != _COUNT_STRUCT.size or not descriptors:
                return None
            os.set_inheritable(descriptors[0], False)
            self._received[_COUNT_STRUCT.unpack(data)[0]] = descriptors[0]
        return self._received.pop(number, None)
