"""Files of packed weights: written once, then mapped into the memory of every process that serves the model.

A file holds tensors at offsets that are multiples of :data:`ALIGNMENT_BYTES`, an index in JSON, and a trailer with the
place and the hash of the index. The index holds a checksum of the first and the last bytes of each tensor. A checksum
of all bytes would have to read the whole file at every start: damage inside a tensor is left to the file system.
"""

import hashlib
import json
import mmap
import os
import struct
import warnings
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

ALIGNMENT_BYTES = 64
CHECKED_BYTES = 4096
"""Bytes at the start and at the end of a tensor that its checksum covers."""

MAGIC = b"ANTIPHON PACKED 1"
TRAILER = struct.Struct("<QQ32s16s")
"""Offset, length and SHA-256 of the index, and the first bytes of :data:`MAGIC` again."""


class DamagedPackError(Exception):
    """The file is not what was written."""


class PackEntry(NamedTuple):
    """The tensors of a packed weight by name, and numbers and strings that describe it."""

    tensors: dict[str, Tensor]
    details: dict[str, Any]


class TensorPlace(NamedTuple):
    """Where a tensor lies in the file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    checksum: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count * _find_dtype(self.dtype).itemsize


class PackFileWriter:
    """Writes a file under a temporary name. Every method may raise :class:`OSError`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        self._file = os.fdopen(os.open(self._unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
        self._index: dict[str, Any] = {}
        self._file.write(MAGIC)

    def add(self, name: str, entry: PackEntry) -> None:
        """Appends a packed weight."""
        places = {field: self._write_tensor(tensor) for field, tensor in entry.tensors.items()}
        self._index[name] = {"details": entry.details, "tensors": places}

    def _write_tensor(self, tensor: Tensor) -> TensorPlace:
        self._file.write(bytes(-self._file.tell() % ALIGNMENT_BYTES))
        data = memoryview(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
        place = TensorPlace(_dtype_name(tensor), tuple(tensor.shape), self._file.tell(), _compute_checksum(data))
        self._file.write(data)
        return place

    def commit(self) -> None:
        """Completes the file, waits until it is on the disk, and moves it to its place."""
        index = json.dumps(self._index).encode()
        offset = self._file.tell()
        self._file.write(index)
        self._file.write(TRAILER.pack(offset, len(index), hashlib.sha256(index).digest(), MAGIC[:16]))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._unfinished.replace(self._path)

    def discard(self) -> None:
        """Deletes the unfinished file."""
        self._file.close()
        self._unfinished.unlink(missing_ok=True)


class PackFile:
    """A file of packed weights, mapped read-only: all processes share its pages.

    Raises :class:`OSError` if it cannot be read, and :class:`DamagedPackError` if its index is damaged.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            try:
                self._memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError as error:
                raise DamagedPackError("it is empty") from error
        self._index = self._read_index()
        if hasattr(mmap, "MADV_WILLNEED"):
            self._memory.madvise(mmap.MADV_WILLNEED)  # reads the file ahead while the model is built

    def _read_index(self) -> dict[str, Any]:
        size = len(self._memory)
        if size < len(MAGIC) + TRAILER.size or self._memory[: len(MAGIC)] != MAGIC:
            raise DamagedPackError("it does not start with the format's name")
        offset, length, digest, magic = TRAILER.unpack(self._memory[size - TRAILER.size :])
        index = self._memory[offset : offset + length]
        is_whole = offset + length + TRAILER.size == size and magic == MAGIC[:16]
        if not is_whole or hashlib.sha256(index).digest() != digest:
            raise DamagedPackError("its index is damaged")
        entries: dict[str, Any] = json.loads(index)
        return entries

    @property
    def names(self) -> set[str]:
        """Names of the packed weights."""
        return set(self._index)

    def load(self, name: str) -> PackEntry | None:
        """Returns a packed weight, whose tensors must not be written to; None if there is none under this name.

        Raises :class:`DamagedPackError`.
        """
        entry = self._index.get(name)
        if entry is None:
            return None
        tensors = {field: self._map_tensor(TensorPlace(*place)) for field, place in entry["tensors"].items()}
        return PackEntry(tensors, entry["details"])

    def _map_tensor(self, place: TensorPlace) -> Tensor:
        with memoryview(self._memory) as whole:
            data = whole[place.offset : place.offset + place.size_bytes]
            if len(data) != place.size_bytes or _compute_checksum(data) != place.checksum:
                raise DamagedPackError("a weight is damaged")
            data.release()
        dtype = _find_dtype(place.dtype)
        if not place.size_bytes:
            return torch.empty(place.shape, dtype=dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch warns that the memory is read-only
            flat = torch.frombuffer(
                self._memory, dtype=dtype, offset=place.offset, count=place.size_bytes // dtype.itemsize
            )
        return flat.view(place.shape)


def _compute_checksum(data: memoryview) -> int:
    """Returns a checksum of the first and the last :data:`CHECKED_BYTES` bytes."""
    return zlib.crc32(data[-CHECKED_BYTES:], zlib.crc32(data[:CHECKED_BYTES]))


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _find_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype
