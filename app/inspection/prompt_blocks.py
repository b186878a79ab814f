"""Prompts as blocks of ids, so that the turns of a conversation share the beginning that they have in common."""

import sys
from array import array
from collections.abc import Sequence
from hashlib import blake2b

import zstandard

from antiphon.app.turn_types.continuation import RecordBlock

BLOCK_IDS = 512
"""Ids in a block. The last one of a prompt may have fewer."""
BLOCK_OVERHEAD_BYTES = 256
"""Memory of a block besides its content (measured)."""
BLOCK_KEY_BYTES = 16
COMPRESSION_LEVEL = 1


def split_prompt(owner: str, ids: Sequence[int]) -> tuple[RecordBlock, ...]:
    """Returns the blocks of a prompt: unsigned integers of 32 bits, little-endian.

    Example: two prompts of 600 ids that differ in the last id have one block in common.
    """
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    data, blocks, key = packed.tobytes(), [], blake2b(owner.encode(), digest_size=BLOCK_KEY_BYTES).digest()
    for start in range(0, len(data), BLOCK_IDS * 4):
        part = data[start : start + BLOCK_IDS * 4]
        key = blake2b(key + part, digest_size=BLOCK_KEY_BYTES).digest()
        blocks.append(RecordBlock(key, part))
    return tuple(blocks)


def join_blocks(parts: Sequence[bytes]) -> "array[int]":
    """Returns the ids of a prompt's blocks."""
    ids = array("I", b"".join(parts))
    if sys.byteorder == "big":
        ids.byteswap()
    return ids


def pack_grammar(owner: str, grammar: str) -> RecordBlock:
    """Returns a grammar, which many turns may have, as a block."""
    data = grammar.encode("utf-8", "surrogatepass")
    key = blake2b(data, digest_size=BLOCK_KEY_BYTES, key=blake2b(owner.encode()).digest(), person=b"grammar").digest()
    return RecordBlock(key, compress(data))


def unpack_grammar(data: bytes) -> str:
    """Returns the grammar in a block."""
    return decompress(data).decode("utf-8", "surrogatepass")


def compress(data: bytes) -> bytes:
    """Returns the data compressed, in a copy: what zstandard returns keeps the memory that it might have needed."""
    return bytes(memoryview(zstandard.ZstdCompressor(level=COMPRESSION_LEVEL).compress(data)))


def decompress(data: bytes) -> bytes:
    """Returns the data that `compress` got. Raises `zstandard.ZstdError`."""
    return zstandard.ZstdDecompressor().decompress(data)


class SharedBlocks:
    """Blocks in memory, each once, with the number of uses by records."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, RecordBlock] = {}
        self._uses: dict[bytes, int] = {}
        self.num_bytes = 0
        """Memory of all blocks."""

    def share(self, blocks: Sequence[RecordBlock]) -> tuple[tuple[RecordBlock, ...], int]:
        """Returns the blocks, each the object that is kept for its key, and the memory of those that are new."""
        shared, before = [], self.num_bytes
        for block in blocks:
            kept = self._blocks.setdefault(block.key, block)
            self._uses[block.key] = self._uses.get(block.key, 0) + 1
            if kept is block:
                self.num_bytes += len(block.data) + BLOCK_OVERHEAD_BYTES
            shared.append(kept)
        return tuple(shared), self.num_bytes - before

    def release(self, blocks: Sequence[RecordBlock]) -> int:
        """Frees the blocks that nothing else uses. Returns their memory."""
        before = self.num_bytes
        for block in blocks:
            self._uses[block.key] -= 1
            if not self._uses[block.key]:
                del self._uses[block.key], self._blocks[block.key]
                self.num_bytes -= len(block.data) + BLOCK_OVERHEAD_BYTES
        return before - self.num_bytes
