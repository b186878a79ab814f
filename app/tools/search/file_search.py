"""`file_search`: vector stores are folders that the operator names, searched by words."""

import asyncio
import logging
import re
import sqlite3
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from antiphon.app.tools.search.file_filters import parse_filter
from antiphon.app.tools.search.file_index import FileIndex, IndexedFile, PassageMatch

log = logging.getLogger(__name__)

MAX_RESULTS = 50
_MAX_QUERIES = 16
_MAX_TEXT_BYTES = 64 * 1024
_BASE_WEIGHT = 1.0
"""Is added to all weights. BM25 gives nearly none to words of half of the passages, which are many in a few files."""
_STORE_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NUM_THREADS = 4
"""Threads of their own, so that the first reading of a large folder takes none from the rest of the server."""


class FileResult(Struct, frozen=True, kw_only=True):
    """A passage of a file. The best one of a query has the score 1, the others about their share of its weight."""

    file_id: str
    filename: str
    """The path of the file in its folder."""
    score: float
    text: str
    attributes: dict[str, str | int]


class FileSearchError(Exception):
    """A search that failed. Its text is one sentence for the model."""


def read_vector_stores(options: Sequence[str]) -> dict[str, Path]:
    """Returns the folders by the ids of their stores. Each option is "ID=FOLDER". Raises `ValueError`."""
    stores: dict[str, Path] = {}
    for option in options:
        store_id, separator, folder = option.partition("=")
        if not separator or not folder or not _STORE_ID.fullmatch(store_id):
            raise ValueError(f"'{option}' is no vector store. Write ID=FOLDER, the id in letters, digits, '_' and '-'.")
        if store_id in stores:
            raise ValueError(f"Two vector stores have the id '{store_id}'. Give each an id of its own.")
        try:
            path = Path(folder).expanduser().resolve()
            is_folder = path.is_dir()
        except (OSError, RuntimeError, ValueError):
            is_folder = False
        if not is_folder:
            raise ValueError(f"The folder '{folder}' of the vector store '{store_id}' is not there. Create it first.")
        stores[store_id] = path
    return stores


class FileSearch:
    """Searches stores, which are folders by id. A folder is read at its first search, or by `load`."""

    def __init__(self, stores: Mapping[str, Path]) -> None:
        self._indexes = {store_id: FileIndex(store_id, folder) for store_id, folder in stores.items()}
        self._locks = {store_id: asyncio.Lock() for store_id in stores}
        """A search waits here, not in a thread, while another one uses the store."""
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="file-search")

    def check_stores(self, store_ids: Sequence[str]) -> None:
        """Raises `ValueError` if there is no store with one of the ids."""
        for store_id in store_ids:
            if store_id not in self._indexes:
                raise ValueError(f"Vector store with id '{store_id}' not found.")

    async def load(self) -> None:
        """Reads all folders, which may take minutes. What fails is logged, and tried again by the next search."""
        for store_id, index in self._indexes.items():
            try:
                async with self._locks[store_id]:
                    await asyncio.get_running_loop().run_in_executor(self._threads, index.refresh)
            except (OSError, sqlite3.Error) as error:
                log.warning("The folder of the vector store %s could not be read: %s", store_id, error)

    async def search(
        self,
        store_ids: Sequence[str],
        queries: Sequence[str],
        max_num_results: int = 10,
        filters: Any = None,
        score_threshold: float = 0.0,
    ) -> tuple[FileResult, ...]:
        """Returns the passages that fit best, at most as many as asked for, the best one first.

        Raises `ValueError` for an unknown store or filters of another shape, and `FileSearchError`.
        """
        self.check_stores(store_ids)
        fits = parse_filter(filters)
        limit = min(max(max_num_results, 1), MAX_RESULTS)
        queries = queries[:_MAX_QUERIES]

        found: list[list[PassageMatch]] = [[] for _ in queries]
        for store_id in dict.fromkeys(store_ids):
            try:
                async with self._locks[store_id]:
                    search = partial(self._indexes[store_id].search_passages, queries, fits, limit)
                    matches = await asyncio.get_running_loop().run_in_executor(self._threads, search)
            except TimeoutError as error:
                raise FileSearchError(str(error)) from error
            except (OSError, sqlite3.Error) as error:
                log.warning("The search of the vector store %s failed: %s", store_id, error)
                raise FileSearchError("The files could not be searched.") from error
            found = [[*earlier, *more] for earlier, more in zip(found, matches, strict=True)]
        return _rank_results(found, limit, score_threshold)

    async def close(self) -> None:
        """Ends searches and deletes the indexes."""
        for index in self._indexes.values():
            await asyncio.to_thread(index.close)
        self._threads.shutdown(wait=False, cancel_futures=True)


def _rank_results(found: list[list[PassageMatch]], limit: int, score_threshold: float) -> tuple[FileResult, ...]:
    """Returns the best passages of all queries, each once, with its best score."""
    scores: dict[tuple[str, str], tuple[float, IndexedFile]] = {}
    for matches in found:
        best = max((match.weight for match in matches), default=0.0)
        for match in matches:
            key = (match.file.file_id, match.text)
            score = (match.weight + _BASE_WEIGHT) / (best + _BASE_WEIGHT)
            scores[key] = max((score, match.file), scores.get(key, (0.0, match.file)), key=lambda entry: entry[0])
    ranked = sorted(scores.items(), key=lambda entry: -entry[1][0])
    return tuple(
        FileResult(file_id=file_id, filename=file.path, score=round(score, 4), text=text, attributes=file.attributes)
        for (file_id, text), (score, file) in ranked[:limit]
        if score >= score_threshold
    )


def results_as_text(results: Sequence[FileResult]) -> str:
    """Returns what the model reads, of a limited length."""
    if not results:
        return "No passage of the files fits."
    parts: list[str] = []
    room = _MAX_TEXT_BYTES
    for number, result in enumerate(results, 1):
        part = f"[{number}] {result.filename}\n{result.text}\n"
        if len(part.encode()) > room:
            parts.append(f"[{len(results) - number + 1} more passages do not fit. Ask for fewer, or search again.]\n")
            break
        room -= len(part.encode()) + 1
        parts.append(part)
    return "\n".join(parts)
