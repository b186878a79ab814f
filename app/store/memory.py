"""A store that lives as long as the process, and stays within bounds: the oldest finished responses go first."""

from collections import OrderedDict

from app.log import Log
from events.inputs import AnyInput
from events.response import OutputItem
from events.stream import ItemDone


class MemoryStore:
    """Keeps at most `responses` logs of at most `size` bytes of JSON together. Running ones are never dropped."""

    def __init__(self, responses: int = 10_000, size: int = 512 * 1024 * 1024) -> None:
        self._most, self._size = responses, size
        self._logs: OrderedDict[tuple[str, str], Log] = OrderedDict()
        self._growing: dict[tuple[str, str], Log] = {}
        self._settled = 0  # bytes of the others: what has ended grows no more

    def put(self, log: Log) -> None:
        """Keep a log, and let go of old ones if that is one too many."""
        self._logs[log.owner, log.id] = self._growing[log.owner, log.id] = log
        self._settle()
        self._forget()

    def get(self, owner: str, response_id: str) -> Log | None:
        """The log of that response of that owner."""
        return self._logs.get((owner, response_id))

    async def close(self) -> None:
        """There is nothing to let go of."""

    def delete(self, owner: str, response_id: str) -> bool:
        """Forget a response of that owner's."""
        self._settle()
        key = owner, response_id
        log = self._logs.pop(key, None)
        if log is not None and self._growing.pop(key, None) is None:
            self._settled -= log.size
        return log is not None

    def item(self, owner: str, item_id: str) -> OutputItem | AnyInput | None:
        """An item of that owner's by id; the latest responses are looked through first."""
        for (holder, _), log in reversed(self._logs.items()):
            if holder != owner:
                continue
            for given in log.given:
                if given.id == item_id:
                    return given
            if log.ended and all(item.id != item_id for item in log.response.output):
                continue  # the output of a finished response is at hand; only one that holds the item is gone through
            for frame in log.frames:
                if isinstance(frame.event, ItemDone) and frame.event.item.id == item_id:
                    return frame.event.item
        return None

    def __len__(self) -> int:
        return len(self._logs)

    def _settle(self) -> None:
        """Count what has ended since the last time, once and for all."""
        for key in [key for key, log in self._growing.items() if log.ended]:
            self._settled += self._growing.pop(key).size

    def _forget(self) -> None:
        """Let the oldest go that have ended, as many as there are too many. What still runs counts as far as it is."""
        size = self._settled + sum(log.size for log in self._growing.values())
        gone: list[tuple[str, str]] = []
        for key, log in self._logs.items():
            if len(self._logs) - len(gone) <= self._most and size <= self._size:
                break
            if key not in self._growing:
                gone.append(key)
                size -= log.size
        for key in gone:
            self._settled -= self._logs.pop(key).size
