"""Prompts as blocks of ids, so that the turns of a conversation share the beginning that they have in common."""

import sys
from array import array
from collections.abc import Sequence
from hashlib import blake2b

from msgspec import Struct

BLOCK_IDS = 512
"""Ids in a block. The last one of a prompt may have fewer."""
BLOCK_OVERHEAD_BYTES = 256
"""Memory of a block besides its ids (measured)."""


class PromptBlock(Struct, frozen=True):
    """Consecutive ids of a prompt. The key stands for the owner, these ids, and all ids before them."""

    key: bytes
    ids: bytes
    """Unsigned integers of 32 bits, little-endian."""


def split_prompt(owner: str, ids: Sequence[int]) -> tuple[PromptBlock, ...]:
    """Returns the blocks of a prompt.

    Example: two prompts of 600 ids that differ in the last id have one block in common.
    """
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    data, blocks, key = packed.tobytes(), [], blake2b(owner.encode(), digest_size=16).digest()
    for start in range(0, len(data), BLOCK_IDS * 4):
        part = data[start : start + BLOCK_IDS * 4]
        key = blake2b(key + part, digest_size=16).digest()
        blocks.append(PromptBlock(key, part))
    return tuple(blocks)


def join_blocks(parts: Sequence[bytes]) -> "array[int]":
    """Returns the ids of a prompt's blocks."""
    ids = array("I", b"".join(parts))
    if sys.byteorder == "big":
        ids.byteswap()
    return ids


class SharedBlocks:
    """Blocks in memory, each once, with the number of prompts that have it."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, PromptBlock] = {}
        self._uses: dict[bytes, int] = {}
        self.num_bytes = 0
        """Memory of all blocks."""

    def share(self, blocks: Sequence[PromptBlock]) -> tuple[tuple[PromptBlock, ...], int]:
        """Returns the blocks, each the object that is kept for its key, and the memory of those that are new."""
        shared, before = [], self.num_bytes
        for block in blocks:
            kept = self._blocks.setdefault(block.key, block)
            self._uses[block.key] = self._uses.get(block.key, 0) + 1
            if kept is block:
                self.num_bytes += len(block.ids) + BLOCK_OVERHEAD_BYTES
            shared.append(kept)
        return tuple(shared), self.num_bytes - before

    def release(self, blocks: Sequence[PromptBlock]) -> int:
        """Frees the blocks that no other prompt has. Returns their memory."""
        before = self.num_bytes
        for block in blocks:
            self._uses[block.key] -= 1
            if not self._uses[block.key]:
                del self._uses[block.key], self._blocks[block.key]
                self.num_bytes -= len(block.ids) + BLOCK_OVERHEAD_BYTES
        return before - self.num_bytes
