"""Arrays of a picture in one sealed memory file, which no process can change or shorten once it was sent.

The file goes from the process that made it through the server to the engine as a descriptor. Where the system has no
such files, the bytes are sent instead.
"""

import fcntl
import os
from collections.abc import Mapping

import numpy as np

from antiphon.engine.media_messages import ARRAY_ALIGNMENT, ArrayType, MediaArray

NUMBER_KINDS: dict[str, ArrayType] = {"f": "float32", "i": "int64", "u": "int64", "b": "bool"}
"""Kind of numpy's numbers → the type that is sent. Bytes are sent as they are."""


def lay_out(arrays: Mapping[str, np.ndarray]) -> tuple[tuple[MediaArray, ...], list[np.ndarray], int]:
    """Returns the place of each array, the arrays in the types that are sent, and the size of all in bytes."""
    facts, converted, end = [], [], 0
    for name, array in arrays.items():
        dtype: ArrayType = "uint8" if array.dtype == np.uint8 else NUMBER_KINDS[array.dtype.kind]
        sent = np.ascontiguousarray(array, dtype=dtype)
        offset = -(-end // ARRAY_ALIGNMENT) * ARRAY_ALIGNMENT
        facts.append(MediaArray(name=name, dtype=dtype, shape=tuple(sent.shape), offset=offset))
        converted.append(sent)
        end = offset + sent.nbytes
    return tuple(facts), converted, end


def write_memory_file(facts: tuple[MediaArray, ...], arrays: list[np.ndarray], size: int) -> int | None:
    """Returns the descriptor of a sealed file with the arrays; None where the system has no such files."""
    if not hasattr(os, "memfd_create"):
        return None
    file = os.memfd_create("antiphon-picture", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(file, size)
        for place, array in zip(facts, arrays, strict=True):
            _write(file, array.data.cast("B") if array.nbytes else b"", place.offset)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(file)
        raise
    return file


def join_arrays(facts: tuple[MediaArray, ...], arrays: list[np.ndarray], size: int) -> bytes:
    """Returns the bytes that the file would have."""
    joined = bytearray(size)
    for place, array in zip(facts, arrays, strict=True):
        joined[place.offset : place.offset + array.nbytes] = array.tobytes()
    return bytes(joined)


def _write(file: int, data: memoryview | bytes, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(file, data[done : done + (64 << 20)], offset + done)
