"""The one thread that writes to the file: what has come while it wrote is written next, in one transaction.

So a commit is shared by all streams of the moment, and the event loop never waits for the medium. It also tells the
others, by a heartbeat, that this process lives, and ends the responses of those that live no more.
"""

import contextlib
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import structlog
from msgspec import Struct

from antiphon.app.event_log import Frame, Log, ends
from antiphon.app.store.database import Disk, LostError
from antiphon.app.store.log_items import spoken
from antiphon.state.recovery import failure_events

SERVER_RESTARTED = "server_restarted"
RESTARTED = "The server that was writing this response was stopped."
PATIENCE = 5
"""How often a transaction that fails is tried."""

_log = structlog.get_logger("antiphon.store")


class Times(Struct, frozen=True, kw_only=True):
    """In seconds."""

    beat: float = 1.0
    lease: float = 10.0
    """Who has not beaten for so long is gone: its responses are ended."""
    sweep: float = 60.0
    """How often what is too old, or too much, is deleted."""
    age: float = 30 * 86_400
    """How long a response is kept."""


class Say(Struct, frozen=True):
    """A step of a response; with its first one, the response itself."""

    log: Log
    frames: tuple[Frame, ...]
    first: bool = False
    again: bool = False
    """Whether these are all frames that could not be written before."""


class Delete(Struct, frozen=True):
    """A response is to be forgotten."""

    response_id: str


Order = Say | Delete


class Listener(Protocol):
    """Hears of what was written, in the writer's thread."""

    def wrote(self, safe: list[Order], lost: list[Order]) -> None:
        """Steps that are safe, and those of responses that are another process's, or nobody's, by now."""

    def failed(self, orders: list[Order]) -> None:
        """These could not be written, however often it was tried."""

    def beaten(self, held: dict[str, bool]) -> None:
        """What this writer still writes, and of each response whether somebody elsewhere wants it to end."""

    def alive(self, name: str, beat: float) -> bool:
        """Whether a writer lives that beat last at that time."""
        ...


class Writer:
    """`healthy` is false from a write that failed to the next one that does not."""

    def __init__(
        self,
        path: Path,
        name: str,
        listener: Listener,
        times: Times,
        most: int,
    ) -> None:
        self._disk, self._name, self._listener = Disk(path), name, listener
        self.healthy = True
        self._times, self._most = times, most
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._swept = 0.0
        self._torn: set[str] = set()
        """Responses of which a step could not be written."""
        self._beat()
        self._thread = threading.Thread(target=self._work, name="store", daemon=True)
        self._thread.start()

    def order(self, order: Order) -> None:
        """Have something written."""
        self._orders.put(order)

    def close(self) -> None:
        """Write what is left, and leave."""
        self._orders.put(None)
        self._thread.join()

    def _work(self) -> None:
        beaten = time.monotonic()
        while True:
            batch = self._wait(beaten + self._times.beat - time.monotonic())
            if batch and batch[-1] is None:
                self._write([order for order in batch if order is not None])
                self._guard(self._leave)
                self._disk.close()
                return
            self._write([order for order in batch if order is not None])
            if time.monotonic() - beaten >= self._times.beat:
                beaten = time.monotonic()
                self._guard(self._beat)

    def _wait(self, seconds: float) -> list[Order | None]:
        """What is to be written: the first order, and all that have come with it."""
        try:
            batch = [self._orders.get(timeout=max(seconds, 0.001))]
        except queue.Empty:
            return []
        while batch[-1] is not None and not self._orders.empty():
            batch.append(self._orders.get())
        return batch

    def _write(self, batch: list[Order]) -> None:
        """One transaction. What is lost to another process is told apart; when nothing can be written, all is."""
        if not batch:
            return
        batch = self._in_order(batch)
        for left in range(PATIENCE, 0, -1):
            try:
                lost = self._transact(batch)
            except Exception as error:  # noqa: BLE001  # whatever it is: who waits for this thread would wait for ever
                self.healthy = False
                self._guard(self._disk.rollback)
                _log.error("the store cannot be written", fault=str(error), tries=left - 1)
                time.sleep(0.1)
            else:
                self.healthy = True
                self._listener.wrote([order for order in batch if order not in lost], lost)
                return
        self._torn |= {order.log.id for order in batch if isinstance(order, Say)}
        self._listener.failed(batch)

    def _in_order(self, batch: list[Order]) -> list[Order]:
        """Without steps of which an earlier one could not be written: what is in the file has no gaps."""
        late: list[Order] = []
        for order in batch:
            if isinstance(order, Say) and order.again:
                self._torn.discard(order.log.id)
            elif isinstance(order, Say) and order.log.id in self._torn:
                late.append(order)
        if late:
            self._listener.failed(late)
        return [order for order in batch if order not in late]

    def _transact(self, batch: list[Order]) -> list[Order]:
        lost: list[Order] = []
        self._disk.begin(sync=any(isinstance(order, Say) and ends(order.frames) for order in batch))
        for order in batch:
            if isinstance(order, Delete):
                self._disk.delete(order.response_id)
                continue
            if order.first:
                self._disk.put(order.log, self._name)
            try:
                self._disk.say(order.log.owner, order.log.id, order.frames, self._name)
                if ends(order.frames) and order.log.conversation:
                    self._disk.add(order.log.owner, order.log.conversation, spoken(order.log))
            except LostError:
                lost.append(order)
        self._disk.commit()
        return lost

    def _beat(self) -> None:
        """Tell that this process lives; end what nobody writes any more; delete what is old."""
        self._disk.begin(sync=False)
        self._disk.beat(self._name, time.time())
        self._disk.commit()
        self.healthy = True
        self._listener.beaten(self._disk.held(self._name))
        for owner, response_id, writer in self._disk.orphans(self._listener.alive):
            self._inherit(owner, response_id, writer)
        if time.monotonic() - self._swept >= self._times.sweep or not self._swept:
            self._swept = time.monotonic()
            self._disk.begin(sync=False)
            self._disk.forget(int(time.time() - self._times.age), self._most)
            self._disk.commit()

    def _inherit(self, owner: str, response_id: str, writer: str) -> None:
        """End a response whose writer is gone, unless another process was faster."""
        self._disk.begin(sync=True)
        if self._disk.take(response_id, writer, self._name):
            said = [frame.event for frame in self._disk.frames(response_id)]
            missing = failure_events(said, code=SERVER_RESTARTED, message=RESTARTED)
            frames = [Frame.of(event) for event in missing]
            if frames:
                self._disk.say(owner, response_id, frames, self._name)
        self._disk.commit()

    def _leave(self) -> None:
        self._disk.begin(sync=True)
        self._disk.leave(self._name)
        self._disk.commit()

    def _guard(self, work: Callable[[], None]) -> None:
        """Do what may fail now and is done again later."""
        try:
            work()
        except Exception as error:  # noqa: BLE001  # as above
            self._disk_fault(error)

    def _disk_fault(self, error: Exception) -> None:
        self.healthy = False
        _log.error("the store cannot be written", fault=str(error))
        with contextlib.suppress(sqlite3.Error):
            self._disk.rollback()
