"""Prefixes on disk in the schedule: which sequences wait for pages, and what is written when a sequence ends.

A sequence whose prefix the disk knows better than the memory stays in the queue while a thread reads the pages. They
then become an idle cache of the prefix cache, where the sequence finds them like any other. One prefix is read at a
time: the memory that it takes is counted, and the disk serves one prompt after another.
"""

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from antiphon.engine.cache.base import KVCache
from antiphon.engine.prefix_disk.page_id import TOKENS_PER_PAGE, PageContext, PageId
from antiphon.engine.scheduler.sequence import Sequence

if TYPE_CHECKING:  # importing them imports torch
    from antiphon.engine.prefix_disk.loading import PageLoad
    from antiphon.engine.prefix_disk.prefix_disk import PrefixDisk

log = logging.getLogger(__name__)

LOAD_TIMEOUT_S = 60.0
"""Seconds after which a prefix that is still being read is computed instead. The disk is then read no more."""

LOAD_POLL_S = 0.02
"""Seconds for which a step without work waits for pages, before the worker looks at commands and deadlines again."""


MIN_GAIN_DIVISOR = 8
"""A prefix is read only if the memory lacks at least an eighth of it: it is always read from its first page on."""


class DiskPrefixes:
    """The prefixes of a core on disk; without `disk`, there are none."""

    def __init__(self, disk: "PrefixDisk | None", clock: Callable[[], float] = time.monotonic) -> None:
        self.num_hit_tokens = 0
        self.disk, self._clock = disk, clock
        self._load: PageLoad | None = None
        self._sequence: Sequence | None = None
        """The sequence for which the load was started."""
        self._load_ends_at = 0.0
        self._is_slow = False

    @property
    def num_loading_tokens(self) -> int:
        """Memory of the prefix that is being read, in tokens."""
        return 0 if self._load is None else self._load.num_tokens

    @property
    def num_written(self) -> int:
        """Number of pages written since the start."""
        return 0 if self.disk is None else self.disk.num_written

    @property
    def num_damaged(self) -> int:
        """Number of damaged pages found since the start."""
        return 0 if self.disk is None else self.disk.num_damaged

    def offer(self, sequence: Sequence, cache: KVCache, length: int) -> None:
        """Lets the first `length` tokens of a cache be written, whose sequence has ended."""
        if self.disk is not None:
            length = min(length, _count_text_tokens(sequence))
            self.disk.offer(self._context_of(sequence), sequence.tokens, length, cache)

    def forget(self, cache: KVCache, length: int) -> None:
        """Must be called before tokens of a cache behind the first `length` ones are replaced by others."""
        if self.disk is not None:
            self.disk.forget(cache, length)

    def may_help(self, sequence: Sequence) -> bool:
        """Tells whether to ask for the pages of a sequence: it has not waited for pages of its own yet."""
        return not (self.disk is None or self._is_slow or sequence.has_tried_disk or sequence.needs_prompt_logprobs)

    def find(self, sequence: Sequence, num_cached: int) -> list[PageId]:
        """Returns the pages that a sequence should wait for; none if the memory holds as much, or nearly.

        While those of another sequence are read, this one waits for them, and then asks again: they may be the same.
        """
        if self.disk is None or not self.may_help(sequence):
            return []
        length = min(len(sequence.tokens) - 1, _count_text_tokens(sequence))
        if length < num_cached + TOKENS_PER_PAGE:
            return []
        pages = self.disk.find(self._context_of(sequence), sequence.tokens, length)
        gain = len(pages) * TOKENS_PER_PAGE - num_cached
        if gain < max(TOKENS_PER_PAGE, len(pages) * TOKENS_PER_PAGE // MIN_GAIN_DIVISOR):
            return []
        if self._load is not None:
            sequence.page_load = self._load
            return []
        return pages

    def start_load(self, sequence: Sequence, pages: list[PageId], capacity: int) -> None:
        """Begins to read pages, which the sequence waits for, into a cache of `capacity` tokens."""
        assert self.disk is not None
        self._load, self._sequence = self.disk.load(pages, capacity), sequence
        self._load_ends_at = self._clock() + LOAD_TIMEOUT_S
        sequence.page_load, sequence.has_tried_disk = self._load, True

    def take_loaded(self) -> "tuple[Sequence, KVCache] | None":
        """Returns the prefix that has been read since the last call, and the sequence that waits for it, if any.

        Gives up a prefix whose reading takes too long.
        """
        load, sequence = self._load, self._sequence
        if load is None or sequence is None:
            return None
        is_done = load.done.is_set()
        if not is_done and self._clock() < self._load_ends_at:
            return None
        self.discard()
        if not is_done:
            log.warning("prefixes are no longer read from disk: one took more than %g s", LOAD_TIMEOUT_S)
            self._is_slow = True
            return None
        if not load.cache.length or not sequence.is_reusable:
            return None
        self.num_hit_tokens += load.cache.length
        return sequence, load.cache

    def wait_for_load(self) -> bool:
        """Waits a short time for the prefix that is being read. Returns False if there is none."""
        if self._load is None:
            return False
        self._load.wait(LOAD_POLL_S)
        return True

    def discard(self) -> None:
        """Ends the wait for the prefix that is being read."""
        if self._load is not None:
            self._load.is_pending = False
        self._load = self._sequence = None

    def close(self, timeout_s: float) -> None:
        """Writes what has been offered, for at most this time."""
        self.discard()
        if self.disk is not None:
            self.disk.close(timeout_s)

    def _context_of(self, sequence: Sequence) -> PageContext:
        assert self.disk is not None
        if sequence.page_context is None:
            job = sequence.job
            sequence.page_context = self.disk.create_context(job.owner, job.cache_salt, sequence.adapter)
        return sequence.page_context


def _count_text_tokens(sequence: Sequence) -> int:
    """Returns the number of tokens before the first picture."""
    return sequence.spans[0].offset if sequence.spans else len(sequence.tokens)
