"""Type aliases for ASGI applications and their three arguments."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

AsgiScope = MutableMapping[str, Any]
AsgiMessage = MutableMapping[str, Any]
AsgiReceive = Callable[[], Awaitable[AsgiMessage]]
AsgiSend = Callable[[Any], Awaitable[None]]
HeaderPairs = tuple[tuple[bytes, bytes], ...]
"""Names and values of headers."""
AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]
