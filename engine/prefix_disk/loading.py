"""Reads the pages of one prompt into a new cache, in a thread, so that no step waits for the disk."""

import logging
import threading
from collections.abc import Callable, Sequence

from antiphon.engine.cache.contiguous import ContiguousKVCache, LayerLayout
from antiphon.engine.prefix_disk.folder import PageFolder
from antiphon.engine.prefix_disk.page_file import DamagedPageError, PageCodec
from antiphon.engine.prefix_disk.page_id import PageId
from antiphon.engine.prefix_disk.writer import scatter_page

log = logging.getLogger(__name__)


class PageLoad:
    """The pages of one prompt on their way into `cache`. Once `done` is set, `cache.length` tokens are valid."""

    def __init__(self, pages: Sequence[PageId], cache: ContiguousKVCache) -> None:
        self.pages, self.cache = pages, cache
        self.done = threading.Event()
        self.is_pending = True
        """True until the thread of the steps has taken the cache, or has given up."""

    @property
    def num_tokens(self) -> int:
        """Memory of the cache in tokens."""
        return self.cache.capacity

    def wait(self, timeout_s: float) -> bool:
        """Waits for the end of the reading. Returns whether it has ended."""
        return self.done.wait(timeout_s)


class PageLoader:
    """Starts loads into caches of `new_cache`, which takes a capacity in tokens.

    `on_damaged` is called from the threads of the loads.
    """

    def __init__(
        self,
        folder: PageFolder,
        codec: PageCodec,
        layout: tuple[LayerLayout, ...],
        new_cache: Callable[[int], ContiguousKVCache],
        on_damaged: Callable[[PageId, DamagedPageError], None],
    ) -> None:
        self._folder, self._codec, self._layout = folder, codec, layout
        self._new_cache, self._on_damaged = new_cache, on_damaged

    def start(self, pages: Sequence[PageId], capacity: int) -> PageLoad:
        """Starts to read pages, which follow each other from the first one, into a cache of this capacity."""
        load = PageLoad(pages, self._new_cache(capacity))
        threading.Thread(target=self._run, args=(load,), name="prefix-loader", daemon=True).start()
        return load

    def _run(self, load: PageLoad) -> None:
        try:
            self._read_pages(load)
        except Exception:  # a page that cannot be read is computed again
            log.exception("reading prefix pages failed")
        finally:
            load.done.set()

    def _read_pages(self, load: PageLoad) -> None:
        """Reads up to the first page that is missing or damaged, or until no job waits any more."""
        load.cache.allocate_layers(self._layout)
        buffer = self._codec.create_buffer()
        for page in load.pages:
            if not load.is_pending or not self._read_page(page, buffer):
                break
            scatter_page(load.cache, page, self._codec.view_body(buffer))
            load.cache.commit(page.end - page.start)
        self._folder.mark_used([page.name for page in load.pages if page.end <= load.cache.length])

    def _read_page(self, page: PageId, buffer: memoryview) -> bool:
        try:
            with self._folder.open(page.name) as file:
                self._codec.decrypt(page, file, buffer)
        except DamagedPageError as error:
            self._on_damaged(page, error)
            return False
        except OSError:  # another process has deleted it, or the disk cannot read it
            self._folder.forget(page.name)
            return False
        return True
