"""The index of a folder for `file_search`: passages of its text files, ranked by BM25 of SQLite's FTS5.

The index is a temporary database of SQLite, which the system deletes with the connection. It is synchronous and knows
no event loop; `FileSearch` calls it in threads.
"""

import hashlib
import json
import logging
import os
import re
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from antiphon.app.tools.search.file_filters import FileFilter

log = logging.getLogger(__name__)

MAX_FILES = 10_000
MAX_FILE_BYTES = 4 << 20
MAX_TOTAL_BYTES = 512 << 20
_REFRESH_INTERVAL_S = 5.0
"""Time for which the files of a folder are taken as unchanged."""
_PASSAGE_CHARS = 3200
"""About 800 tokens of 4 characters."""
_OVERLAP_CHARS = 400
"""Length of the text that a passage repeats of the one before, so that no sentence is in two halves only."""
_MAX_QUERY_TERMS = 64
_QUERY_TIMEOUT_S = 10.0
"""Time after which a search is given up."""
_STEPS_PER_CHECK = 10_000
"""Instructions of SQLite between two looks at the clock."""

_SPACELESS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_SPACELESS += "\U00020000-\U0003ffff"
_SPACELESS_CHARACTER = re.compile(f"[{_SPACELESS}]")
"""Characters of scripts that put no spaces between words. Each is a word of the index, and two are a phrase."""
_QUERY_WORD = re.compile(rf"[{_SPACELESS}]+|(?:(?![{_SPACELESS}])\w)+")

_SCHEMA = """
CREATE TABLE passages(id INTEGER PRIMARY KEY, file INTEGER NOT NULL, text TEXT NOT NULL);
CREATE INDEX passages_by_file ON passages(file);
CREATE VIRTUAL TABLE words USING fts5(text, content='', tokenize='porter unicode61 remove_diacritics 2');
"""


class IndexedFile(Struct, frozen=True, kw_only=True):
    """A text file of the folder. `number` names it in the index, `path` is relative to the folder."""

    number: int
    file_id: str
    path: str
    size: int
    mtime_ns: int

    @property
    def attributes(self) -> dict[str, str | int]:
        """The attributes that filters may compare."""
        modified_at = self.mtime_ns // 1_000_000_000
        name = self.path.rpartition("/")[2]
        return {"filename": name, "path": self.path, "size": self.size, "modified_at": modified_at}


class PassageMatch(Struct, frozen=True, kw_only=True):
    """A passage that fits a query. A higher `weight` fits better; weights of one query can be compared."""

    file: IndexedFile
    text: str
    weight: float


class FileIndex:
    """The index of one folder. Its methods block and may be called from any thread.

    It skips hidden files, links that lead out of the folder, linked folders, what is no UTF-8 text, and large files.
    """

    def __init__(self, store_id: str, folder: Path) -> None:
        self._store_id, self._folder = store_id, folder
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._files: dict[str, IndexedFile | None] = {}
        """By path, as the system spells it. None stands for a file that is no text."""
        self._signatures: dict[str, tuple[int, int]] = {}
        """Modification time and size of each file when it was read."""
        self._next_number = 1
        self._refreshed_at = float("-inf")
        self._is_closed = False

    def refresh(self) -> None:
        """Reads the files that have changed, at most every few seconds."""
        with self._lock:
            self._refresh()

    def search_passages(self, queries: Sequence[str], fits: FileFilter, limit: int) -> list[list[PassageMatch]]:
        """Returns for each query the passages that match best, of the files that fit.

        Raises `TimeoutError` if it takes too long, and errors of the system or of SQLite.
        """
        with self._lock:
            self._refresh()
            connection = self._connect()
            files = {file.number: file for file in self._files.values() if file is not None and fits(file.attributes)}
            deadline = time.monotonic() + _QUERY_TIMEOUT_S
            connection.set_progress_handler(lambda: self._is_closed or time.monotonic() > deadline, _STEPS_PER_CHECK)
            try:
                return [_select_passages(connection, query, files, limit) for query in queries]
            except sqlite3.OperationalError as error:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"The search took more than {_QUERY_TIMEOUT_S:g} s.") from error
                raise
            finally:
                connection.set_progress_handler(None, 0)

    def close(self) -> None:
        """Ends a search or a refresh in another thread, and deletes the index."""
        self._is_closed = True
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _connect(self) -> sqlite3.Connection:
        self._check_open()
        if self._connection is None:
            self._connection = sqlite3.connect("", check_same_thread=False, isolation_level=None)
            self._connection.executescript(_SCHEMA)
        return self._connection

    def _check_open(self) -> None:
        if self._is_closed:
            raise sqlite3.ProgrammingError("the index is closed")

    def _refresh(self) -> None:
        if time.monotonic() < self._refreshed_at + _REFRESH_INTERVAL_S:
            return
        connection = self._connect()
        found = _scan_folder(self._folder)
        files = dict(self._files)
        connection.execute("BEGIN")
        try:
            for path in self._files.keys() - found.keys():
                _remove_passages(connection, files.pop(path))
            for path, signature in found.items():
                self._check_open()
                if self._signatures.get(path) != signature or path not in files:
                    _remove_passages(connection, files.get(path))
                    files[path] = self._add_file(connection, path, signature)
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")
        self._files, self._signatures = files, found
        self._refreshed_at = time.monotonic()

    def _add_file(self, connection: sqlite3.Connection, path: str, signature: tuple[int, int]) -> IndexedFile | None:
        """Adds the passages of a file. Returns None if it is no text, or has gone."""
        text = _read_text(self._folder, path)
        if text is None:
            return None
        number, self._next_number = self._next_number, self._next_number + 1
        for passage in split_passages(text):
            row = connection.execute("INSERT INTO passages(file, text) VALUES (?, ?)", (number, passage)).lastrowid
            connection.execute("INSERT INTO words(rowid, text) VALUES (?, ?)", (row, _space_words(passage)))
        name = os.fsencode(path)
        digest = hashlib.sha256(self._store_id.encode() + b"\0" + name).hexdigest()[:32]
        return IndexedFile(
            number=number,
            file_id=f"file-{digest}",
            path=name.decode(errors="replace"),
            size=signature[1],
            mtime_ns=signature[0],
        )


