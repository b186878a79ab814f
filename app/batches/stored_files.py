"""Writes and reads the content of files in the store, one piece at a time."""

from collections.abc import AsyncIterator
from functools import partial

from msgspec import structs

from antiphon.app.errors import ApiError
from antiphon.app.store.batches.records import FILE_PIECE_BYTES, StoredFile
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

    def __init__(self, store: ResponseStore, owner: str, file: StoredFile, *, is_limited: bool = False) -> None:
        """`is_limited`: the file must fit within what the store takes of this owner, and of all owners."""
        self._store, self._owner, self._is_limited = store, owner, is_limited
        self.file = file
        self._pending = bytearray()
        self._num_pieces = 0

    async def begin(self) -> None:
        """Creates the file, which does not exist for its owner yet. Raises `ApiError`."""
        self._check_storage(await self._store.change(self._insert))

    async def write(self, data: bytes | bytearray) -> None:
        """Appends content. Raises `ApiError` and `FileGoneError`."""
        self._pending += data
        while len(self._pending) >= FILE_PIECE_BYTES:
            await self._append(bytes(self._pending[:FILE_PIECE_BYTES]))
            del self._pending[:FILE_PIECE_BYTES]

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
        is_appended, sizes = await self._store.change(partial(self._append_to, piece))
        if not is_appended:
            raise FileGoneError
        self._check_storage(sizes)
        self._num_pieces += 1
        self.file = structs.replace(self.file, size=self.file.size + len(piece))

    def _check_storage(self, sizes: tuple[int, int]) -> None:
        """Checks the sizes of all files of the owner, and of all owners."""
        if not self._is_limited:
            return
        if sizes[0] > self._store.max_owner_bytes:
            message = f"The files of this API key would take more than {self._store.max_owner_bytes} bytes."
            raise StorageLimitError(message)
        if sizes[1] > self._store.max_kept_bytes:
            message = f"The files of all API keys would take more than {self._store.max_kept_bytes} bytes."
            raise StorageLimitError(message)

    def _insert(self, database: Database) -> tuple[int, int]:
        database.files.insert_file(self._owner, self.file, self._store.name)
        return self._count_bytes(database)

    def _append_to(self, piece: bytes, database: Database) -> tuple[bool, tuple[int, int]]:
        """Returns whether the file belongs to this process, and the sizes of all files."""
        is_appended = database.files.append_piece(self.file.id, self._store.name, self._num_pieces, piece)
        return is_appended, self._count_bytes(database)

    def _count_bytes(self, database: Database) -> tuple[int, int]:
        return database.files.count_bytes(self._owner), database.files.count_kept_bytes()


class StorageLimitError(ApiError):
    """Files take all the storage that they may."""

    def __init__(self, message: str) -> None:
        super().__init__(400, "storage_limit_exceeded", f"{message} Delete some: DELETE /v1/files/ID.", "file")


async def read_pieces(store: ResponseStore, file_id: str) -> AsyncIterator[bytes]:
    """Yields the content of a file. It ends early if the file is deleted meanwhile."""
    number = 0
    while (piece := await read_piece(store, file_id, number)) is not None:
        yield piece
        number += 1


async def read_range(store: ResponseStore, file_id: str, start: int, length: int) -> bytes:
    """Returns a part of a file. Raises `FileGoneError` if the file was deleted."""
    first, last = start // FILE_PIECE_BYTES, (start + max(length, 1) - 1) // FILE_PIECE_BYTES
    pieces = [await read_piece(store, file_id, number) for number in range(first, last + 1)]
    content = b"".join(piece for piece in pieces if piece is not None)
    offset = start - first * FILE_PIECE_BYTES
    found = content[offset : offset + length]
    if len(found) < length:
        raise FileGoneError
    return found


async def read_piece(store: ResponseStore, file_id: str, number: int) -> bytes | None:
    """Returns a piece of a file; None after the last one. Raises `ApiError`."""
    return await store.read(lambda database: database.files.read_piece(file_id, number))
