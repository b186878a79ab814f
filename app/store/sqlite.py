"""A store that outlives the process: one sqlite file, which several processes may share.

What runs here lives in memory, and every step of it goes to the file. A background response's steps are shown once
they are safe; of any other, the last one is. What has ended, or runs in another process, is read from the file; while
somebody reads the latter, the file is looked at for more.
"""

import asyncio
import os
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

from antiphon.app.event_log import Frame, Log, ends
from antiphon.app.store.base import Conversation
from antiphon.app.store.database import Disk
from antiphon.app.store.log_items import item_of
from antiphon.app.store.quarantine import inspect
from antiphon.app.store.writer import Delete, Order, Say, Times, Writer
from antiphon.events.inputs import AnyInput
from antiphon.events.response import OutputItem
from antiphon.state.recovery import failure_events

RECENT = 256
"""Logs that have ended and are still in memory."""
DELETED = "The response was deleted."
AGAIN = 1.0
"""Seconds until what could not be deleted is tried again."""
LOOK = 0.05
"""Seconds between two looks for what another process has written."""

NAME = re.compile(r"(?P<machine>[^:]*):(?P<pid>\d+):(?P<birth>\d*):[0-9a-f]*")
"""Of a writer, as a `FileStore` calls itself."""


class FileStore:
    """Keeps logs in the file `path`, within `times.age` seconds and `most` bytes of events. To be closed."""

    def __init__(self, path: Path, *, times: Times = Times(), most: int = 4 * 2**30) -> None:  # noqa: B008  # it is frozen
        inspect(path)
        self._loop = asyncio.get_running_loop()
        self._times = times
        self.name = f"{_machine()}:{os.getpid()}:{_birth(os.getpid())}:{secrets.token_hex(4)}"
        self._live: dict[tuple[str, str], Log] = {}
        self._recent: OrderedDict[tuple[str, str], Log] = OrderedDict()
        self._foreign: dict[tuple[str, str], tuple[Log, asyncio.Task[None]]] = {}
        self._deleted: set[str] = set()
        self._unsaved: dict[tuple[str, str], Log] = {}
        """Logs of which a step could not be written; what is missing is, when it can be."""
        self._mending: set[str] = set()
        self._known: set[str] = set()
        """Live responses of which the file knows."""
        self._asked: Callable[[str], None] = lambda _: None
        self._writer = Writer(path, self.name, self, times, most)
        self._disk = Disk(path)

    async def close(self) -> None:
        """Write what is left."""
        for _, task in self._foreign.values():
            task.cancel()
        await asyncio.to_thread(self._writer.close)
        self._disk.close()

    # As every store

    def put(self, log: Log) -> None:
        """Keep a log from now on."""
        self._live[log.owner, log.id] = log
        log.keeper = self
        frames = tuple(log.frames)
        if log.head.background:
            log.hold(0)
        elif ends(frames):
            log.hold(len(frames) - 1)
        self._writer.order(Say(log, frames, first=True))

    def keep(self, log: Log, first: int) -> None:
        """A log has grown."""
        frames = tuple(log.frames[first:])
        if not log.head.background and ends(frames):
            log.hold(first)
        self._writer.order(Say(log, frames))

    def get(self, owner: str, response_id: str) -> Log | None:
        """The log of that response of that owner, wherever it is written."""
        key = owner, response_id
        if response_id in self._deleted:
            return None
        if key in self._foreign:
            return self._foreign[key][0]
        if (here := self._live.get(key) or self._unsaved.get(key) or self._recent.get(key)) is not None:
            return here
        found = self._disk.load(owner, response_id)
        if found is None:
            return None
        log, writer = found
        if writer is None:
            self._remember(log)
        else:
            self._foreign[key] = log, asyncio.create_task(self._watch(log), name=f"watch {log.id}")
        return log

    def item(self, owner: str, item_id: str) -> OutputItem | AnyInput | None:
        """An item of that owner's by id."""
        for (holder, _), log in [*reversed(self._live.items()), *self._unsaved.items()]:
            if holder == owner and (found := item_of(log, item_id)) is not None:
                return found
        response_id = self._disk.holder(owner, item_id)
        stored = self.get(owner, response_id) if response_id else None
        return self._disk.talked(owner, item_id) if stored is None else item_of(stored, item_id)

    def obstacle(self) -> str | None:
        """Why nothing can be kept now, if so."""
        return None if self._writer.healthy else "The store cannot be written."

    def end(self, log: Log) -> None:
        """Ask the process that writes a log to end its turn."""
        with self._disk.change():
            self._disk.ask(log.id)

    def listen(self, asked: Callable[[str], None]) -> None:
        """Whom to tell of what is to end."""
        self._asked = asked

    def delete(self, owner: str, response_id: str) -> bool:
        """Forget a response of that owner's."""
        log = self.get(owner, response_id)
        if log is None:
            return False
        key = owner, response_id
        self._recent.pop(key, None)
        self._foreign.pop(key, None)
        self._unsaved.pop(key, None)
        self._known.discard(response_id)
        if self._live.pop(key, None) is not None:
            log.keeper = None
            log.show()
        self._deleted.add(response_id)
        self._writer.order(Delete(response_id))
        return True

    # Conversations: seldom changed, so each change is a transaction of its own, here and now

    def save(self, owner: str, conversation: Conversation) -> None:
        """Keep a conversation."""
        with self._disk.change():
            self._disk.save(owner, conversation)

    def conversation(self, owner: str, conversation_id: str) -> Conversation | None:
        """The conversation of that owner with that id."""
        return self._disk.conversation(owner, conversation_id)

    def drop(self, owner: str, conversation_id: str) -> None:
        """Forget it."""
        with self._disk.change():
            self._disk.drop(owner, conversation_id)

    def talk(self, owner: str, conversation_id: str) -> tuple[AnyInput, ...]:
        """Its items."""
        return self._disk.talk(owner, conversation_id)

    def add(self, owner: str, conversation_id: str, items: Sequence[AnyInput]) -> None:
        """More of them."""
        with self._disk.change():
            self._disk.add(owner, conversation_id, items)

    def remove(self, owner: str, conversation_id: str, item_id: str) -> bool:
        """One of them less."""
        with self._disk.change():
            return self._disk.remove(owner, conversation_id, item_id)

    # What the writer says, in its thread, and what other processes write

    def wrote(self, safe: list[Order], lost: list[Order]) -> None:
        """These are written, and those never will be."""
        self._loop.call_soon_threadsafe(self._show, safe, lost)

    def failed(self, orders: list[Order]) -> None:
        """The file cannot be written."""
        self._loop.call_soon_threadsafe(self._show_all, orders)

    def beaten(self, held: dict[str, bool]) -> None:
        """These responses are ours, and of some it is asked to end them."""
        self._loop.call_soon_threadsafe(self._look_after, held)

    def _look_after(self, held: dict[str, bool]) -> None:
        for (_, response_id), log in [*self._live.items(), *self._unsaved.items()]:
            if held.get(response_id):
                self._asked(response_id)
            elif response_id in self._known and response_id not in held:
                self._let_go(log)
        for key, log in list(self._unsaved.items()):
            if not log.ended or log.id in self._mending:
                continue
            if log.id in held:
                self._mending.add(log.id)
                self._writer.order(Say(log, tuple(log.frames[self._disk.count(log.id) :]), again=True))
            else:  # the file never knew of it
                del self._unsaved[key]
                self._remember(log)

    def _show(self, safe: list[Order], lost: list[Order]) -> None:
        for order in safe:
            if isinstance(order, Delete):
                self._deleted.discard(order.response_id)
                continue
            log, frames = order.log, order.frames
            self._known.add(log.id)
            log.show(frames[-1].event.sequence_number + 1 if frames else 0)
            if ends(frames):
                self._known.discard(log.id)
                self._mending.discard(log.id)
                here = self._live.pop((log.owner, log.id), None) or self._unsaved.pop((log.owner, log.id), None)
                if here is not None:
                    self._remember(log)
        for order in lost:
            if isinstance(order, Say):
                self._let_go(order.log)

    def _show_all(self, orders: list[Order]) -> None:
        """What cannot be kept is better told than lost: whoever reads must not wait for ever. It is found here."""
        for order in orders:
            if isinstance(order, Delete):
                self._loop.call_later(AGAIN, self._writer.order, order)
                continue
            log = order.log
            self._mending.discard(log.id)
            if self._live.pop((log.owner, log.id), None) is not None:
                log.keeper = None
                log.show()
                self._unsaved[log.owner, log.id] = log

    def _let_go(self, log: Log) -> None:
        """Another process has deleted a response, or ended it since this one was silent: nobody wants the rest."""
        self._known.discard(log.id)
        key = log.owner, log.id
        if (self._live.pop(key, None) or self._unsaved.pop(key, None)) is not None:
            log.keeper = None
            log.show()
            self._asked(log.id)

    def _remember(self, log: Log) -> None:
        self._recent[log.owner, log.id] = log
        while len(self._recent) > RECENT:
            self._recent.popitem(last=False)

    async def _watch(self, log: Log) -> None:
        """Read on what another process writes, until it has ended."""
        key = log.owner, log.id
        while not log.ended:
            await asyncio.sleep(LOOK)
            writer = self._disk.writer(log.id)
            frames = self._disk.frames(log.id, len(log.frames))
            if frames:
                log.add(frames)
                log.show()
            if writer is None:
                if not ends(log.frames):
                    missing = failure_events(
                        [frame.event for frame in log.frames], code="server_error", message=DELETED
                    )
                    log.add([Frame.of(event) for event in missing])
                    log.show()
                log.end()
        if self._foreign.pop(key, None) is not None:
            self._remember(log)

    def alive(self, name: str, beat: float) -> bool:
        """Whether a writer lives: on this machine its process tells, on another one its heart."""
        if name == self.name:
            return True
        if (found := NAME.fullmatch(name)) and found["machine"] == _machine():
            birth = _birth(int(found["pid"]))
            if found["birth"] and birth != found["birth"]:
                return False
        return time.time() - beat < self._times.lease


def _machine() -> str:
    """This machine since it was started; a name of its own where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return f"unknown-{os.uname().nodename}"


def _birth(pid: int) -> str:
    """When a process was begun, in the system's ticks; empty where there is none, or the system does not tell."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
