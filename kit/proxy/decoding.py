"""Content encodings, decoded as the bytes come, for checks and cassettes. The bytes on the wire stay as they are."""

import importlib
import zlib
from typing import Any, Protocol

GZIP_OR_ZLIB_BITS = zlib.MAX_WBITS | 32


class BodyDecoder(Protocol):
    """Decodes a body part by part."""

    def decompress(self, data: bytes, /) -> bytes:
        """Returns what these bytes contain."""


class UnknownEncodingError(ValueError):
    """Raised for a content encoding that cannot be decoded here."""


class _IdentityDecoder:
    def decompress(self, data: bytes, /) -> bytes:
        return data


def create_decoder(encoding: str) -> BodyDecoder:
    """Returns a decoder for the value of a Content-Encoding header. Raises `UnknownEncodingError`."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return _IdentityDecoder()
    if name in ("gzip", "x-gzip", "deflate"):
        return zlib.decompressobj(GZIP_OR_ZLIB_BITS)
    if name == "zstd":
        try:
            zstandard: Any = importlib.import_module("zstandard")
        except ImportError:
            raise UnknownEncodingError("content encoding zstd: the package zstandard is not installed") from None
        decoder: BodyDecoder = zstandard.ZstdDecompressor().decompressobj()
        return decoder
    raise UnknownEncodingError(f"content encoding {encoding}")


def decode_body(body: bytes, encoding: str) -> bytes:
    """Returns a whole body. Raises `UnknownEncodingError`, also for a body that is not what its header says."""
    decoder = create_decoder(encoding)
    try:
        return decoder.decompress(body)
    except Exception as error:  # noqa: BLE001  zstandard's error class is not importable without it
        raise UnknownEncodingError(f"content encoding {encoding}: {error}") from None
