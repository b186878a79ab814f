"""Identities of pages: what their keys and values depend on, and the tokens up to their end.

Example: a prompt of 600 tokens begins with two pages, of the tokens 0 to 63 and 64 to 127. The digest of the second one
is the hash of the digest of the first and of the ids 64 to 127; that of the first begins with the hash of the context.
"""

import hashlib
import hmac
import struct
from array import array
from collections.abc import Iterable, Iterator

import numpy as np

TOKENS_PER_PAGE = 64
"""Tokens of a page. A prompt computes what it has beyond its last whole page; smaller pages are more files."""

ID_BYTES = 4
PAGE_ID_BYTES = TOKENS_PER_PAGE * ID_BYTES
PAGE_SUFFIX = ".page"


class PageContext:
    """Everything that the keys and values of tokens depend on besides the tokens, and the owners that may read them.

    `parts`: owner, cache salt, adapter, model, form of the computation. `secret` makes the names of files unguessable:
    a reader of the folder cannot test which prompts the server has read.
    """

    def __init__(self, secret: bytes, parts: Iterable[str]) -> None:
        encoded = [part.encode("utf-8", "surrogatepass") for part in parts]
        self.data = b"".join(struct.pack("<Q", len(part)) + part for part in encoded)
        """The parts, each with its length: no two lists have the same bytes."""
        self.root = hmac.digest(secret, b"antiphon prefix pages" + self.data, "sha256")


class PageId:
    """A page: the `TOKENS_PER_PAGE` last ones of the tokens whose ids are `ids`, from the first token on."""

    __slots__ = ("context", "digest", "ids")

    def __init__(self, context: PageContext, digest: bytes, ids: memoryview) -> None:
        self.context = context
        self.digest = digest
        self.ids = ids

    @property
    def name(self) -> str:
        """Name of the file."""
        return f"{self.digest.hex()}{PAGE_SUFFIX}"

    @property
    def end(self) -> int:
        """Number of tokens up to the end of the page."""
        return len(self.ids) // ID_BYTES

    @property
    def start(self) -> int:
        """Index of the first token of the page."""
        return self.end - TOKENS_PER_PAGE

    @property
    def own_ids(self) -> memoryview:
        """The ids of the page's own tokens, 4 bytes each, the lowest byte first."""
        return self.ids[-PAGE_ID_BYTES:]


def list_pages(context: PageContext, tokens: "array[int]", length: int) -> Iterator[PageId]:
    """Yields the whole pages of the first `length` tokens, in order."""
    ids = memoryview(encode_ids(tokens[:length]))
    digest = context.root
    for end in range(PAGE_ID_BYTES, len(ids) + 1, PAGE_ID_BYTES):
        digest = hashlib.sha256(digest + ids[end - PAGE_ID_BYTES : end]).digest()
        yield PageId(context, digest, ids[:end])


def encode_ids(tokens: "array[int]") -> bytes:
    """Returns token ids as 4 bytes each, the lowest byte first."""
    return np.frombuffer(tokens, np.intc).astype("<i4").tobytes() if tokens else b""
