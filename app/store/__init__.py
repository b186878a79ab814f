"""Where logs are kept. `Store` is all that the rest of the house knows of it."""

from typing import Protocol

from app.log import Log
from events.inputs import AnyInput
from events.response import OutputItem


class Store(Protocol):
    """Keeps logs by owner and id. What is not this owner's looks exactly like what does not exist."""

    def put(self, log: Log) -> None:
        """Keep this log from now on, while it is being written."""

    def get(self, owner: str, response_id: str) -> Log | None:
        """The log of that response."""

    def item(self, owner: str, item_id: str) -> OutputItem | AnyInput | None:
        """An item that was put in, or an output item that was said to be done, by its id."""

    async def close(self) -> None:
        """Make everything safe, and let go of it."""
        ...

    def delete(self, owner: str, response_id: str) -> bool:
        """Forget a response; whether there was one. Whoever reads it reads on."""
        ...
