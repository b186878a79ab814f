"""Faults of tool servers. Their texts are this server's own: they repeat no body, URL or header."""

import asyncio
from http import HTTPStatus

from antiphon.events.hosted import McpHttpError

BAD_ANSWER = HTTPStatus.BAD_GATEWAY.value
"""The code of a fault that is no HTTP status of the tool server: it cannot be reached, or sends what it must not."""
NO_ANSWER = HTTPStatus.GATEWAY_TIMEOUT.value


class ToolServerError(Exception):
    """A tool server cannot be reached, does not answer in time, or answers what it must not. `code`: see above."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def to_error(self) -> McpHttpError:
        """Returns the error of a call."""
        return McpHttpError(code=self.code, message=self.message)


class WireRecord:
    """Records the traffic of one session: its size, its faults, and the time at which it ends."""

    def __init__(self) -> None:
        self.status: int | None = None
        """The HTTP status that answered the latest message."""
        self.fault: ToolServerError | None = None
        self.num_bytes = 0
        """Bytes of all bodies that were received."""
        self.deadline_s: float | None = None
        """The time of the event loop at which all traffic ends, once the session is given up."""

    def fail(self, code: int, message: str) -> ToolServerError:
        """Records a fault and returns it."""
        self.fault = ToolServerError(code, message)
        return self.fault

    def finish_within(self, grace_s: float) -> None:
        """Ends all traffic of the session after the given time."""
        self.deadline_s = asyncio.get_running_loop().time() + grace_s


class ToolListError(Exception):
    """The tools of a server cannot be listed. `message` is for the client: it names the server by its label only."""

    def __init__(self, label: str, reason: str) -> None:
        self.message = f"Error retrieving tool list from MCP server: '{label}'. {reason}"
        super().__init__(self.message)


def describe_status(status: int) -> str:
    """Returns the text for an HTTP status that is an error, in the words of OpenAI."""
    try:
        return f"Http status code: {status} ({HTTPStatus(status).phrase})"
    except ValueError:
        return f"Http status code: {status}"
