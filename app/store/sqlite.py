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

from antiphon.app.event_log import EventLog, LogEntry, is_terminal
from antiphon.app.store.base import StoredConversation
from antiphon.app.store.database import Database
from antiphon.app.store.log_items import find_item
from antiphon.app.store.quarantine import quarantine_if_corrupt
from antiphon.app.store.writer import AppendEvents, DeleteResponse, StoreTimings, StoreWriter, WriteOp
from antiphon.events.inputs import AnyInput
from antiphon.events.response import OutputItem
from antiphon.state.recovery import failure_events

MAX_RECENT_LOGS = 256
"""Logs that have ended and are still in memory."""
DELETED_MESSAGE = "The response was deleted."
DELETE_RETRY_S = 1.0
"""Seconds until what could not be deleted is tried again."""
POLL_INTERVAL_S = 0.05
"""Seconds between two looks for what another process has written."""

WRITER_NAME = re.compile(r"(?P<machine>[^:]*):(?P<pid>\d+):(?P<birth>\d*):[0-9a-f]*")
"""Of a writer, as a `FileStore` calls itself."""


class SqliteStore:
    """Keeps logs in the file `path`, within `times.age` seconds and `most` bytes of events. To be closed."""

    def __init__(self, path: Path, *, timings: StoreTimings = StoreTimings(), max_bytes: int = 4 * 2**30) -> None:  # noqa: B008  # it is frozen
        quarantine_if_corrupt(path)
        self._loop = asyncio.get_running_loop()
        self._timings = timings
        self.name = f"{_machine_id()}:{os.getpid()}:{_process_start_time(os.getpid())}:{secrets.token_hex(4)}"
        self._live: dict[tuple[str, str], EventLog] = {}
        self._recent: OrderedDict[tuple[str, str], EventLog] = OrderedDict()
        self._remote: dict[tuple[str, str], tuple[EventLog, asyncio.Task[None]]] = {}
        self._deleted: set[str] = set()
        self._failed: dict[tuple[str, str], EventLog] = {}
        """Logs of which a step could not be written; what is missing is, when it can be."""
        self._repairing: set[str] = set()
        self._persisted: set[str] = set()
        """Live responses of which the file knows."""
        self._on_cancel_request: Callable[[str], None] = lambda _: None
        self._writer = StoreWriter(path, self.name, self, timings, max_bytes)
        self._database = Database(path)

    async def close(self) -> None:
        """Write what is left."""
        for _, task in self._remote.values():
            task.cancel()
        await asyncio.to_thread(self._writer.close)
        self._database.close()

    # As every store

    def add_log(self, log: EventLog) -> None:
        """Keep a log from now on."""
        self._live[log.owner, log.id] = log
        log.listener = self
        frames = tuple(log.entries)
        if log.base_response.background:
            log.withhold(0)
        elif is_terminal(frames):
            log.withhold(len(frames) - 1)
        self._writer.enqueue(AppendEvents(log, frames, is_first=True))

    def on_append(self, log: EventLog, first: int) -> None:
        """A log has grown."""
        frames = tuple(log.entries[first:])
        if not log.base_response.background and is_terminal(frames):
            log.withhold(first)
        self._writer.enqueue(AppendEvents(log, frames))

    def find_log(self, owner: str, response_id: str) -> EventLog | None:
        """The log of that response of that owner, wherever it is written."""
        key = owner, response_id
        if response_id in self._deleted:
            return None
        if key in self._remote:
            return self._remote[key][0]
        if (here := self._live.get(key) or self._failed.get(key) or self._recent.get(key)) is not None:
            return here
        found = self._database.load_log(owner, response_id)
        if found is None:
            return None
        log, writer = found
        if writer is None:
            self._cache_log(log)
        else:
            self._remote[key] = log, asyncio.create_task(self._poll_remote(log), name=f"poll-remote-{log.id}")
        return log

    def find_item(self, owner: str, item_id: str) -> OutputItem | AnyInput | None:
        """An item of that owner's by id."""
        for (holder, _), log in [*reversed(self._live.items()), *self._failed.items()]:
            if holder == owner and (found := find_item(log, item_id)) is not None:
                return found
        response_id = self._database.find_holder(owner, item_id)
        stored = self.find_log(owner, response_id) if response_id else None
        return self._database.find_conversation_item(owner, item_id) if stored is None else find_item(stored, item_id)

    def unavailable_reason(self) -> str | None:
        """Why nothing can be kept now, if so."""
        return None if self._writer.healthy else "The store cannot be written."

    def request_cancel(self, log: EventLog) -> None:
        """Ask the process that writes a log to end its turn."""
        with self._database.transaction():
            self._database.request_cancel(log.id)

    def on_cancel_request(self, asked: Callable[[str], None]) -> None:
        """Whom to tell of what is to end."""
        self._on_cancel_request = asked

    def delete_response(self, owner: str, response_id: str) -> bool:
        """Forget a response of that owner's."""
        log = self.find_log(owner, response_id)
        if log is None:
            return False
        key = owner, response_id
        self._recent.pop(key, None)
        self._remote.pop(key, None)
        self._failed.pop(key, None)
        self._persisted.discard(response_id)
        if self._live.pop(key, None) is not None:
            log.listener = None
            log.publish()
        self._deleted.add(response_id)
        self._writer.enqueue(DeleteResponse(response_id))
        return True

    # Conversations: seldom changed, so each change is a transaction of its own, here and now

    def save_conversation(self, owner: str, conversation: StoredConversation) -> None:
        """Keep a conversation."""
        with self._database.transaction():
            self._database.save_conversation(owner, conversation)

    def find_conversation(self, owner: str, conversation_id: str) -> StoredConversation | None:
        """The conversation of that owner with that id."""
        return self._database.find_conversation(owner, conversation_id)

    def delete_conversation(self, owner: str, conversation_id: str) -> None:
        """Forget it."""
        with self._database.transaction():
            self._database.delete_conversation(owner, conversation_id)

    def conversation_items(self, owner: str, conversation_id: str) -> tuple[AnyInput, ...]:
        """Its items."""
        return self._database.conversation_items(owner, conversation_id)

    def add_items(self, owner: str, conversation_id: str, items: Sequence[AnyInput]) -> None:
        """More of them."""
        with self._database.transaction():
            self._database.add_items(owner, conversation_id, items)

    def delete_item(self, owner: str, conversation_id: str, item_id: str) -> bool:
        """One of them less."""
        with self._database.transaction():
            return self._database.delete_item(owner, conversation_id, item_id)

    # What the writer says, in its thread, and what other processes write

    def on_written(self, safe: list[WriteOp], lost: list[WriteOp]) -> None:
        """These are written, and those never will be."""
        self._loop.call_soon_threadsafe(self._handle_written, safe, lost)

    def on_write_failed(self, orders: list[WriteOp]) -> None:
        """The file cannot be written."""
        self._loop.call_soon_threadsafe(self._handle_failed, orders)

    def on_heartbeat(self, held: dict[str, bool]) -> None:
        """These responses are ours, and of some it is asked to end them."""
        self._loop.call_soon_threadsafe(self._handle_heartbeat, held)

    def _handle_heartbeat(self, held: dict[str, bool]) -> None:
        for (_, response_id), log in [*self._live.items(), *self._failed.items()]:
            if held.get(response_id):
                self._on_cancel_request(response_id)
            elif response_id in self._persisted and response_id not in held:
                self._release_log(log)
        for key, log in list(self._failed.items()):
            if not log.ended or log.id in self._repairing:
                continue
            if log.id in held:
                self._repairing.add(log.id)
                self._writer.enqueue(
                    AppendEvents(log, tuple(log.entries[self._database.count_events(log.id) :]), is_repair=True)
                )
            else:  # the file never knew of it
                del self._failed[key]
                self._cache_log(log)

    def _handle_written(self, safe: list[WriteOp], lost: list[WriteOp]) -> None:
        for order in safe:
            if isinstance(order, DeleteResponse):
                self._deleted.discard(order.response_id)
                continue
            log, frames = order.log, order.entries
            self._persisted.add(log.id)
            log.publish(frames[-1].event.sequence_number + 1 if frames else 0)
            if is_terminal(frames):
                self._persisted.discard(log.id)
                self._repairing.discard(log.id)
                here = self._live.pop((log.owner, log.id), None) or self._failed.pop((log.owner, log.id), None)
                if here is not None:
                    self._cache_log(log)
        for order in lost:
            if isinstance(order, AppendEvents):
                self._release_log(order.log)

    def _handle_failed(self, orders: list[WriteOp]) -> None:
        """What cannot be kept is better told than lost: whoever reads must not wait for ever. It is found here."""
        for order in orders:
            if isinstance(order, DeleteResponse):
                self._loop.call_later(DELETE_RETRY_S, self._writer.enqueue, order)
                continue
            log = order.log
            self._repairing.discard(log.id)
            if self._live.pop((log.owner, log.id), None) is not None:
                log.listener = None
                log.publish()
                self._failed[log.owner, log.id] = log

    def _release_log(self, log: EventLog) -> None:
        """Another process has deleted a response, or ended it since this one was silent: nobody wants the rest."""
        self._persisted.discard(log.id)
        key = log.owner, log.id
        if (self._live.pop(key, None) or self._failed.pop(key, None)) is not None:
            log.listener = None
            log.publish()
            self._on_cancel_request(log.id)

    def _cache_log(self, log: EventLog) -> None:
        self._recent[log.owner, log.id] = log
        while len(self._recent) > MAX_RECENT_LOGS:
            self._recent.popitem(last=False)

    async def _poll_remote(self, log: EventLog) -> None:
        """Read on what another process writes, until it has ended."""
        key = log.owner, log.id
        while not log.ended:
            await asyncio.sleep(POLL_INTERVAL_S)
            writer = self._database.find_writer(log.id)
            frames = self._database.load_entries(log.id, len(log.entries))
            if frames:
                log.add_stored(frames)
                log.publish()
            if writer is None:
                if not is_terminal(log.entries):
                    missing = failure_events(
                        [frame.event for frame in log.entries], code="server_error", message=DELETED_MESSAGE
                    )
                    log.add_stored([LogEntry.from_event(event) for event in missing])
                    log.publish()
                log.end_log()
        if self._remote.pop(key, None) is not None:
            self._cache_log(log)

    def is_alive(self, name: str, beat: float) -> bool:
        """Whether a writer lives: on this machine its process tells, on another one its heart."""
        if name == self.name:
            return True
        if (found := WRITER_NAME.fullmatch(name)) and found["machine"] == _machine_id():
            birth = _process_start_time(int(found["pid"]))
            if found["birth"] and birth != found["birth"]:
                return False
        return time.time() - beat < self._timings.lease_s


def _machine_id() -> str:
    """This machine since it was started; a name of its own where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return f"unknown-{os.uname().nodename}"


def _process_start_time(pid: int) -> str:
    """When a process was begun, in the system's ticks; empty where there is none, or the system does not tell."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
