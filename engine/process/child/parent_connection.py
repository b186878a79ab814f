"""The worker's connection to its parent: commands and descriptors come, reports go."""

import socket

from antiphon.engine.process.descriptors import DescriptorReceiver
from antiphon.engine.process.messages import Command, Report, command_decoder, encode_message

RECV_BYTES = 1 << 18


class ParentConnection:
    """The worker's end of the socket. Every method raises `OSError` or `EOFError` if the parent has exited."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._decoder = command_decoder()
        self._is_first = True
        self.descriptors = DescriptorReceiver()

    def send(self, report: Report) -> None:
        """Sends a report; blocks while the socket's buffer is full."""
        self._socket.sendall(encode_message(report))

    def fileno(self) -> int:
        """Returns the descriptor of the socket."""
        return self._socket.fileno()

    def receive_commands(self, *, wait: bool) -> list[Command]:
        """Returns the commands received since the last call. `wait`: blocks until there is at least one."""
        commands: list[Command] = []
        while True:
            try:
                if self._is_first:
                    data, self._is_first = self.descriptors.receive_first(self._socket), False
                else:
                    data = self._socket.recv(RECV_BYTES, 0 if wait and not commands else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return commands
            if not data:
                raise EOFError
            commands += self._decoder.feed(data)
