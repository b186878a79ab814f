"""Files of packed weights: written once, then mapped into the memory of every process that serves the model.

A file holds tensors at offsets that are multiples of `ALIGNMENT_BYTES`, an index in JSON, and a trailer with the
place and the hash of the index. The index holds a checksum of the first and the last bytes of each tensor. A checksum
of all bytes would have to read the whole file at every start: damage inside a tensor is left to the file system.

The format is not safetensors, which permits no gap between tensors: they could not be aligned to cache lines. Its
writer takes all tensors at once: the memory of those that are written could not be freed meanwhile, and a server that
exits could not stop it. Its reader does not let the pages be read ahead.
"""

import hashlib
import json
import mmap
import os
import struct
import tempfile
import warnings
import zlib
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple

import msgspec
import torch
from torch import Tensor

from antiphon.engine.regular_files import open_regular_file

ALIGNMENT_BYTES = 64
CHECKED_BYTES = 4096
"""Bytes at the start and at the end of a tensor that its checksum covers."""

PACK_MAGIC = b"ANTIPHON PACKED 1"
TRAILER = struct.Struct("<QQ32s16s")
"""Offset, length and SHA-256 of the index, and the first bytes of `PACK_MAGIC` again."""


class DamagedPackError(Exception):
    """The file is not what was written."""


class PackEntry(NamedTuple):
    """The tensors of a packed weight by name, and numbers and strings that describe it."""

    tensors: dict[str, Tensor]
    details: dict[str, Any]


Size = Annotated[int, msgspec.Meta(ge=0)]


class TensorPlace(NamedTuple):
    """Where a tensor lies in the file."""

    dtype: str
    shape: tuple[Size, ...]
    offset: Size
    checksum: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count * _find_dtype(self.dtype).itemsize


class IndexEntry(msgspec.Struct, frozen=True):
    """A packed weight in the index of a file."""

    tensors: dict[str, TensorPlace]
    details: dict[str, str | int | float | bool | None]


def create_unfinished_file(path: Path) -> tuple[BinaryIO, Path]:
    """Creates the file under whose name another one is written before it takes its place. Returns it and its path.

    The name is new: processes in several containers may have the same number, and a link is not followed.
    """
    descriptor, name = tempfile.mkstemp(".tmp", f"{path.name}.", path.parent)
    return os.fdopen(descriptor, "wb"), Path(name)


class PackFileWriter:
    """Writes a file under a temporary name. Every method may raise `OSError`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file, self._unfinished = create_unfinished_file(path)
        self._index: dict[str, Any] = {}
        self._file.write(PACK_MAGIC)

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
        self._file.write(TRAILER.pack(offset, len(index), hashlib.sha256(index).digest(), PACK_MAGIC[:16]))
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

    Raises `OSError` if it cannot be read, and `DamagedPackError` if its index is damaged.
    """

    def __init__(self, path: Path) -> None:
        with open_regular_file(path) as file:
            try:
                self._memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError as error:
                raise DamagedPackError("it is empty") from error
        self._index = self._read_index()
        if hasattr(mmap, "MADV_WILLNEED"):
            self._memory.madvise(mmap.MADV_WILLNEED)  # reads the file ahead while the model is built

    def _read_index(self) -> dict[str, IndexEntry]:
        size = len(self._memory)
        if size < len(PACK_MAGIC) + TRAILER.size or self._memory[: len(PACK_MAGIC)] != PACK_MAGIC:
            raise DamagedPackError("it does not start with the format's name")
        offset, length, digest, magic = TRAILER.unpack(self._memory[size - TRAILER.size :])
        index = self._memory[offset : offset + length]
        is_whole = offset + length + TRAILER.size == size and magic == PACK_MAGIC[:16]
        if not is_whole or hashlib.sha256(index).digest() != digest:
            raise DamagedPackError("its index is damaged")
        try:
            return msgspec.json.decode(index, type=dict[str, IndexEntry])
        except (msgspec.DecodeError, RecursionError) as error:
            raise DamagedPackError("its index is damaged") from error

    @property
    def names(self) -> set[str]:
        """Names of the packed weights."""
        return set(self._index)

    def load(self, name: str) -> PackEntry | None:
        """Returns a packed weight, whose tensors must not be written to; None if there is none under this name.

        Raises `DamagedPackError`.
        """
        entry = self._index.get(name)
        if entry is None:
            return None
        return PackEntry({field: self._map_tensor(place) for field, place in entry.tensors.items()}, entry.details)

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
    """Returns a checksum of the first and the last `CHECKED_BYTES` bytes."""
    return zlib.crc32(data[-CHECKED_BYTES:], zlib.crc32(data[:CHECKED_BYTES]))


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _find_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise DamagedPackError(f"{name[:40]} is no type of tensors")
    return dtype
