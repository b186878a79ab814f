"""The file format of a page: AES-256-GCM over the ids of its tokens and their keys and values.

A file is `PAGE_MAGIC`, a nonce of 12 bytes, the ciphertext, and a tag of 16 bytes. Each page has a key of its own,
derived from the secret and its digest. The tag also covers the context and all ids up to the page's end. It therefore
fails for a damaged or truncated file, for one of another owner, model or prompt under this name, and without the right
secret.
"""

import hmac
import os
import struct
from collections.abc import Iterator
from typing import BinaryIO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import GCM

from antiphon.engine.prefix_disk.page_id import PAGE_ID_BYTES, PageId

PAGE_MAGIC = b"ANTIPHON PREFIX1"
NONCE_BYTES, TAG_BYTES = 12, 16

CHUNK_BYTES = 1 << 20
"""Bytes that are encrypted or decrypted in one call, which holds the interpreter's lock: less than a millisecond."""

OUTPUT_PADDING_BYTES = 16
"""Bytes that a decryptor demands beyond its output."""


class DamagedPageError(Exception):
    """The file is not the page that was written under this name."""


class PageCodec:
    """Encrypts and decrypts pages of `body_bytes` bytes of keys and values, with a secret of any length."""

    def __init__(self, secret: bytes, body_bytes: int) -> None:
        self._secret = secret
        self.plain_bytes = PAGE_ID_BYTES + body_bytes
        self.file_bytes = len(PAGE_MAGIC) + NONCE_BYTES + self.plain_bytes + TAG_BYTES

    def create_buffer(self) -> memoryview:
        """Returns memory for the plain form of one page, for `view_body`, `encrypt` and `decrypt`."""
        return memoryview(bytearray(self.plain_bytes + OUTPUT_PADDING_BYTES))

    def view_body(self, buffer: memoryview) -> memoryview:
        """Returns the part of a buffer that holds keys and values."""
        return buffer[PAGE_ID_BYTES : self.plain_bytes]

    def encrypt(self, page: PageId, buffer: memoryview) -> Iterator[bytes]:
        """Yields the file of a page in parts. The body of the buffer holds its keys and values."""
        buffer[:PAGE_ID_BYTES] = page.own_ids
        nonce = os.urandom(NONCE_BYTES)
        encryptor = Cipher(AES256(self._derive_key(page)), GCM(nonce)).encryptor()
        encryptor.authenticate_additional_data(_describe(page))
        yield PAGE_MAGIC + nonce
        for start in range(0, self.plain_bytes, CHUNK_BYTES):
            yield encryptor.update(buffer[start : min(start + CHUNK_BYTES, self.plain_bytes)])
        yield encryptor.finalize() + encryptor.tag

    def decrypt(self, page: PageId, file: BinaryIO, buffer: memoryview) -> None:
        """Reads the file of a page into the buffer. Raises `DamagedPageError` or `OSError`; then it is not valid."""
        if os.fstat(file.fileno()).st_size != self.file_bytes:
            raise DamagedPageError("its size is not that of a page")
        header = file.read(len(PAGE_MAGIC) + NONCE_BYTES)
        if not header.startswith(PAGE_MAGIC):
            raise DamagedPageError("it does not start with the format's name")
        decryptor = Cipher(AES256(self._derive_key(page)), GCM(header[len(PAGE_MAGIC) :])).decryptor()
        decryptor.authenticate_additional_data(_describe(page))
        self._decrypt_chunks(file, decryptor, buffer)
        try:
            decryptor.finalize_with_tag(file.read(TAG_BYTES))
        except (InvalidTag, ValueError):
            raise DamagedPageError("its tag is wrong") from None
        if buffer[:PAGE_ID_BYTES] != page.own_ids:
            raise DamagedPageError("it holds other tokens")

    def _decrypt_chunks(self, file: BinaryIO, decryptor: CipherContext, buffer: memoryview) -> None:
        done = 0
        while done < self.plain_bytes:
            chunk = file.read(min(CHUNK_BYTES, self.plain_bytes - done))
            if not chunk:
                raise DamagedPageError("it is truncated")
            decryptor.update_into(chunk, buffer[done : done + len(chunk) + OUTPUT_PADDING_BYTES])
            done += len(chunk)

    def _derive_key(self, page: PageId) -> bytes:
        return hmac.digest(self._secret, b"antiphon prefix page key" + page.digest, "sha256")


def _describe(page: PageId) -> bytes:
    """Returns the bytes that the tag covers besides the content."""
    return b"".join((PAGE_MAGIC, struct.pack("<Q", len(page.context.data)), page.context.data, page.ids))
