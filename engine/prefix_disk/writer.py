"""Writes pages of idle caches in a thread, so that no step waits for the disk.

The tokens of a page lie in a cache whose first tokens no longer change: a sequence that continues from the cache writes
behind them. The queue therefore holds no copies, only references that keep no cache alive. Code that drops
tokens of a cache, whose places later ones take, calls `forget` first.
"""

import atexit
import logging
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from antiphon.engine.cache.contiguous import ContiguousKVCache
from antiphon.engine.errors import one_line
from antiphon.engine.pack_cache.session import WRITER_NICENESS
from antiphon.engine.prefix_disk.folder import PageFolder, place_in_time
from antiphon.engine.prefix_disk.page_file import PageCodec
from antiphon.engine.prefix_disk.page_id import PageId

log = logging.getLogger(__name__)

MAX_QUEUED_PAGES = 16_384
"""Pages that wait to be written; more are dropped. They take no memory of their own."""


MAX_QUEUED_USES = 256
"""Prompts whose pages are to be marked as used; older ones are dropped."""


class _QueuedPage(NamedTuple):
    cache: "weakref.ref[ContiguousKVCache]"
    page: PageId
    used_ns: int


class PageWriter:
    """Writes the pages of caches to a folder, in a thread that starts with the first one.

    After a write that fails, nothing more is written until the next start; the log says why.
    """

    def __init__(self, folder: PageFolder, codec: PageCodec) -> None:
        self.num_written = 0
        self._folder, self._codec = folder, codec
        self._queue: deque[_QueuedPage] = deque()
        self._queued_names: set[str] = set()
        self._used: deque[tuple[list[str], int]] = deque(maxlen=MAX_QUEUED_USES)
        """Names of the first pages of prompts, and when these were used."""
        self._changed = threading.Condition()
        """Its lock is held while a page is copied out of a cache, and never while the disk is used."""
        self._is_writing = self._is_stopped = False
        self._thread: threading.Thread | None = None

    def offer(self, cache: ContiguousKVCache, pages: Iterable[PageId]) -> None:
        """Queues those pages of a cache that are neither in the folder nor in the queue. The cache must hold them.

        Pages in the folder are marked as used: while the memory serves a prompt, the disk sees nothing of it.
        """
        reference, now = weakref.ref(cache), time.time_ns()
        known: list[str] = []
        with self._changed:
            for index, page in enumerate(pages):
                if self._is_stopped or len(self._queue) >= MAX_QUEUED_PAGES:
                    break
                if self._folder.has(page.name):
                    known.append(page.name)
                elif page.name not in self._queued_names:
                    self._queue.append(_QueuedPage(reference, page, place_in_time(now, index)))
                    self._queued_names.add(page.name)
            if known:
                self._used.append((known, now))
            if (self._queue or self._used) and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="prefix-writer", daemon=True)
                atexit.register(self.stop)  # the interpreter may abort if the thread still copies at its end
                self._thread.start()
            self._changed.notify_all()

    def forget(self, cache: ContiguousKVCache, length: int) -> None:
        """Drops the queued pages of a cache that end behind `length` tokens. Waits while one page is copied."""
        with self._changed:
            kept = [item for item in self._queue if item.page.end <= length or item.cache() is not cache]
            self._queue = deque(kept)
            self._queued_names = {item.page.name for item in kept}

    def flush(self, timeout_s: float) -> bool:
        """Waits until all queued pages are written. Returns whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._queue or self._used or self._is_writing), timeout_s)

    def stop(self) -> None:
        """Ends the thread after the page that it writes."""
        with self._changed:
            self._is_stopped = True
            self._drop_queue()
        if self._thread is not None:
            self._thread.join()
        atexit.unregister(self.stop)

    def _drop_queue(self) -> None:
        self._queue.clear()
        self._used.clear()
        self._queued_names.clear()
        self._changed.notify_all()

    def _run(self) -> None:
        if sys.platform == "linux":  # where a thread has a priority of its own: the steps come first
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), WRITER_NICENESS)
        buffer = self._codec.create_buffer()
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._queue or self._used or self._is_stopped)
                if self._is_stopped:
                    return
                used = self._used.popleft() if self._used else None
                item = self._take_copied(buffer) if used is None else None
                self._is_writing = used is not None or item is not None
            if used is not None:
                self._folder.mark_used(*used)
            if item is not None:
                self._write(item, buffer)

    def _take_copied(self, buffer: memoryview) -> _QueuedPage | None:
        """Takes a page from the queue and copies it to the buffer. Returns None if its cache no longer holds it."""
        item = self._queue.popleft()
        self._queued_names.discard(item.page.name)
        return item if self._copy(item, buffer) else None

    def _copy(self, item: _QueuedPage, buffer: memoryview) -> bool:
        """Copies the keys and values of a page to the buffer. Returns False if the cache no longer holds them."""
        cache = item.cache()
        if cache is None or cache.length < item.page.end:
            return False
        return gather_page(cache, item.page, self._codec.view_body(buffer))

    def _write(self, item: _QueuedPage, buffer: memoryview) -> None:
        try:
            content = self._codec.encrypt(item.page, buffer)
            self._folder.write(item.page.name, content, self._codec.file_bytes, item.used_ns)
            self.num_written += 1
        except OSError as error:
            log.warning("prefix pages are no longer written until the next start: %s", one_line(error))
            with self._changed:
                self._is_stopped = True
                self._drop_queue()


def gather_page(cache: ContiguousKVCache, page: PageId, body: memoryview) -> bool:
    """Copies the keys and values of a page from a cache. Returns False if they do not fill the body."""
    target, done = np.frombuffer(body, np.uint8), 0
    for view in cache.view_tokens(page.start, page.end):
        if done + view.size > len(target) or view.shape[1] != page.end - page.start:
            return False
        target[done : done + view.size].reshape(view.shape)[...] = view
        done += view.size
    return done == len(target)


def scatter_page(cache: ContiguousKVCache, page: PageId, body: memoryview) -> None:
    """Copies the keys and values of a page to a cache that has memory for them."""
    source, done = np.frombuffer(body, np.uint8), 0
    for view in cache.view_tokens(page.start, page.end):
        view[...] = source[done : done + view.size].reshape(view.shape)
        done += view.size
