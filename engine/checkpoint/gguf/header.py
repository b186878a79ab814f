"""Reads the sizes of the tensors of a GGUF file from its header. Needs no torch."""

import mmap
import struct
from pathlib import Path

from antiphon.engine.errors import LoadError
from antiphon.engine.regular_files import open_regular_file

MAGIC, VERSIONS = b"GGUF", {2, 3}

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value of the metadata by its type; strings and arrays are not listed."""

STRING, ARRAY = 8, 9

MAX_ARRAY_DEPTH = 4
"""Deepest nesting of arrays in the metadata. Those of published files hold numbers and strings."""

MAX_DIMENSIONS = 8


def read_gguf_sizes(path: Path) -> dict[str, int]:
    """Returns the number of weights of each tensor in a GGUF file. Raises `LoadError` if it is damaged."""
    try:
        with open_regular_file(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read_sizes(data)
    except (OSError, ValueError, struct.error, IndexError, KeyError, OverflowError) as error:
        raise LoadError(f"{path} is not a GGUF file of version 2 or 3, or is cut short; fetch it again") from error


def _read_sizes(data: mmap.mmap) -> dict[str, int]:
    magic, version, num_tensors, num_values = struct.unpack_from("<4sIQQ", data)
    if magic != MAGIC or version not in VERSIONS:
        raise ValueError(magic)
    place = struct.calcsize("<4sIQQ")
    for _ in range(num_values):
        place = _skip_string(data, place)
        place = _skip_value(data, place + 4, struct.unpack_from("<I", data, place)[0])
    sizes: dict[str, int] = {}
    for _ in range(num_tensors):
        start, place = place + 8, _skip_string(data, place)
        name = data[start:place].decode("utf-8")
        (num_dimensions,) = struct.unpack_from("<I", data, place)
        if num_dimensions > MAX_DIMENSIONS:
            raise ValueError(num_dimensions)
        count = 1
        for extent in struct.unpack_from(f"<{num_dimensions}Q", data, place + 4):
            count *= extent
        sizes[name] = count
        place += 4 + 8 * num_dimensions + 12
    if place > len(data):
        raise ValueError(place)
    return sizes


def _skip_string(data: mmap.mmap, place: int) -> int:
    return place + 8 + int(struct.unpack_from("<Q", data, place)[0])


def _skip_value(data: mmap.mmap, place: int, kind: int, depth: int = 0) -> int:
    """Returns the place behind a value of this type, which `depth` arrays hold."""
    if kind == STRING:
        return _skip_string(data, place)
    if kind != ARRAY:
        return place + SIZES[kind]
    if depth == MAX_ARRAY_DEPTH:
        raise ValueError(depth)
    element, count = struct.unpack_from("<IQ", data, place)
    place += 12
    if element in SIZES:
        return place + int(count) * SIZES[element]
    for _ in range(count):
        place = _skip_value(data, place, element, depth + 1)
    return place
