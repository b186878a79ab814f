"""Prepared pictures: what the prompt needs of them, and the arrays, of which the engine computes features."""

import hashlib
import os
import zlib
from collections import OrderedDict
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from antiphon.engine.media_messages import MediaArray, MediaArrays

MAX_KNOWN_IMAGES = 20_000
"""Pictures whose counts are kept. Each takes about a kilobyte."""

MAX_KNOWN_BYTES = 32 << 20
MAX_KEPT_IMAGES = 256
"""Pictures whose arrays are kept. Each takes a descriptor, of which a process often has 1024 only."""
Kept = TypeVar("Kept")


class PreparedImage(Struct, frozen=True, kw_only=True):
    """A picture as a model sees it."""

    key: bytes
    """SHA-256 of the content, the processor and the prepared size."""
    rows: int
    """Soft tokens, which is the number of rows of the features."""
    replacement: str
    """Text that takes the place of the template's placeholder."""
    grid: tuple[int, ...] = ()
    """Time, height and width in patches; empty if the model has no such grid."""
    width: int
    height: int
    """Size in pixels in which the processor got it."""
    arrays: tuple[MediaArray, ...] = ()
    size: int = 0
    """Bytes of the arrays."""


class EncodedImage(Struct, frozen=True, kw_only=True):
    """A picture as PNG without metadata, as it is sent to remote engines."""

    key: bytes
    png: bytes
    width: int
    height: int
    tokens: int
    """0 if no processor has counted them."""


def derive_key(*parts: bytes) -> bytes:
    """Returns the SHA-256 of parts, whose borders count."""
    return hashlib.sha256(msgspec.msgpack.encode(parts)).digest()


class KnownImages(Generic[Kept]):
    """Facts about pictures, by the digest of all that they depend on. The least recently used are dropped."""

    def __init__(self, max_entries: int = MAX_KNOWN_IMAGES, max_bytes: int = MAX_KNOWN_BYTES) -> None:
        self._entries: OrderedDict[bytes, tuple[Kept, int]] = OrderedDict()
        self._max_entries, self._max_bytes = max_entries, max_bytes
        self._num_bytes = 0

    def get(self, key: bytes) -> Kept | None:
        """Returns what is known; None if nothing."""
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def put(self, key: bytes, value: Kept, size: int = 0) -> None:
        """Keeps a value that takes `size` bytes, unless it alone is larger than the limit."""
        self._num_bytes -= self._entries.pop(key, (None, 0))[1]
        if size > self._max_bytes:
            return
        self._entries[key] = value, size
        self._num_bytes += size
        while len(self._entries) > self._max_entries or self._num_bytes > self._max_bytes:
            self._num_bytes -= self._entries.popitem(last=False)[1][1]


class CompactImage(Struct, frozen=True):
    """A prepared picture with its replacement text compressed: it is one token, repeated a thousand times."""

    image: PreparedImage
    replacement: bytes

    @classmethod
    def compress(cls, image: PreparedImage) -> "CompactImage":
        """Returns the compact form."""
        text = zlib.compress(image.replacement.encode(), 1)
        return cls(msgspec.structs.replace(image, replacement=""), text)

    def expand(self) -> PreparedImage:
        """Returns the picture."""
        return msgspec.structs.replace(self.image, replacement=zlib.decompress(self.replacement).decode())


class MediaMemory:
    """Arrays and PNGs of pictures, up to a limit in bytes. The least recently used are dropped.

    Arrays are descriptors of files in memory, which this server never maps.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[tuple[str, bytes], MediaArrays | EncodedImage] = OrderedDict()
        self.used_bytes = 0

    def keep(self, owner: str, entry: MediaArrays | EncodedImage, key: bytes) -> None:
        """Keeps an entry and takes its descriptor over. One that alone is larger than the limit is kept, too."""
        self._drop((owner, key))
        self._entries[owner, key] = entry
        self.used_bytes += _measure(entry)
        while len(self._entries) > MAX_KEPT_IMAGES or (self.used_bytes > self._max_bytes and len(self._entries) > 1):
            self._drop(next(iter(self._entries)))

    def has(self, owner: str, key: bytes) -> bool:
        """Tells whether an entry is kept."""
        return (owner, key) in self._entries

    def load_arrays(self, owner: str, key: bytes) -> MediaArrays | None:
        """Returns the arrays with a descriptor of their own, which the caller closes; None if they were dropped."""
        entry = self._find(owner, key)
        if not isinstance(entry, MediaArrays):
            return None
        return msgspec.structs.replace(entry, descriptor=os.dup(entry.descriptor))

    def load_png(self, owner: str, key: bytes) -> EncodedImage | None:
        """Returns a PNG; None if it was dropped."""
        entry = self._find(owner, key)
        return entry if isinstance(entry, EncodedImage) else None

    def _find(self, owner: str, key: bytes) -> MediaArrays | EncodedImage | None:
        if (owner, key) in self._entries:
            self._entries.move_to_end((owner, key))
        return self._entries.get((owner, key))

    def _drop(self, place: tuple[str, bytes]) -> None:
        entry = self._entries.pop(place, None)
        if entry is not None:
            self.used_bytes -= _measure(entry)
            if isinstance(entry, MediaArrays):
                os.close(entry.descriptor)

    def clear(self) -> None:
        """Drops all entries."""
        for place in list(self._entries):
            self._drop(place)


def _measure(entry: MediaArrays | EncodedImage) -> int:
    return entry.size if isinstance(entry, MediaArrays) else len(entry.png)