def check_fts5() -> None:
    """Raises `ValueError` if this Python's SQLite has no FTS5."""
    try:
        with closing(sqlite3.connect("")) as connection:
            connection.executescript(_SCHEMA)
    except sqlite3.OperationalError as error:
        raise ValueError(f"file_search needs SQLite with FTS5, which this Python lacks: {error}") from None


def _select_passages(
    connection: sqlite3.Connection, query: str, files: Mapping[int, IndexedFile], limit: int
) -> list[PassageMatch]:
    match = _write_match(query)
    if not match:
        return []
    # With "+rowid", SQLite reads the matches once; with "rowid", it would look for each passage among them.
    rows = connection.execute(
        "SELECT p.file, p.text, r.rank FROM (SELECT rowid, rank FROM words WHERE words MATCH ? AND +rowid IN"
        " (SELECT id FROM passages WHERE file IN (SELECT value FROM json_each(?))) ORDER BY rank LIMIT ?) r"
        " JOIN passages p ON p.id = r.rowid ORDER BY r.rank, p.id",
        (match, json.dumps(list(files)), limit),
    )
    return [PassageMatch(file=files[number], text=text, weight=-rank) for number, text, rank in rows]


def _remove_passages(connection: sqlite3.Connection, file: IndexedFile | None) -> None:
    if file is None:
        return
    for row, text in connection.execute("SELECT id, text FROM passages WHERE file = ?", (file.number,)).fetchall():
        connection.execute("INSERT INTO words(words, rowid, text) VALUES ('delete', ?, ?)", (row, _space_words(text)))
    connection.execute("DELETE FROM passages WHERE file = ?", (file.number,))


# --- Words


def _space_words(text: str) -> str:
    return _SPACELESS_CHARACTER.sub(r" \g<0> ", text)


def _write_match(query: str) -> str:
    """Returns an expression of FTS5 that matches any word of the query. Its operators and quotes are not read.

    "vLLM 東京都"    "vLLM" OR "東 京" OR "京 都"
    """
    terms: dict[str, None] = {}
    for word in _QUERY_WORD.findall(query):
        if _SPACELESS_CHARACTER.match(word):
            terms |= dict.fromkeys(" ".join(word[index : index + 2]) for index in range(max(len(word) - 1, 1)))
        else:
            terms[word] = None
        if len(terms) >= _MAX_QUERY_TERMS:
            break
    return " OR ".join(f'"{term}"' for term in list(terms)[:_MAX_QUERY_TERMS])


def split_passages(text: str) -> Iterator[str]:
    """Yields passages that overlap. They end at the end of a paragraph, a line or a word where there is one."""
    start = 0
    while start < len(text):
        end = _find_cut(text, start)
        if passage := text[start:end].strip():
            yield passage
        if end >= len(text):
            return
        start = end - _OVERLAP_CHARS


def _find_cut(text: str, start: int) -> int:
    end = start + _PASSAGE_CHARS
    if end >= len(text):
        return len(text)
    for separator in ("\n\n", "\n", " "):
        found = text.rfind(separator, start + _PASSAGE_CHARS // 2, end)
        if found != -1:
            return found + len(separator)
    return end


# --- Files


def _scan_folder(folder: Path) -> dict[str, tuple[int, int]]:
    """Returns modification time and size of each file to read, by its path in the folder. One that is gone has none."""
    found: dict[str, tuple[int, int]] = {}
    total = 0
    root = os.path.realpath(folder)
    for parent, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            status = None if name.startswith(".") else _stat_file(root, os.path.join(parent, name))  # noqa: PTH118  bytes
            if status is None or status.st_size > MAX_FILE_BYTES:
                continue
            total += status.st_size
            if len(found) == MAX_FILES or total > MAX_TOTAL_BYTES:
                log.warning("Files beyond %d, or %d bytes, of %s are not searched.", MAX_FILES, MAX_TOTAL_BYTES, folder)
                return found
            path = os.path.relpath(os.path.join(parent, name), root)  # noqa: PTH118  bytes
            found[path] = (status.st_mtime_ns, status.st_size)
    return found


def _stat_file(root: str, path: str) -> os.stat_result | None:
    """Returns the status of a regular file in the folder, or None. A link counts as the file to which it leads."""
    try:
        real = Path(os.path.realpath(path))
        if any(part.startswith(".") for part in real.relative_to(root).parts):
            return None
        status = real.stat()
    except (OSError, ValueError):
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _read_text(folder: Path, path: str) -> str | None:
    """Returns the text of a file, or None if it is gone, large or no UTF-8 text."""
    root = os.path.realpath(folder)
    full = os.path.join(root, path)  # noqa: PTH118  see `_scan_folder`
    if _stat_file(root, full) is None:
        return None
    try:
        # Neither a link that has taken the file's place is followed, nor a pipe waited for.
        descriptor = os.open(os.path.realpath(full), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:  # noqa: PTH123  a descriptor
            data = file.read(MAX_FILE_BYTES + 1)
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return None
    return None if len(data) > MAX_FILE_BYTES or "\0" in text else text
