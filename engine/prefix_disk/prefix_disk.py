"""The prefix cache on disk, as the scheduler uses it: offers caches of ended jobs, and loads pages for new ones.

Nothing but tokens decides about a page: neither pictures nor their places are in it. Of a prompt with pictures, only
the pages before the first one are kept and read.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from antiphon.engine.cache.base import KVCache
from antiphon.engine.cache.contiguous import ContiguousKVCache, LayerLayout
from antiphon.engine.prefix_disk.folder import PageFolder
from antiphon.engine.prefix_disk.loading import PageLoad, PageLoader
from antiphon.engine.prefix_disk.page_file import DamagedPageError, PageCodec
from antiphon.engine.prefix_disk.page_id import TOKENS_PER_PAGE, PageContext, PageId, list_pages
from antiphon.engine.prefix_disk.writer import PageWriter

if TYPE_CHECKING:
    from array import array

    from antiphon.engine.forward.adapter_weights import LoadedAdapter

log = logging.getLogger(__name__)


class PrefixDisk:
    """Pages of one model. `identity` names all that the bits of keys and values depend on besides owner and tokens.

    `layout` is that of the caches that `new_cache` returns for a capacity in tokens. `secret` encrypts the pages.
    """

    def __init__(
        self,
        folder: PageFolder,
        secret: bytes,
        identity: tuple[str, ...],
        layout: tuple[LayerLayout, ...],
        new_cache: Callable[[int], ContiguousKVCache],
    ) -> None:
        codec = PageCodec(secret, TOKENS_PER_PAGE * sum(layer.bytes_per_token for layer in layout))
        self.num_damaged = 0
        self._folder, self._secret, self._layout = folder, secret, layout
        self._identity = (*identity, repr(layout))
        self.writer = PageWriter(folder, codec)
        self._loader = PageLoader(folder, codec, layout, new_cache, self._drop_damaged)
        self._damaged_lock = threading.Lock()

    @property
    def num_written(self) -> int:
        """Number of pages written since the start."""
        return self.writer.num_written

    def create_context(self, owner: str, salt: str, adapter: "LoadedAdapter | None") -> PageContext:
        """Returns the context of pages: owner, salt, adapter and identity. Different contexts share no page."""
        fingerprint = "" if adapter is None else adapter.fingerprint
        return PageContext(self._secret, ("owner", owner, "salt", salt, "adapter", fingerprint, *self._identity))

    def offer(self, context: PageContext, tokens: "array[int]", length: int, cache: KVCache) -> None:
        """Lets the whole pages of the first `length` tokens be written, which the cache holds."""
        if type(cache) is ContiguousKVCache and length >= TOKENS_PER_PAGE and cache.layout == self._layout:
            self.writer.offer(cache, list_pages(context, tokens, length))

    def forget(self, cache: KVCache, length: int) -> None:
        """Must be called before tokens of a cache behind the first `length` ones are replaced by others."""
        if isinstance(cache, ContiguousKVCache):
            self.writer.forget(cache, length)

    def find(self, context: PageContext, tokens: "array[int]", length: int) -> list[PageId]:
        """Returns the pages that are there, from the first one on without a gap, within the first `length` tokens."""
        found: list[PageId] = []
        for page in list_pages(context, tokens, length):
            if not self._folder.has(page.name):
                break
            found.append(page)
        return found

    def load(self, pages: Sequence[PageId], capacity: int) -> PageLoad:
        """Starts to read pages into a cache of at least this capacity, in tokens."""
        return self._loader.start(pages, max(capacity, pages[-1].end))

    def close(self, timeout_s: float) -> None:
        """Writes what is queued, for at most this time, and ends the writing."""
        self.writer.flush(timeout_s)
        self.writer.stop()

    def _drop_damaged(self, page: PageId, error: DamagedPageError) -> None:
        with self._damaged_lock:
            self.num_damaged += 1
            is_first = self.num_damaged == 1
        if is_first:
            log.warning("a prefix page was damaged and is deleted, as further ones will be: %s: %s", page.name, error)
        self._folder.delete(page.name)
