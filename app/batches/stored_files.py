"""Writes and reads the content of files in the store, one piece at a time."""

from collections.abc import AsyncIterator
from functools import partial

from msgspec import structs

from antiphon.app.base.errors import ApiError
from antiphon.app.store.batches.records import PIECE_BYTES, StoredFile
from antiphon.app.store.database import Database
from antiphon.app.store.store import ResponseStore
from antiphon.state.ids import NewId


def new_file_id(new_id: NewId) -> str:
    """Returns a new id of a file: `file-…`, as in OpenAI's API."""
    return new_id("file").replace("_", "-", 1)


class FileGoneError(Exception):
    """A file was deleted while it was written or read."""


class FileWriter:
    """Writes a new file: `begin`, `write`, `flush`, then a change with `complete`; or `discard` at any time.

    Only complete pieces are in the store, each written in a transaction of its own.
    """

    def __init__(
        self, store: ResponseStore, owner: str, file: StoredFile, *, max_owner_bytes: int | None = None
    ) -> None:
        self._store, self._owner, self._max_owner_bytes = store, owner, max_owner_bytes
        self.file = file
        self._pending = bytearray()
        self._num_pieces = 0

    async def begin(self) -> None:
        """Creates the file, which does not exist for its owner yet. Raises `ApiError`."""
        self._check_storage(await self._store.change(self._insert))

    async def write(self, data: bytes | bytearray) -> None:
        """Appends content. Raises `ApiError` and `FileGoneError`."""
        self._pending += data
        while len(self._pending) >= PIECE_BYTES:
            await self._append(bytes(self._pending[:PIECE_BYTES]))
            del self._pending[:PIECE_BYTES]

    async def flush(self) -> None:
        """Writes the last piece. Nothing may be written after it. Raises `ApiError` and `FileGoneError`."""
        if self._pending:
            await self._append(bytes(self._pending))
            self._pending.clear()

    def complete(self, database: Database) -> bool:
        """Makes the file exist, as a part of a change. Returns False if it was deleted meanwhile."""
        return database.files.complete_file(self.file, self._store.name)

    def lock(self, database: Database) -> bool:
        """Keeps other servers from deleting the file until the end of a change. Returns False if one has done so."""
        return database.files.lock_file(self.file.id, self._store.name)

    async def discard(self) -> None:
        """Deletes what was written, unless the file was completed: by a change whose result did not arrive."""
        await self._store.change(lambda database: database.files.discard_file(self.file.id, self._store.name))

    async def _append(self, piece: bytes) -> None:
        is_appended, owner_bytes = await self._store.change(partial(self._append_to, piece))
        if not is_appended:
            raise FileGoneError
        self._check_storage(owner_bytes)
        self._num_pieces += 1
        self.file = structs.replace(self.file, size=self.file.size + len(piece))

    def _check_storage(self, owner_bytes: int) -> None:
        if self._max_owner_bytes is not None and owner_bytes > self._max_owner_bytes:
            raise StorageLimitError(self._max_owner_bytes)

    def _insert(self, database: Database) -> int:
        """Returns the size of all files of the owner, this one included."""
        database.files.insert_file(self._owner, self.file, self._store.name)
        return database.files.count_bytes(self._owner)

    def _append_to(self, piece: bytes, database: Database) -> tuple[bool, int]:
        """Returns whether the file belongs to this process, and the size of all files of its owner."""
        is_appended = database.files.append_piece(self.file.id, self._store.name, self._num_pieces, piece)
        return is_appended, database.files.count_bytes(self._owner)


class StorageLimitError(ApiError):
    """The files of a key take as much storage as they may."""

    def __init__(self, max_bytes: int) -> None:
        message = f"The files of this API key would take more than {max_bytes} bytes. Delete some: DELETE /v1/files/ID."
        super().__init__(400, "storage_limit_exceeded", message, "file")


async def read_pieces(store: ResponseStore, file_id: str) -> AsyncIterator[bytes]:
    """Yields the content of a file. It ends early if the file is deleted meanwhile."""
    number = 0
    while (piece := await read_piece(store, file_id, number)) is not None:
        yield piece
        number += 1


async def read_range(store: ResponseStore, file_id: str, start: int, length: int) -> bytes:
    """Returns a part of a file. Raises `FileGoneError` if the file was deleted."""
    first, last = start // PIECE_BYTES, (start + max(length, 1) - 1) // PIECE_BYTES
    pieces = [await read_piece(store, file_id, number) for number in range(first, last + 1)]
    content = b"".join(piece for piece in pieces if piece is not None)
    offset = start - first * PIECE_BYTES
    found = content[offset : offset + length]
    if len(found) < length:
        raise FileGoneError
    return found


async def read_piece(store: ResponseStore, file_id: str, number: int) -> bytes | None:
    """Returns a piece of a file; None after the last one. Raises `ApiError`."""
    return await store.read(lambda database: database.files.read_piece(file_id, number))
